"""The product's own pure rules, called with the small numbers of the model, so that the model cannot drift from them.

Dead letters and messages have numbers as ids there; the replay id of a dead letter is its number.
"""

from functools import lru_cache

from penstock.dead_letters.policy import MoveToFinal, ReplayPolicy, plan_replay
from penstock.ledger.records import (
    AttemptFailure,
    ClaimedObject,
    EndedObject,
    FailedObject,
    ObjectState,
    OriginalMessage,
)
from penstock.ledger.rules import FailedObjectState, revives
from penstock.messaging.death import Death, buried
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.replay import COUNTER_ATTRIBUTE, Replay, replay_id_of, replayed, replays_so_far
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.pipeline.engine import ReadFailure
from penstock.pipeline.notifications import (
    ObjectDead,
    ObjectDone,
    ObjectLater,
    ObjectOutcome,
    classify_failure,
    ended_outcome,
    failure_outcome,
    original_message_of,
    settle_by,
)

NONE = -1
QUEUE, DLQ = "q", "q-dlq"
_LATER = ObjectLater(delay_seconds=1.0)

Outcome = tuple[str, int]  # done | later | dead, and for the last one the id of the original message


@lru_cache(None)
def replay_name(number: int) -> str | None:
    return None if number == NONE else replay_id_of(DLQ, str(number))


@lru_cache(None)
def gives_life(
    message: int, time: int, replay: int, *, original_message: int, dead_at: int, spent: tuple[int, ...]
) -> bool:
    """Return True if the message revives the failed object, whose original message is older than its failure."""
    return revives(
        OriginalMessage(message_id=str(message), enqueued_at=time, replay_id=replay_name(replay)),
        FailedObjectState(
            original_message=OriginalMessage(message_id=str(original_message), enqueued_at=dead_at - 1),
            dead_at=dead_at,
            replay_ids=frozenset(name for number in spent if (name := replay_name(number))),
        ),
    )


@lru_cache(None)
def way_back(dead_letter: int, count: int, replays_max: int) -> int | None:
    """Return the number of the next automatic replay in a row; None if the dead letter waits for a person."""
    plan = plan_replay(
        _dead_letter(dead_letter, count),
        dead_letter_queue=DLQ,
        queue=QUEUE,
        policy=ReplayPolicy(replays_max=replays_max),
        retention_seconds=None,
        dlq_retention_seconds=None,
        now=0.0,
    )
    return None if isinstance(plan, MoveToFinal) else plan.count


@lru_cache(None)
def sent_back(dead_letter: int, count: int, new_count: int) -> tuple[int, int]:
    """Return the counter and the replay id of a replayed dead letter."""
    dead_letter_id = str(dead_letter)
    replay = Replay(
        replay_id=replay_id_of(DLQ, dead_letter_id),
        dead_letter_queue=DLQ,
        dead_letter_id=dead_letter_id,
        queue=QUEUE,
        count=new_count,
        due_at=0.0,
    )
    outgoing = replayed(_dead_letter(dead_letter, count), replay, delay_seconds=0.0)
    message = Message(id="new", body=b"", attributes=outgoing.attributes, group=None, enqueued_at=1.0)
    original_message = original_message_of(
        Delivery(message=message, queue=QUEUE, receipt="r", attempt=1, received_at=1.0)
    )
    assert original_message.replay_id == outgoing.deduplication_id == replay_name(dead_letter)
    return replays_so_far(outgoing.attributes), dead_letter


@lru_cache(None)
def is_final_failure(attempts: int, attempts_max: int) -> bool:
    """Return True if a failure of its own is an object's last."""
    return _classified(attempts, attempts_max, original_message=0).failure is AttemptFailure.DEAD


def failed(attempts: int, attempts_max: int, original_message: int) -> Outcome:
    """Return the effect of a failure on the messages that name the object."""
    found = _classified(attempts, attempts_max, original_message)
    return _as_outcome(failure_outcome(found, _claimed(attempts, original_message), later=_LATER))


@lru_cache(None)
def ended(state: str, original_message: int) -> Outcome:
    """Return the effect of an object that had already ended on the messages that name it."""
    dead = state == "dead"
    of = EndedObject(
        state=ObjectState.DEAD if dead else ObjectState.PROCESSED,
        reason=None,
        original_message=OriginalMessage(message_id=str(original_message), enqueued_at=0.0) if dead else None,
    )
    return _as_outcome(ended_outcome(of))


@lru_cache(None)
def settlement(outcomes: tuple[Outcome, ...], message: int) -> str:
    """Return ack, release or dead_letter."""
    found = settle_by(
        problems=(), outcomes=[_outcome(*one) for one in outcomes], message_id=str(message), handler="clicks"
    )
    return {Ack: "ack", Release: "release", DeadLetter: "dead_letter"}[type(found)]


def _dead_letter(dead_letter: int, count: int) -> Message:
    death = Death(reason="", attempts=1, last_failed_at=0.0, worker="w", queue=QUEUE, message_id="m", enqueued_at=0.0)
    attributes = buried({COUNTER_ATTRIBUTE: str(count)} if count else {}, DeadLetter(reason=""), death)
    return Message(id=str(dead_letter), body=b"", attributes=attributes, group=None, enqueued_at=0.0)


def _claimed(attempts: int, original_message: int) -> ClaimedObject:
    return ClaimedObject(
        object_id=b"",
        attempts=attempts,
        unattributed_failures=0,
        original_message=OriginalMessage(message_id=str(original_message), enqueued_at=0.0),
    )


@lru_cache(None)
def _classified(attempts: int, attempts_max: int, original_message: int) -> FailedObject:
    failure = ReadFailure(failure=AttemptFailure.RETRY, reason="bad")
    return classify_failure(_claimed(attempts, original_message), failure, attempts_max=attempts_max)


def _as_outcome(outcome: ObjectOutcome) -> Outcome:
    match outcome:
        case ObjectDone():
            return "done", NONE
        case ObjectLater():
            return "later", NONE
        case ObjectDead():
            return "dead", int(outcome.original_message_id)


def _outcome(kind: str, original_message: int) -> ObjectOutcome:
    match kind:
        case "done":
            return ObjectDone()
        case "later":
            return _LATER
        case _:
            return ObjectDead(reason="bad", original_message_id=str(original_message))

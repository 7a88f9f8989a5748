"""Deliveries of notifications, opened: which objects each one names, and how it is settled in the end.

What becomes of an object that left its attempt without rows: pure rules over what the claim and the run said.

Two kinds of failure are told apart. One that names its object is judged by that object's attempts alone. One that names
nobody makes everybody in the run a suspect, and then nobody dies in company, or of what may be the user's code.

Who shares a run with whom: one culprit must not use up its siblings' attempts.

A run that failed with nobody to blame makes all its objects suspects. After k such failures an object shares a run only
with objects of the same k, and at most ``objects_max ** (1 - k / (attempts_max - 1))`` of them: a batch of 5,000 with
one culprit and four attempts shrinks to 292, 17 and 1, so that the last attempt of an innocent object is its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from penstock.errors import InvalidMessage, TransformError
from penstock.ledger.records import (
    AttemptFailure,
    Candidate,
    Carrier,
    ClaimedObject,
    EndedObject,
    FailedObject,
    ObjectState,
)
from penstock.messaging.delivery import Delivery
from penstock.messaging.replay import replay_id_in
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.objects.notification import Notification, NotificationKind
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import ReadFailure, RunBroken
from penstock.pipeline.failures import FailureStreak, every_run_failed

Parse = Callable[[bytes], Notification]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationDelivery:
    """A delivery and the objects it names."""

    delivery: Delivery
    objects: Sequence[ObjectRef]
    problems: Sequence[str]  # records that could not be understood; the others take effect all the same
    failures: int = 0  # the most unattributed failures any of its objects has

    @property
    def objects_count(self) -> int:
        return len(self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDone:
    """Nothing is left to do for the object: processed, gone, superseded, or dead by another message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLater:
    """The object is busy elsewhere or is to be tried again."""

    delay_seconds: float
    refund: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDead:
    """The object is given up on, and the message with this id carried it."""

    reason: str
    carrier_message_id: str
    exception: str | None = None  # type and message, where a user's function raised
    traceback: str | None = None
    lasting: bool = False  # rejected or unreadable: another attempt cannot help


ObjectOutcome = ObjectDone | ObjectLater | ObjectDead


def open_parcel(delivery: Delivery, parse: Parse, *, handler: str) -> NotificationDelivery | Settlement:
    """Read the notification; a message without objects is settled at once, by the pipeline or function ``handler``."""
    try:
        notification = parse(delivery.message.body)
    except InvalidMessage as invalid:
        return DeadLetter(reason=str(invalid), poison=True, handler=handler)
    if not notification.objects and not notification.problems:
        return Ack(reason="test_event" if notification.kind is NotificationKind.TEST_EVENT else "no_objects")
    if not notification.objects:
        return settle_by(problems=notification.problems, outcomes=(), message_id=delivery.message.id, handler=handler)
    return NotificationDelivery(delivery=delivery, objects=notification.objects, problems=notification.problems)


def settle_parcel(parcel: NotificationDelivery, outcomes: Mapping[bytes, ObjectOutcome], *, handler: str) -> Settlement:
    """A delivery stays whole: how it ends follows from the outcomes of all its objects."""
    settlement = settle_by(
        problems=parcel.problems,
        outcomes=[outcomes[ref.object_id] for ref in parcel.objects],
        message_id=parcel.delivery.message.id,
        handler=handler,
    )
    return Ack(objects=tuple(ref.uri for ref in parcel.objects)) if isinstance(settlement, Ack) else settlement


def settle_by(
    *, problems: Sequence[str], outcomes: Sequence[ObjectOutcome], message_id: str, handler: str
) -> Settlement:
    """Anything left to do: release. Else anything dead that it carried, or a bad record: dead letter. Else ack.

    The letter is poison where a record is bad, or where nothing that it carried can be helped by another attempt.
    """
    later = [outcome for outcome in outcomes if isinstance(outcome, ObjectLater)]
    if later:
        delay_seconds = max(outcome.delay_seconds for outcome in later)
        return Release(delay_seconds=delay_seconds, refund=all(outcome.refund for outcome in later))
    dead = [o for o in outcomes if isinstance(o, ObjectDead) and o.carrier_message_id == message_id]
    if dead or problems:
        told = next((o for o in dead if o.exception is not None), None)  # a letter has place for one
        return DeadLetter(
            reason="; ".join([*problems, *(o.reason for o in dead)]),
            exception=told.exception if told else None,
            traceback=told.traceback if told else None,
            poison=bool(problems) or all(o.lasting for o in dead),
            handler=handler,
        )
    return Ack()


def parts(
    parcel: NotificationDelivery, failures: Mapping[bytes, int], *, singly: bool = False
) -> list[NotificationDelivery]:
    """What may share a run: the objects that nobody suspects together, each suspect by itself.

    ``failures`` are the unattributed ones, by object id. A delivery stays whole in its batch and is settled as a whole,
    but not in one run: the culprit in a message of several objects would never be alone in a run, and never die.
    ``singly``: each object by itself in any case.
    """
    if singly:
        return [replace(parcel, objects=(ref,), failures=failures.get(ref.object_id, 0)) for ref in parcel.objects]
    clear = tuple(ref for ref in parcel.objects if not failures.get(ref.object_id))
    suspects = [
        replace(parcel, objects=(ref,), failures=failures[ref.object_id])
        for ref in parcel.objects
        if failures.get(ref.object_id)
    ]
    return [replace(parcel, objects=clear), *suspects] if clear else suspects


def candidates(parcels: Sequence[NotificationDelivery]) -> list[Candidate]:
    """The objects of a group, once for each message that names them: the ledger says which of these carries an object.

    That is the first, or for a dead object the first that may revive it.
    """
    return [_candidate(ref, carrier_of(parcel.delivery)) for parcel in parcels for ref in parcel.objects]


def carrier_of(delivery: Delivery) -> Carrier:
    """What the ledger remembers of the message, should an object of it die."""
    return Carrier(
        message_id=delivery.message.id,
        enqueued_at=delivery.message.enqueued_at,
        replay_id=replay_id_in(delivery.message.attributes),
    )


def _candidate(ref: ObjectRef, carrier: Carrier) -> Candidate:
    return Candidate(
        object_id=ref.object_id,
        bucket=ref.bucket,
        key=ref.key_bytes,
        size_bytes=ref.size_bytes,
        uri=ref.uri,
        carrier=carrier,
        version_id=ref.version_id,
        etag=ref.etag,
        sequencer=ref.sequencer,
    )


GONE_AFTER_SECONDS = 5.0  # between the two looks that make a missing object a deleted one: longer than a rename dance


def verdict(claimed: ClaimedObject, failure: ReadFailure, *, attempts_max: int) -> FailedObject:
    """An object that was not processed: look again where that may help, give up where it has had its attempts."""
    found = failure.failure
    if found is AttemptFailure.GONE:
        return _missing(claimed, failure.reason)
    if found is AttemptFailure.RETRY and claimed.attempts >= attempts_max and not failure.refund:
        found = AttemptFailure.DEAD
    refund = failure.refund and found is AttemptFailure.RETRY
    return FailedObject(
        object_id=claimed.object_id,
        failure=found,
        reason=failure.reason,
        refund=refund,
        traceback=failure.raised.traceback if failure.raised is not None else None,
    )


def look_again_seconds(claimed: ClaimedObject) -> float:
    """How long a missing object is left alone, so that its next look is far enough from the first."""
    return max(0.0, GONE_AFTER_SECONDS - (claimed.missing_seconds or 0.0))


def _missing(claimed: ClaimedObject, reason: str) -> FailedObject:
    """An object that a look did not find: gone only if another look, long enough before, did not find it either."""
    gone = claimed.missing_seconds is not None and claimed.missing_seconds >= GONE_AFTER_SECONDS
    return FailedObject(
        object_id=claimed.object_id,
        failure=AttemptFailure.GONE if gone else AttemptFailure.RETRY,
        reason=reason,
        refund=not gone,
        missing=True,
    )


def timed_out(
    claimed: Sequence[ClaimedObject], reason: str, *, attempts_max: int, first: bool
) -> Sequence[FailedObject]:
    """What was at work when the time of its batch was over.

    Work that was not the batch's ``first`` had only what others left of the time, and is not charged. Each batch that
    runs out of time has so ended some of its work or charged some of it, and one that is too slow comes to its end.
    """
    if not first:
        return [
            FailedObject(object_id=one.object_id, failure=AttemptFailure.RETRY, reason=reason, refund=True)
            for one in claimed
        ]
    if len(claimed) == 1:
        failure = ReadFailure(failure=AttemptFailure.RETRY, reason=reason)
        return [verdict(claimed[0], failure, attempts_max=attempts_max)]
    broken = RunBroken(reason, fingerprint="timed out")
    return [suspicion(one, broken, AttemptFailure.RETRY, attempts_max=attempts_max) for one in claimed]


def sentence(
    suspects: Sequence[ClaimedObject],
    broken: RunBroken,
    streak: FailureStreak,
    *,
    attempts_max: int,
    worked_before: Callable[[], bool],
) -> TransformError | AttemptFailure:
    """What a broken run means: the error to stop with, or how its objects leave it.

    An object dies only of its last attempt, alone, and in a pipeline that works: one that committed a batch in this
    process, or before it (``worked_before``) and the object was given another chance.
    """
    pause = streak.add(broken, frozenset(suspect.object_id for suspect in suspects))
    if pause is not None:
        return pause
    if len(suspects) > 1 or suspects[0].attempts < attempts_max:
        return AttemptFailure.RETRY
    if streak.succeeded:
        return AttemptFailure.DEAD
    if streak.reprieve(suspects[0].object_id):
        return AttemptFailure.RETRY
    return AttemptFailure.DEAD if worked_before() else every_run_failed(broken)


def suspicion(
    suspect: ClaimedObject, broken: RunBroken, meaning: TransformError | AttemptFailure, *, attempts_max: int
) -> FailedObject:
    """How a suspect leaves a broken run. One that lives on keeps its last attempt for a run of its own."""
    dead = meaning is AttemptFailure.DEAD
    return FailedObject(
        object_id=suspect.object_id,
        failure=AttemptFailure.DEAD if dead else AttemptFailure.RETRY,
        reason=str(broken),
        refund=isinstance(meaning, TransformError) or (not dead and suspect.attempts >= attempts_max),
        unattributed=True,
        traceback=broken.raised.traceback if broken.raised is not None else None,
    )


def failure_outcome(
    failed: FailedObject, claimed: ClaimedObject, *, later: ObjectLater, cause: ReadFailure | None = None
) -> ObjectOutcome:
    """What a failure means for the messages that named the object; ``later`` is when to try again."""
    match failed.failure:
        case AttemptFailure.RETRY if cause is not None and cause.delay_seconds is not None:
            return replace(later, delay_seconds=cause.delay_seconds)
        case AttemptFailure.RETRY:
            return later
        case AttemptFailure.DEAD:
            raised = cause.raised if cause is not None else None
            return ObjectDead(
                reason=failed.reason,
                carrier_message_id=claimed.carrier.message_id,
                exception=raised.summary if raised is not None else None,
                traceback=raised.traceback if raised is not None else None,
                lasting=cause is not None and cause.failure is AttemptFailure.DEAD,
            )
        case AttemptFailure.GONE | AttemptFailure.SUPERSEDED:
            return ObjectDone()


def ended_outcome(ended: EndedObject) -> ObjectOutcome:
    """An object that was terminal before we came; a dead one takes its own carrier down again, and no other message."""
    if ended.state is ObjectState.DEAD and ended.carrier is not None:
        return ObjectDead(reason=ended.reason or "dead", carrier_message_id=ended.carrier.message_id)
    return ObjectDone()


class Suspect(Protocol):
    """What grouping has to know of a delivery."""

    @property
    def objects_count(self) -> int: ...

    @property
    def failures(self) -> int: ...


S = TypeVar("S", bound=Suspect)


def group_objects_max(failures: int, *, objects_max: int, attempts_max: int) -> int:
    """How many objects with that many unattributed failures may share a run; at least 1."""
    if failures <= 0:
        return objects_max
    if failures >= attempts_max - 1:
        return 1
    return max(1, int(objects_max ** (1.0 - failures / (attempts_max - 1))))


def groups(suspects: Sequence[S], *, objects_max: int, attempts_max: int) -> list[list[S]]:
    """Split into runs, the unsuspected first. A delivery stays whole, even where it has more objects than a run may."""
    answer: list[list[S]] = []
    for failures in sorted({suspect.failures for suspect in suspects}):
        limit = group_objects_max(failures, objects_max=objects_max, attempts_max=attempts_max)
        group: list[S] = []
        objects_count = 0
        for suspect in suspects:
            if suspect.failures != failures:
                continue
            if group and objects_count + suspect.objects_count > limit:
                answer.append(group)
                group, objects_count = [], 0
            group.append(suspect)
            objects_count += suspect.objects_count
        answer.append(group)
    return answer

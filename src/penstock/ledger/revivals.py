"""Revive ended objects; used only inside a claim.

A replay, or a message that was enqueued after the failure, revives a failed object. An object that was deleted or
replaced before it was read (gone, superseded) is restored by a message that may be more up to date. Processed objects
are never revived, and retracted ones only by a retry of this very retraction, whose message carries the `retry_id`.
Reviving is part of the claim: a replayer that revived first and then crashed would leave an object without a message,
and if it only sent the message, that would be acked as already failed.

From then on the object's original message is one that may revive it, even if another message claims the object. A
message from before the failure may already be deleted while a halted process still holds it, and the next failure would
then leave no dead-lettered message. A later message that may revive the object replaces an earlier one, which may
itself have been dead-lettered and be the one that the later message replays.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, and_, bindparam, case, or_, select, update

from penstock.ledger.records import UNREAD, Claimable, ObjectState, OriginalMessage
from penstock.ledger.rows import AnyRow, Values, original_message_of, wanted_object
from penstock.ledger.rules import FailedObjectState, UnreadObject, latest, restores, retry_id, revives
from penstock.ledger.schema import object_attempts, objects, wanted
from penstock.ledger.sets import in_state, is_in, is_wanted, of_pipeline

# Only a claim supersedes an object without a check of the store, and it leaves the object without an attempt.
_was_checked = or_(objects.c.state == ObjectState.DELETED.value, objects.c.attempt_id.is_not(None))
_WANTED = select(
    objects.c.object_id,
    objects.c.state,
    objects.c.attempt_id,
    objects.c.sequencer,
    objects.c.dead_at,
    objects.c.ended_at,
    # Rows of Penstock versions without `sought_at` have only the time of the end.
    case((objects.c.sought_at.is_not(None), objects.c.sought_at), (_was_checked, objects.c.ended_at)).label("since"),
    objects.c.carrier_message_id,
    objects.c.carrier_enqueued_at,
    objects.c.carrier_replay_id,
).where(is_wanted())
_ENDED = _WANTED.where(
    or_(
        *(in_state(state) for state in (ObjectState.DEAD, ObjectState.RETRACTED, *sorted(UNREAD))),
        and_(in_state(ObjectState.UNPROCESSED), objects.c.missed_at.is_not(None)),  # found missing once
    )
)
_LIVING_AGAIN = _WANTED.where(objects.c.attempt_id == bindparam("fresh"), objects.c.dead_at.is_not(None))
_REPLAYS_SPENT = select(object_attempts.c.object_id, object_attempts.c.replay_id).where(
    of_pipeline(object_attempts),
    is_in(object_attempts.c.object_id, of=select(wanted.c.object_id)),
    object_attempts.c.replay_id.is_not(None),
)
_ended_in = bindparam("ended_in", type_=objects.c.attempt_id.type)
_ended = and_(
    objects.c.pipeline == bindparam("in_pipeline"),
    objects.c.object_id == bindparam("revived"),
    objects.c.state == bindparam("ended_as"),
    # The end must still be the one read above: the message's replay may be spent on a later one.
    or_(objects.c.attempt_id == _ended_in, and_(objects.c.attempt_id.is_(None), _ended_in.is_(None))),
)
_REVIVE = (  # restarts its attempts; keeps unattributed_failures, the runs it may have broken for others, and dead_at
    update(objects)
    .values(state=ObjectState.UNPROCESSED.value, attempt_id=None, refunds=objects.c.charged, ended_at=None)
    .where(_ended)
)
_RESTORE = _REVIVE.values(
    dead_at=None, missed_at=None, sought_at=None
)  # dead_at is NULL again, so the message of the next claim becomes its original message
# Both checks that find an object missing must follow the notification: an earlier one proves nothing about it.
_FORGET_CHECKS = update(objects).values(missed_at=None, sought_at=None).where(_ended)
_NUMBERED = select(objects.c.object_id, objects.c.sequencer).where(
    is_wanted(),
    objects.c.attempt_id == bindparam("fresh"),
    objects.c.version_id.is_(None),
    objects.c.sequencer.is_not(None),
)
_RENUMBER = (
    update(objects)
    .values(sequencer=bindparam("as_sequencer", type_=objects.c.sequencer.type))
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id == bindparam("renumbered"),
        objects.c.attempt_id == bindparam("fresh"),
    )
)
_RECORD_ORIGINAL_MESSAGE = (
    update(objects)
    .values(
        carrier_message_id=bindparam("by_message"),
        carrier_enqueued_at=bindparam("by_enqueued"),
        carrier_replay_id=bindparam("by_replay"),
    )
    .where(objects.c.pipeline == bindparam("in_pipeline"), objects.c.object_id == bindparam("carried"))
)


def revive(
    connection: Connection, pipeline: str, named: Mapping[bytes, Sequence[Claimable]]
) -> Mapping[bytes, OriginalMessage]:
    """Make ended objects claimable again if one of their messages allows it. ``named``: the messages by object id.

    Returns the messages that restored objects that were never read, by object id.
    """
    binds = {"in_pipeline": pipeline}
    restored: dict[bytes, OriginalMessage] = {}
    found = connection.execute(_ENDED, binds).all()
    spent = _replays_spent(connection, pipeline) if found else {}
    for row in found:
        replay_ids = spent.get(row.object_id, frozenset())
        ended = {**binds, "revived": row.object_id, "ended_in": row.attempt_id, "ended_as": row.state}
        if row.state == ObjectState.RETRACTED.value:
            retried = retry_id(pipeline, row.object_id, row.ended_at)
            if any(candidate.original_message.replay_id == retried for candidate in named[row.object_id]):
                connection.execute(_REVIVE, ended)
            continue
        if row.state == ObjectState.DEAD.value:
            death = FailedObjectState(
                original_message=_original_message(row), dead_at=row.dead_at, replay_ids=replay_ids
            )
            if any(revives(candidate.original_message, death) for candidate in named[row.object_id]):
                connection.execute(_REVIVE, ended)
            continue
        unread = _unread(row, replay_ids)
        newer = (
            candidate.original_message
            for candidate in named[row.object_id]
            if restores(candidate.original_message, candidate.sequencer, unread)
        )
        if (restorer := next(newer, None)) is not None:
            is_unprocessed = row.state == ObjectState.UNPROCESSED.value
            if connection.execute(_FORGET_CHECKS if is_unprocessed else _RESTORE, ended).rowcount:
                restored[row.object_id] = restorer
    return restored


def record_original_messages(
    connection: Connection,
    binds: Values,
    named: Mapping[bytes, Sequence[Claimable]],
    restored: Mapping[bytes, OriginalMessage],
) -> Mapping[bytes, OriginalMessage]:
    """Record the original message of each revived object that this claim took; return these messages by object id.

    For a failed object it is the first message that may revive it; if none may, the recorded one stays. For an object
    that was never read it is the message that ``restored`` it.
    """
    original_messages = dict(restored)
    for object_id, restorer in restored.items():
        connection.execute(
            _RECORD_ORIGINAL_MESSAGE,
            {"in_pipeline": binds["in_pipeline"], **_original_message_columns(object_id, restorer)},
        )
    found = connection.execute(_LIVING_AGAIN, binds).all()
    spent = _replays_spent(connection, binds["in_pipeline"]) if found else {}
    for row in found:
        death = FailedObjectState(
            original_message=_original_message(row),
            dead_at=row.dead_at,
            replay_ids=spent.get(row.object_id, frozenset()),
        )
        messages = (candidate.original_message for candidate in named[row.object_id])
        reviver = next((original_message for original_message in messages if revives(original_message, death)), None)
        if reviver is not None:
            connection.execute(
                _RECORD_ORIGINAL_MESSAGE,
                {"in_pipeline": binds["in_pipeline"], **_original_message_columns(row.object_id, reviver)},
            )
        original_messages[row.object_id] = reviver or _original_message(row)
    return original_messages


def renumber(connection: Connection, binds: Values, named: Mapping[bytes, Sequence[Claimable]]) -> None:
    """Store the sequencer of the latest message on the objects that this claim took.

    Content may have been replaced and put back, so that a later event describes the same object. An object named by a
    message without a sequencer loses its own: the store then shows whether the object exists.
    """
    for row in connection.execute(_NUMBERED, binds).all():
        sequencer = latest([row.sequencer, *(candidate.sequencer for candidate in named[row.object_id])])
        if sequencer != row.sequencer:
            connection.execute(_RENUMBER, {**binds, "renumbered": row.object_id, "as_sequencer": sequencer})


def _replays_spent(connection: Connection, pipeline: str) -> Mapping[bytes, frozenset[str]]:
    spent: dict[bytes, set[str]] = {}
    for row in connection.execute(_REPLAYS_SPENT, {"in_pipeline": pipeline}):
        spent.setdefault(row.object_id, set()).add(row.replay_id)
    return {object_id: frozenset(replay_ids) for object_id, replay_ids in spent.items()}


def _unread(row: AnyRow, replay_ids: frozenset[str]) -> UnreadObject:
    return UnreadObject(
        original_message=_original_message(row), sought_at=row.since, sequencer=row.sequencer, replay_ids=replay_ids
    )


def _original_message(row: AnyRow) -> OriginalMessage:
    original_message = original_message_of(row)
    assert original_message is not None, "a failed object was claimed, so it has an original message"
    return original_message


def _original_message_columns(object_id: bytes, original_message: OriginalMessage) -> Values:
    row = wanted_object(object_id, original_message)
    return {
        "carried": object_id,
        "by_message": row["message_id"],
        "by_enqueued": row["enqueued_at"],
        "by_replay": row["replay_id"],
    }

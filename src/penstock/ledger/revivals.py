"""Dead objects that a message gives another life: only ever inside a claim.

A replayer that revived first and then crashed would leave an object without a message; one that only sent would find
its message acked as "already dead".

In that life the object is carried by a message that might have given it, whoever else claims it: one of before the
death may be gone, in the hands of a process that was halted before it claimed, and no letter would tell of the next
death. Others that might have given it do take it over, for the first may have become a letter and be what they replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, update

from penstock.ledger.records import Carrier, ObjectState
from penstock.ledger.rows import AnyRow, Values, carrier_of, wanted_object
from penstock.ledger.rules import DeadObject, revives
from penstock.ledger.schema import object_attempts, objects, wanted
from penstock.ledger.sets import in_state, is_in, is_wanted, of_pipeline

_WANTED = select(
    objects.c.object_id,
    objects.c.attempt_id,
    objects.c.dead_at,
    objects.c.carrier_message_id,
    objects.c.carrier_enqueued_at,
    objects.c.carrier_replay_id,
).where(is_wanted())
_DEAD = _WANTED.where(in_state(ObjectState.DEAD))
_LIVING_AGAIN = _WANTED.where(objects.c.attempt_id == bindparam("fresh"), objects.c.dead_at.is_not(None))
_REPLAYS_SPENT = select(object_attempts.c.object_id, object_attempts.c.replay_id).where(
    of_pipeline(object_attempts),
    is_in(object_attempts.c.object_id, of=select(wanted.c.object_id)),
    object_attempts.c.replay_id.is_not(None),
)
_REVIVE = (  # its attempts begin again; the runs it may have spoiled for others are not forgotten, nor is its death
    update(objects)
    .values(state=ObjectState.UNPROCESSED.value, attempt_id=None, refunds=objects.c.charged, ended_at=None)
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id == bindparam("revived"),
        objects.c.state == ObjectState.DEAD.value,
        objects.c.attempt_id == bindparam("died_in"),  # not of a later death, by which the message may be spent
    )
)
_CARRY = (
    update(objects)
    .values(
        carrier_message_id=bindparam("by_message"),
        carrier_enqueued_at=bindparam("by_enqueued"),
        carrier_replay_id=bindparam("by_replay"),
    )
    .where(objects.c.pipeline == bindparam("in_pipeline"), objects.c.object_id == bindparam("carried"))
)


def revive(connection: Connection, pipeline: str, candidates: Mapping[bytes, Sequence[Carrier]]) -> None:
    """Make dead objects among the wanted ones claimable where a message may; by their ids, the messages naming each."""
    binds = {"in_pipeline": pipeline}
    for row, reviver in _revivers(connection, binds, _DEAD, candidates):
        if reviver is not None:
            connection.execute(_REVIVE, {**binds, "revived": row.object_id, "died_in": row.attempt_id})


def carry(
    connection: Connection, binds: Values, candidates: Mapping[bytes, Sequence[Carrier]]
) -> Mapping[bytes, Carrier]:
    """Say who carries the wanted objects that this claim took and that were dead before; answers it, by object.

    The first that may give it another life: it just did, or takes over. Where none may, the carrier stays.
    """
    carriers: dict[bytes, Carrier] = {}
    for row, reviver in _revivers(connection, binds, _LIVING_AGAIN, candidates):
        if reviver is not None:
            connection.execute(_CARRY, {"in_pipeline": binds["in_pipeline"], **_carried(row.object_id, reviver)})
        carriers[row.object_id] = reviver or _carrier(row)
    return carriers


def _revivers(
    connection: Connection, binds: Values, rows: Select[Any], candidates: Mapping[bytes, Sequence[Carrier]]
) -> Iterator[tuple[AnyRow, Carrier | None]]:
    """These objects, each with the first message that may give it another life after the death on record."""
    found = connection.execute(rows, binds).all()
    spent = _replays_spent(connection, binds["in_pipeline"]) if found else {}
    for row in found:
        death = DeadObject(carrier=_carrier(row), dead_at=row.dead_at, replay_ids=spent.get(row.object_id, frozenset()))
        yield row, next((one for one in candidates[row.object_id] if revives(one, death)), None)


def _replays_spent(connection: Connection, pipeline: str) -> Mapping[bytes, frozenset[str]]:
    spent: dict[bytes, set[str]] = {}
    for row in connection.execute(_REPLAYS_SPENT, {"in_pipeline": pipeline}):
        spent.setdefault(row.object_id, set()).add(row.replay_id)
    return {object_id: frozenset(replay_ids) for object_id, replay_ids in spent.items()}


def _carrier(row: AnyRow) -> Carrier:
    carrier = carrier_of(row)
    assert carrier is not None, "an object dies in a commit, so it was claimed for a carrier"
    return carrier


def _carried(object_id: bytes, carrier: Carrier) -> Values:
    row = wanted_object(object_id, carrier)
    return {
        "carried": object_id,
        "by_message": row["message_id"],
        "by_enqueued": row["enqueued_at"],
        "by_replay": row["replay_id"],
    }

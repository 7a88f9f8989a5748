"""Dead objects that a message gives another life: only ever inside a claim.

A replayer that revived first and then crashed would leave an object without a message; one that only sent would find
its message acked as "already dead".
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.records import Carrier, ObjectState
from penstock.ledger.rows import AnyRow, carrier_of, wanted_object
from penstock.ledger.rules import DeadObject, revives
from penstock.ledger.schema import object_attempts, objects, wanted
from penstock.ledger.sets import in_state, is_in, is_wanted, of_pipeline

_DEAD = select(
    objects.c.object_id,
    objects.c.dead_at,
    objects.c.carrier_message_id,
    objects.c.carrier_enqueued_at,
    objects.c.carrier_replay_id,
).where(is_wanted(), in_state(ObjectState.DEAD))
_REPLAYS_SPENT = select(object_attempts.c.object_id, object_attempts.c.replay_id).where(
    of_pipeline(object_attempts),
    is_in(object_attempts.c.object_id, of=select(wanted.c.object_id)),
    object_attempts.c.replay_id.is_not(None),
)
_REVIVE = (  # its attempts begin again; the runs it may have spoiled for others are not forgotten
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=None,
        refunds=objects.c.charged,
        ended_at=None,
        dead_at=None,
    )
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id == bindparam("revived"),
        objects.c.state == ObjectState.DEAD.value,
    )
)
_CARRY = (
    update(wanted)
    .values(message_id=bindparam("by_message"), enqueued_at=bindparam("by_enqueued"), replay_id=bindparam("by_replay"))
    .where(wanted.c.object_id == bindparam("revived"))
)


def revive(
    connection: Connection, pipeline: str, carriers: Mapping[bytes, Sequence[Carrier]]
) -> Mapping[bytes, Carrier]:
    """Make dead objects among the wanted ones claimable where a message may; answers the first that may, by object."""
    dead = connection.execute(_DEAD, {"in_pipeline": pipeline}).all()
    if not dead:
        return {}
    spent = _replays_spent(connection, pipeline)
    revivers: dict[bytes, Carrier] = {}
    for row in dead:
        dead_object = _dead_object(row, spent.get(row.object_id, frozenset()))
        carrier = next((carrier for carrier in carriers[row.object_id] if revives(carrier, dead_object)), None)
        if carrier is not None:
            _revive_one(connection, pipeline, row.object_id, carrier)
            revivers[row.object_id] = carrier
    return revivers


def _replays_spent(connection: Connection, pipeline: str) -> Mapping[bytes, frozenset[str]]:
    spent: dict[bytes, set[str]] = {}
    for row in connection.execute(_REPLAYS_SPENT, {"in_pipeline": pipeline}):
        spent.setdefault(row.object_id, set()).add(row.replay_id)
    return {object_id: frozenset(replay_ids) for object_id, replay_ids in spent.items()}


def _dead_object(row: AnyRow, replay_ids: frozenset[str]) -> DeadObject:
    carrier = carrier_of(row)
    assert carrier is not None, "an object dies in a commit, so it was claimed for a carrier"
    return DeadObject(carrier=carrier, dead_at=row.dead_at, replay_ids=replay_ids)


def _revive_one(connection: Connection, pipeline: str, object_id: bytes, carrier: Carrier) -> None:
    connection.execute(_REVIVE, {"in_pipeline": pipeline, "revived": object_id})
    row = wanted_object(object_id, carrier)
    connection.execute(
        _CARRY,
        {
            "revived": object_id,
            "by_message": row["message_id"],
            "by_enqueued": row["enqueued_at"],
            "by_replay": row["replay_id"],
        },
    )

"""How long objects and batches wait, for who looks again and again: every question is answered by an index.

Objects that are processed are nearly all there are, and counting them reads an entry each: so they are counted apart,
rarely, and what was committed since is added from the batches, of which there are few.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, case, func, select

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.queries import ARCHIVED_COUNT
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.ledger.schema import batches, objects, pipelines
from penstock.ledger.sets import by_state

_OTHERS = tuple(state for state in ObjectState if state is not ObjectState.PROCESSED)
_of_pipeline = objects.c.pipeline == bindparam("in_pipeline")

_COUNTS = (
    select(objects.c.state, func.count().label("objects_in_it"))
    .where(_of_pipeline, objects.c.state.in_([state.value for state in _OTHERS]))
    .group_by(objects.c.state)
)
_WAITING = select(
    func.min(objects.c.first_seen_at).label("oldest_at"),
    func.sum(case((objects.c.first_seen_at < DatabaseNow() - bindparam("after_seconds"), 1), else_=0)).label("overdue"),
).where(_of_pipeline, objects.c.state.in_([state.value for state in _OTHERS if state not in TERMINAL]))
_NOW = select(DatabaseNow())
_PROCESSED = by_state(
    select(func.count()).select_from(objects).where(_of_pipeline, objects.c.state == ObjectState.PROCESSED.value)
)
_NEXT_SEQ = select(pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_SINCE = select(func.coalesce(func.sum(batches.c.objects), 0)).where(
    batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq > bindparam("after_seq")
)
_COMMITTED = select((DatabaseNow() - batches.c.committed_at).label("age")).where(
    batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq == bindparam("at_seq")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What of a pipeline is not processed. Ages are by the database's clock."""

    objects: Mapping[ObjectState, int]  # of every state but processed
    oldest_age_seconds: float  # of the unfinished, since the ledger heard of it; 0 where there is none
    overdue: int  # of the unfinished, those that are older than asked
    committed_seq: int  # the last batch; 0 before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many objects are processed, archived ones too, as of a batch."""

    processed: int
    seq: int


class Ages:
    """Questions of a monitor. Each is one consistent look and changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self, pipeline: str, *, overdue_after_seconds: float) -> Waiting:
        """Takes as long as there are unfinished objects; the processed ones cost nothing."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            rows = connection.execute(_COUNTS, binds).all()
            waiting = connection.execute(_WAITING, {**binds, "after_seconds": overdue_after_seconds}).one()
            committed_seq = _committed_seq(connection, pipeline)
            now = float(connection.execute(_NOW).scalar_one())
        counts = {ObjectState(row.state): int(row.objects_in_it) for row in rows}
        return Waiting(
            objects=dict.fromkeys(_OTHERS, 0) | counts,
            oldest_age_seconds=0.0 if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at),
            overdue=int(waiting.overdue or 0),
            committed_seq=committed_seq,
        )

    def tally(self, pipeline: str) -> Tally:
        """Reads an entry of an index for every processed object: to be asked rarely."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            seq = _committed_seq(connection, pipeline)
            processed = connection.execute(_PROCESSED, binds).scalar_one()
            archived = connection.execute(ARCHIVED_COUNT, binds).scalar_one()
        return Tally(processed=int(processed) + int(archived), seq=seq)

    def brought_up(self, pipeline: str, tally: Tally) -> Tally:
        """The tally with what was committed since, from the batches. It does not know of a ledger that was repaired."""
        with self._database.reading() as connection:
            seq = _committed_seq(connection, pipeline)
            since = connection.execute(_SINCE, {"in_pipeline": pipeline, "after_seq": tally.seq}).scalar_one()
        return Tally(processed=tally.processed + int(since), seq=seq)

    def seconds_since_commit(self, pipeline: str, seq: int) -> float | None:
        """How long ago this batch was committed; None where there is none."""
        with self._database.reading() as connection:
            age = connection.execute(_COMMITTED, {"in_pipeline": pipeline, "at_seq": seq}).scalar_one_or_none()
        return None if age is None else max(0.0, float(age))


def _committed_seq(connection: Connection, pipeline: str) -> int:
    """The last batch; 0 before the first."""
    next_seq = connection.execute(_NEXT_SEQ, {"in_pipeline": pipeline}).scalar_one_or_none()
    return (next_seq or 1) - 1

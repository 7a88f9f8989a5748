"""Record how far background jobs and publish notifications have advanced through a pipeline's batches.

A job processes the batches in order and records the last one that it has finished for good. Several workers may run the
same job: each starts at the recorded batch and records only batches that it finished itself. So the record may only
grow, and a job must tolerate a batch being done twice.

For notifications the record is the last announced batch: if a process dies between publishing and announcing, the next
one continues there.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.ledger.rows import object_row
from penstock.ledger.schema import batches, objects, pipelines, progress, tellings
from penstock.ledger.sets import by_attempt, filtered

_of_task = (progress.c.pipeline == bindparam("in_pipeline")) & (progress.c.task == bindparam("of_task"))
_DONE = select(progress.c.done_seq).where(_of_task)
_ADVANCE = (
    update(progress).values(done_seq=bindparam("to_seq")).where(_of_task, progress.c.done_seq < bindparam("to_seq"))
)
_YOUNG = (
    select(batches.c.seq)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq > bindparam("after_seq"),
        batches.c.committed_at > DatabaseNow() - bindparam("older_than_seconds"),
    )
    .order_by(batches.c.seq)
    .limit(1)
)
_LAST = (
    select(batches.c.seq)
    .where(batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq > bindparam("after_seq"))
    .order_by(batches.c.seq.desc())
    .limit(1)
)
_PROCESSED = by_attempt(  # any other index has many more objects
    select(objects)
    .join_from(objects, batches, batches.c.attempt_id == objects.c.attempt_id)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq == bindparam("of_seq"),
        filtered(objects.c.pipeline) == bindparam("in_pipeline"),
        filtered(objects.c.state) == ObjectState.PROCESSED.value,
        objects.c.object_id > bindparam("after_id"),
    )
    .order_by(objects.c.object_id)
    .limit(bindparam("rows_max"))
)


class TaskProgress:
    """Progress per pipeline and job. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(progress)

    def done(self, pipeline: str, task: str) -> int:
        with self._database.reading() as connection:
            done = connection.execute(_DONE, {"in_pipeline": pipeline, "of_task": task}).scalar_one_or_none()
        return 0 if done is None else int(done)

    def advance(self, pipeline: str, task: str, seq: int) -> None:
        def write(connection: Connection) -> None:
            connection.execute(self._add, {"pipeline": pipeline, "task": task, "done_seq": 0})
            connection.execute(_ADVANCE, {"in_pipeline": pipeline, "of_task": task, "to_seq": seq})

        self._database.transact(write)

    def last_older_than(self, pipeline: str, *, after_seq: int, older_than_seconds: float) -> int:
        binds = {"in_pipeline": pipeline, "after_seq": after_seq}
        with self._database.reading() as connection:
            young = connection.execute(_YOUNG, {**binds, "older_than_seconds": older_than_seconds}).scalar_one_or_none()
            if young is not None:
                return int(young) - 1
            last = connection.execute(_LAST, binds).scalar_one_or_none()
        return after_seq if last is None else int(last)

    def processed_objects(self, pipeline: str, seq: int, *, after: bytes, limit: int) -> Sequence[ObjectRow]:
        binds = {"in_pipeline": pipeline, "of_seq": seq, "after_id": after, "rows_max": limit}
        with self._database.reading() as connection:
            return [object_row(row) for row in connection.execute(_PROCESSED, binds)]


_ANNOUNCED = select(tellings.c.told_seq).where(tellings.c.pipeline == bindparam("in_pipeline"))
_NEXT = select(pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_ADVANCE_PUBLISHED = (
    update(tellings)
    .values(told_seq=bindparam("to_seq"))
    .where(tellings.c.pipeline == bindparam("in_pipeline"), tellings.c.told_seq < bindparam("to_seq"))
)


class PublishProgress:
    """The last announced batch of each pipeline that sends publish notifications. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(tellings)

    def begin(self, pipeline: str) -> int:
        """Start the record of the pipeline's announced batches; return the last announced one."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            announced = connection.execute(_ANNOUNCED, binds).scalar_one_or_none()
        if announced is not None:
            return int(announced)

        def start(connection: Connection) -> int:
            next_seq = connection.execute(_NEXT, binds).scalar_one_or_none()
            connection.execute(self._add, {"pipeline": pipeline, "told_seq": (next_seq or 1) - 1})
            return int(connection.execute(_ANNOUNCED, binds).scalar_one())

        return self._database.transact(start)

    def advance(self, pipeline: str, seq: int) -> None:
        """Move forward only: a faster process stays ahead."""
        binds = {"in_pipeline": pipeline, "to_seq": seq}
        self._database.transact(lambda connection: connection.execute(_ADVANCE_PUBLISHED, binds))

"""How far the batches of a pipeline were told of: what a process that dies between publishing and telling leaves to the
next one."""

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.schema import pipelines, tellings

_TOLD = select(tellings.c.told_seq).where(tellings.c.pipeline == bindparam("in_pipeline"))
_NEXT = select(pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_ADVANCE = (
    update(tellings)
    .values(told_seq=bindparam("to_seq"))
    .where(tellings.c.pipeline == bindparam("in_pipeline"), tellings.c.told_seq < bindparam("to_seq"))
)


class Tellings:
    """One row a pipeline that somebody wants to hear of."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(tellings)

    def begin(self, pipeline: str) -> int:
        """Tell of the pipeline from now on; answers up to which batch it was told of."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            told = connection.execute(_TOLD, binds).scalar_one_or_none()
        if told is not None:
            return int(told)

        def keep(connection: Connection) -> int:
            next_seq = connection.execute(_NEXT, binds).scalar_one_or_none()
            connection.execute(self._add, {"pipeline": pipeline, "told_seq": (next_seq or 1) - 1})
            return int(connection.execute(_TOLD, binds).scalar_one())

        return self._database.transact(keep)

    def told(self, pipeline: str) -> int | None:
        with self._database.reading() as connection:
            told = connection.execute(_TOLD, {"in_pipeline": pipeline}).scalar_one_or_none()
        return None if told is None else int(told)

    def advance(self, pipeline: str, seq: int) -> None:
        """Never back: whoever was faster stays ahead."""
        binds = {"in_pipeline": pipeline, "to_seq": seq}
        self._database.transact(lambda connection: connection.execute(_ADVANCE, binds))

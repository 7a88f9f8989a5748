"""Questions about works. Each is one consistent look and changes nothing."""

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from penstock.ledger.database import Database
from penstock.ledger.owner_records import WorkOwner
from penstock.ledger.rules import storable, work_id_of
from penstock.ledger.schema import works
from penstock.ledger.work_records import WorkRow, WorkState
from penstock.ledger.work_rows import work_row

_ONE = select(works).where(works.c.work_id == bindparam("of_work"))


class WorkQueries:
    """What the ledger knows about works."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def works(
        self,
        handler: str | None,
        *,
        key_contains: str | None,
        state: WorkState | None,
        limit: int,
        after: bytes | None,
    ) -> Sequence[WorkRow]:
        statement = select(works).order_by(works.c.work_id).limit(limit)
        if handler is not None:
            statement = statement.where(works.c.handler == storable(handler))
        if key_contains is not None:
            statement = statement.where(works.c.key.icontains(storable(key_contains), autoescape=True))
        if state is not None:
            statement = statement.where(works.c.state == state.value)
        if after is not None:
            statement = statement.where(works.c.work_id > after)
        with self._database.reading() as connection:
            return [work_row(row) for row in connection.execute(statement)]

    def work(self, handler: str, key: str, owner: WorkOwner | None) -> WorkRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"of_work": work_id_of(handler, key, owner)}).one_or_none()
        return None if row is None else work_row(row)

"""The latest comparison of each pipeline's source with its ledger. Times are epoch seconds of the database's clock,
but for ``as_of``, which is of the source's."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import reconciliations

_ALL = select(reconciliations).order_by(reconciliations.c.pipeline)
_ONE = _ALL.where(reconciliations.c.pipeline == bindparam("in_pipeline"))
_NOW = select(DatabaseNow())


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a reconcile came to."""

    pipeline: str
    as_of: float  # objects stored up to then were looked at
    source: str  # what was compared: a listing's or an inventory's address
    listed: int
    missing: int
    sent: int  # messages
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation(Comparison):
    """One that is on record."""

    finished_at: float


class Reconciliations:
    """One row a pipeline."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(reconciliations)

    def record(self, comparison: Comparison) -> None:
        """In the place of the one before."""
        values = {**asdict(comparison), "source": storable(comparison.source), "finished_at": DatabaseNow()}
        row = reconciliations.c.pipeline == comparison.pipeline

        def put(connection: Connection) -> None:
            connection.execute(self._add.values(values))
            connection.execute(update(reconciliations).where(row).values(values))

        self._database.transact(put)

    def one(self, pipeline: str) -> Reconciliation | None:
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"in_pipeline": pipeline}).one_or_none()
        return None if row is None else _of(row)

    def all(self) -> Sequence[Reconciliation]:
        with self._database.reading() as connection:
            return [_of(row) for row in connection.execute(_ALL)]

    def seconds_since(self, pipeline: str) -> float | None:
        """Since the latest one, by the database's clock; None where there is none."""
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"in_pipeline": pipeline}).one_or_none()
            return None if row is None else float(connection.execute(_NOW).scalar_one()) - row.finished_at


def _of(row: AnyRow) -> Reconciliation:
    return Reconciliation(**row._mapping)

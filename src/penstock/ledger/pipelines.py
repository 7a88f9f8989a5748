"""Store the pipelines of a ledger and the schemas recorded for them, then the latest reconcile of each pipeline.

Times are epoch seconds of the database's clock, except ``as_of``, which is of the source's.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import PipelineRow
from penstock.ledger.rows import AnyRow, pipeline_row
from penstock.ledger.rules import check_pipeline, storable
from penstock.ledger.schema import pipelines, reconciliations, table_schemas

_ALL = (
    select(pipelines, table_schemas.c.table_schema)
    .outerjoin_from(
        pipelines,
        table_schemas,
        (table_schemas.c.pipeline == pipelines.c.id) & (table_schemas.c.schema_id == pipelines.c.schema_id),
    )
    .order_by(pipelines.c.id)
)
_ONE = _ALL.where(pipelines.c.id == bindparam("in_pipeline"))
_is_one = pipelines.c.id == bindparam("in_pipeline")
_LOCKED = select(pipelines.c.source_schema, pipelines.c.source_options).where(_is_one).with_for_update()
_REPLACE = update(pipelines).values(source_schema=bindparam("ddl"), source_options=bindparam("options")).where(_is_one)
_REMEMBER = _REPLACE.where(pipelines.c.source_schema.is_(None))
_TRANSFORM = select(pipelines.c.transform).where(_is_one).with_for_update()
_REPLACE_TRANSFORM = update(pipelines).values(transform=bindparam("name")).where(_is_one)


class Pipelines:
    """The table of pipelines, one row per pipeline. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(pipelines).values(next_seq=1, schema_id=0)

    def ensure(self, pipeline: str) -> PipelineRow:
        """Return the pipeline's row, creating it if needed. Raises `ConfigurationError` if the id is too long."""
        check_pipeline(pipeline)
        known = self.one(pipeline)
        if known is not None:
            return known

        def ensure(connection: Connection) -> PipelineRow:
            connection.execute(self._add, {"id": pipeline})
            return pipeline_row(connection.execute(_ONE, {"in_pipeline": pipeline}).one())

        return self._database.transact(ensure)

    def one(self, pipeline: str) -> PipelineRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"in_pipeline": pipeline}).one_or_none()
        return None if row is None else pipeline_row(row)

    def all(self) -> Sequence[PipelineRow]:
        with self._database.reading() as connection:
            return [pipeline_row(row) for row in connection.execute(_ALL)]

    def replace_source_schema(self, seen: PipelineRow, ddl: str, options: str | None) -> bool:
        """Replace schema and options unless they are no longer those of ``seen``; return True if replaced."""

        def replace(connection: Connection) -> bool:
            recorded = connection.execute(_LOCKED, {"in_pipeline": seen.id}).one_or_none()
            if recorded is None or tuple(recorded) != (seen.source_schema, seen.source_options):
                return False
            connection.execute(_REPLACE, {"in_pipeline": seen.id, "ddl": ddl, "options": options})
            return True

        return self._database.transact(replace)

    def replace_transform(self, seen: PipelineRow, name: str) -> bool:
        """Replace the transform's name unless it is no longer that of ``seen``; return True if replaced."""

        def replace(connection: Connection) -> bool:
            recorded = connection.execute(_TRANSFORM, {"in_pipeline": seen.id}).one_or_none()
            if recorded is None or recorded.transform != seen.transform:
                return False
            connection.execute(_REPLACE_TRANSFORM, {"in_pipeline": seen.id, "name": storable(name)})
            return True

        return self._database.transact(replace)

    def remember_source_schema(self, pipeline: str, ddl: str, options: str | None) -> PipelineRow:
        """Record schema and options unless a schema is recorded; return the row with the recorded ones."""

        def remember(connection: Connection) -> PipelineRow:
            connection.execute(self._add, {"id": pipeline})
            connection.execute(_REMEMBER, {"in_pipeline": pipeline, "ddl": ddl, "options": options})
            return pipeline_row(connection.execute(_ONE, {"in_pipeline": pipeline}).one())

        return self._database.transact(remember)


_ALL_RECONCILIATIONS = select(reconciliations).order_by(reconciliations.c.pipeline)
_ONE_RECONCILIATION = _ALL_RECONCILIATIONS.where(reconciliations.c.pipeline == bindparam("in_pipeline"))
_NOW = select(DatabaseNow())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """Result of a reconcile."""

    pipeline: str
    as_of: float  # the comparison covers objects stored until then
    source: str  # address of the listing or inventory that was compared
    listed: int
    missing: int
    sent: int  # messages
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation(ReconcileResult):
    """A recorded reconcile."""

    finished_at: float


class Reconciliations:
    """The latest reconcile of each pipeline. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(reconciliations)

    def record(self, comparison: ReconcileResult) -> None:
        """Replace the pipeline's previous result."""
        values = {**asdict(comparison), "source": storable(comparison.source), "finished_at": DatabaseNow()}
        row = reconciliations.c.pipeline == comparison.pipeline

        def put(connection: Connection) -> None:
            connection.execute(self._add.values(values))
            connection.execute(update(reconciliations).where(row).values(values))

        self._database.transact(put)

    def one(self, pipeline: str) -> Reconciliation | None:
        with self._database.reading() as connection:
            row = connection.execute(_ONE_RECONCILIATION, {"in_pipeline": pipeline}).one_or_none()
        return None if row is None else _of(row)

    def all(self) -> Sequence[Reconciliation]:
        with self._database.reading() as connection:
            return [_of(row) for row in connection.execute(_ALL_RECONCILIATIONS)]

    def seconds_since(self, pipeline: str) -> float | None:
        """Return the seconds since the latest reconcile by the database's clock; None if there is none."""
        with self._database.reading() as connection:
            row = connection.execute(_ONE_RECONCILIATION, {"in_pipeline": pipeline}).one_or_none()
            return None if row is None else float(connection.execute(_NOW).scalar_one()) - row.finished_at


def _of(row: AnyRow) -> Reconciliation:
    return Reconciliation(**row._mapping)

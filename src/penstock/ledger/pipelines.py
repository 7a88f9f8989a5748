"""The pipelines a ledger knows, and the schemas it remembers for them."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.records import PipelineRow
from penstock.ledger.rows import pipeline_row
from penstock.ledger.rules import check_pipeline
from penstock.ledger.schema import pipelines, table_schemas

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
_DECLARE = update(pipelines).values(source_schema=bindparam("ddl")).where(pipelines.c.id == bindparam("in_pipeline"))
_REMEMBER = _DECLARE.where(pipelines.c.source_schema.is_(None))


class Pipelines:
    """One row a pipeline."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(pipelines).values(next_seq=1, schema_id=0)

    def ensure(self, pipeline: str) -> PipelineRow:
        """Return the pipeline's row, made when there is none. Raises `ConfigurationError` for too long an id."""
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

    def declare_source_schema(self, pipeline: str, ddl: str) -> None:
        """Replace the schema that is kept."""

        def declare(connection: Connection) -> None:
            connection.execute(self._add, {"id": pipeline})
            connection.execute(_DECLARE, {"in_pipeline": pipeline, "ddl": ddl})

        self._database.transact(declare)

    def remember_source_schema(self, pipeline: str, ddl: str) -> str:
        """Keep the first schema anybody names; answers the one that is kept."""

        def remember(connection: Connection) -> str:
            connection.execute(self._add, {"id": pipeline})
            connection.execute(_REMEMBER, {"in_pipeline": pipeline, "ddl": ddl})
            return str(connection.execute(_ONE, {"in_pipeline": pipeline}).one().source_schema)

        return self._database.transact(remember)

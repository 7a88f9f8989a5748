"""Check the schema of a run against the table before Spark writes a file.

The ledger keeps the table's schema and its number. A run is checked against both, and its commit is refused if the
number has changed meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SchemaMoved, TableError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import PipelineRow
from penstock.pipeline.spark.source.ddl import RESCUED
from penstock.sinks import schema as encoding
from penstock.sinks.parquet import check_partition_types
from penstock.sinks.partitions import resolve
from penstock.sinks.sink import ColumnCheck, Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAgreement:
    """The columns that a run writes, and the table schema that its commit expects or sets."""

    schema: pa.Schema  # of the run's files
    schema_id: int
    new_schema: str | None  # set if the table's schema must change; also for the first batch


Agree = Callable[[pa.Schema], SchemaAgreement]


def agreement(ledger: Ledger, sink: Sink, pipeline: str, wanted: pa.Schema) -> SchemaAgreement:
    """Compare ``wanted`` with the table as committed batches will make it.

    Columns that batches added for new fields may be missing: a batch that did not meet them has no values for them.
    Raises `TableError` naming the first difference.
    """
    row = ledger.ensure_pipeline(pipeline)
    existing = table_columns(sink, row.table_schema)
    if existing is None:
        if isinstance(sink, ColumnCheck):
            sink.check_columns(wanted)
        return SchemaAgreement(schema=wanted, schema_id=row.schema_id, new_schema=encoding.encode(wanted))
    optional = {*row.added_columns, RESCUED.name}
    merged = encoding.merge(existing, wanted, table=sink.uri, optional=optional)
    if isinstance(sink, ColumnCheck):
        sink.check_columns(merged)
    unchanged = row.table_schema is not None and merged.equals(existing)
    return SchemaAgreement(
        schema=wanted, schema_id=row.schema_id, new_schema=None if unchanged else encoding.encode(merged)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The columns of a pipeline's objects and table as they are now."""

    ledger: Ledger
    sink: Sink
    pipeline: str

    def added(self) -> Mapping[str, str]:
        """Return the columns that batches added for new fields: types by name."""
        return self.ledger.ensure_pipeline(self.pipeline).added_columns

    def table(self) -> pa.Schema | None:
        """Return the table's columns, those of batches that are not published yet included; None if it has none."""
        return table_columns(self.sink, self.ledger.ensure_pipeline(self.pipeline).table_schema)


def agreed(agree: Agree, evolution: Evolution, columns: pa.Schema, *, added: Mapping[str, str]) -> SchemaAgreement:
    """Compare the columns of a run with the table; ``added`` are those of new fields that it reads.

    Raises `SchemaMoved` if they do not fit because another batch added columns meanwhile, so that the run is repeated
    with these, else `TableError` naming the first difference.
    """
    try:
        return agree(columns)
    except TableError as error:
        if evolution.added().items() - added.items():
            raise SchemaMoved(f"another batch added columns since this one began: {error}") from error
        raise


def check_partitions(columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise `UsageError` for a missing partition column, `TableError` for one of an unfit type."""
    for field in resolve(partition_by, columns.names):
        if field.source not in columns.names:
            raise UsageError(
                f"The rows have no column {field.source} to partition by (--partition-by); they have "
                f"{', '.join(columns.names)}."
            )
    check_partition_types(columns, partition_by)


def table_columns(sink: Sink | None, committed: str | None) -> pa.Schema | None:
    """Return the table's schema, None if there is no table.

    The ledger's goes first, because a committed batch may not be published yet. ``sink`` None: only that one counts.
    """
    if committed is not None:
        return encoding.decode(committed)
    table = None if sink is None else sink.load()
    return table.schema if table is not None else None


def columns_not_added(sink: Sink, row: PipelineRow) -> pa.Schema | None:
    """Return the table's schema without the columns that batches added for new fields; None if there is no table."""
    found = table_columns(sink, row.table_schema)
    return None if found is None else pa.schema([field for field in found if field.name not in row.added_columns])

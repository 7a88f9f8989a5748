"""Check the schema of a run against the table before Spark writes a file.

The ledger keeps the table's schema and its number. A run is checked against both, and its commit is refused if the
number has changed meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.sinks import schema as encoding
from penstock.sinks.parquet import check_partition_types
from penstock.sinks.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAgreement:
    """The columns that a run writes, and the table schema that its commit expects or sets."""

    schema: pa.Schema  # of the run's files
    schema_id: int
    new_schema: str | None  # set if the table's schema must change; also for the first batch


Agree = Callable[[pa.Schema], SchemaAgreement]


def agreement(ledger: Ledger, sink: Sink, pipeline: str, wanted: pa.Schema) -> SchemaAgreement:
    """Compare ``wanted`` with the table as committed batches will make it.

    Raises `TableError` naming the first difference.
    """
    row = ledger.ensure_pipeline(pipeline)
    existing = table_columns(sink, row.table_schema)
    if existing is None:
        return SchemaAgreement(schema=wanted, schema_id=row.schema_id, new_schema=encoding.encode(wanted))
    merged = encoding.merge(existing, wanted, table=sink.uri)
    unchanged = row.table_schema is not None and merged.equals(existing)
    return SchemaAgreement(
        schema=wanted, schema_id=row.schema_id, new_schema=None if unchanged else encoding.encode(merged)
    )


def check_partitions(columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise `UsageError` for a missing partition column, `TableError` for one of an unfit type."""
    for name in partition_by:
        if name not in columns.names:
            raise UsageError(
                f"The rows have no column {name} to partition by (--partition-by); they have "
                f"{', '.join(columns.names)}."
            )
    check_partition_types(columns, partition_by)


def table_columns(sink: Sink, committed: str | None) -> pa.Schema | None:
    """Return the table's schema, None if there is no table.

    The ledger's goes first, because a committed batch may not be published yet.
    """
    if committed is not None:
        return encoding.decode(committed)
    table = sink.load()
    return table.schema if table is not None else None

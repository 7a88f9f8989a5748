"""Show, compare and change the schema and dialect that an ingest remembers in its ledger."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.app.backends import ledger_exists
from penstock.app.paths import TablePaths
from penstock.app.scope import Scope, scope_ledger
from penstock.app.sources import source_of
from penstock.errors import UsageError
from penstock.ledger.merges import described
from penstock.ledger.records import PipelineRow
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.dead_letters.selection import audited
from penstock.operations.inspection import view
from penstock.pipeline.spark.source.differences import (
    Against,
    Difference,
    check_table,
    checked_reading,
    differences,
    replaced_columns,
    table_differences,
)
from penstock.pipeline.spark.source.formats import KNOWN_SUFFIXES
from penstock.pipeline.spark.source.infer import infer_format, infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.remembered import (
    NOTHING,
    How,
    Origin,
    Remembered,
    inferred_now,
    remembered_of,
)
from penstock.pipeline.spark.table_schema import columns_not_added
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import Sink
from penstock.storage.address import LOCAL, S3

if TYPE_CHECKING:
    from penstock.ledger import Ledger

OBJECTS_MAX = 100_000  # listed for a comparison
SET = "schema set"  # the action's name in the audit log


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSchema:
    """What the ledger remembers of how one pipeline makes its rows; ``remembered`` None: no schema."""

    pipeline: str
    remembered: Remembered | None
    transform: str | None  # name; empty: none. None: unknown
    merge: str | None  # as options of an ingest; None: rows are added as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between what is remembered, what was found or given, and the table."""

    pipeline: str
    source: str  # empty: no objects were read
    objects: Sequence[str]  # addresses of the sample
    notes: Sequence[str]  # of the inference
    differences: Sequence[Difference]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A change as a person gives it. None and empty: stays as it is."""

    schema: str | None = None  # DDL of all columns
    columns: tuple[str, ...] = ()  # DDL of single ones
    format: str | None = None
    csv: Mapping[str, str | bool | int | tuple[str, ...]]  # fields of `CsvOptions`
    infer: bool = False  # from the present objects of ``source`` (default: the remembered one)
    source: str | None = None
    has_transform: bool = False  # the table's columns are made by a transform: they are not compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The schema before and after a change."""

    pipeline: str
    before: Remembered | None
    after: Remembered
    differences: Sequence[Difference]  # between both; none: nothing was changed


def schemas(scope: Scope) -> Sequence[SourceSchema]:
    """Return what is remembered for each pipeline of a scope. Creates nothing."""
    with view(scope) as seen:
        rows = [seen.ledger.pipeline(pipeline) for pipeline in seen.pipelines()]
    return [
        SourceSchema(
            pipeline=row.id,
            remembered=_remembered(row),
            transform=row.transform,
            merge=None if row.merge is None else described(row.merge),
        )
        for row in rows
        if row is not None
    ]


def compare(scope: Scope, *, source: str | None, schema: str | None, clock: Clock | None = None) -> Comparison:
    """Compare the remembered schema with a given one, else with the present objects; and with the table.

    Args:
        scope: The table's scope.
        source: The address of the objects; default: the remembered one.
        schema: A schema to compare with instead of objects.
        clock: Default: the system's.

    Raises:
        UsageError: If nothing is remembered, the source is unknown, or no schema can be inferred from its objects.
    """
    with _one(scope) as (ledger, where):
        row = ledger.pipeline(where.pipeline)
        remembered = None if row is None else _remembered(row)
        if row is None or remembered is None:
            raise UsageError(
                f"No schema is remembered for {where.pipeline}: its first ingest infers and remembers one; until then "
                "`penstock admin schema set` can."
            )
        table = columns_not_added(_sink(where), row)
        now = (clock or SystemClock()).now()
        if schema is not None:
            other = _given(remembered, schema, at=now)
            against, address = Against.GIVEN, ""
        else:
            address = source or _source(remembered)
            other = _inferred(remembered, where, address, at=now)
            against = Against.OBJECTS
    origin = other.origin
    return Comparison(
        pipeline=where.pipeline,
        source=address,
        objects=origin.objects if origin is not None and against is Against.OBJECTS else (),
        notes=origin.notes if origin is not None and against is Against.OBJECTS else (),
        differences=[
            *differences(remembered, other, against, source=address),
            *(table_differences(remembered, table) if table is not None else ()),
        ],
    )


def change(scope: Scope, wanted: SchemaChange, *, clock: Clock | None = None) -> Changed:
    """Change the remembered schema or dialect. The next ingest uses it; rows in the table stay as they are.

    Raises `UsageError` for a schema that the table cannot hold or the format does not read, and if another process
    changed the schema meanwhile.
    """
    with _one(scope) as (ledger, where):
        row = ledger.ensure_pipeline(where.pipeline)
        before = _remembered(row)
        known, now = before or NOTHING, (clock or SystemClock()).now()
        if wanted.infer:
            after = _inferred(known, where, wanted.source or _source(known), at=now)
        else:
            base = known.ddl if wanted.schema is None else wanted.schema
            read = checked_reading(_read(known, wanted), replaced_columns(base, wanted.columns))
            after = known.changed(read.schema_ddl, read, how=How.SET, at=now, source="")
        if not (wanted.has_transform or row.transform):
            table = columns_not_added(_sink(where), row)
            if table is not None:
                check_table(after.ddl, table, uri=str(where.table))
        against = Against.OBJECTS if wanted.infer else Against.GIVEN
        found = differences(known, after, against, source=_source(after))
        if found or before is None or before.read is None:
            details = {"pipeline": where.pipeline, "before": row.source_schema or "", "after": after.ddl}
            with audited(ledger, SET, queue="", details=details, stopped=lambda: False):
                if not ledger.replace_source_schema(row, after.ddl, after.text()):
                    raise UsageError(
                        f"The schema of {where.pipeline} was changed by another process meanwhile; look at it "
                        "(penstock admin schema show) and try again."
                    )
    return Changed(pipeline=where.pipeline, before=before, after=after, differences=found)


@contextmanager
def _one(scope: Scope) -> "Iterator[tuple[Ledger, TablePaths]]":
    """Yield the ledger and the paths of the only table of a scope. Raises `UsageError`."""
    tables = scope.tables_meant
    if len(tables) != 1:
        raise UsageError(f"Which pipeline? Give --pipeline; there are {', '.join(sorted(tables))}.")
    [where] = tables.values()
    if not where.pipeline.startswith((S3, LOCAL)):  # `penstock ingest` names its pipelines by address
        raise UsageError(
            f"The app declares the schema of {where.pipeline} in its code: change it there "
            "(ObjectSource(schema=...)), and restart the workers."
        )
    if not ledger_exists(scope.settings):
        raise UsageError(f"There is no ledger at {scope.name}; the first ingest creates it.")
    ledger = scope_ledger(scope)
    try:
        yield ledger, where
    finally:
        ledger.close()


def _sink(where: TablePaths) -> Sink:
    return open_sink(where.table, pipeline=where.pipeline, partition_by=None, scheme=where.scheme)


def _remembered(row: PipelineRow) -> Remembered | None:
    return remembered_of(row.source_schema, row.source_options)


def _read(known: Remembered, wanted: SchemaChange) -> ReadOptions:
    """Return format and dialect after a change."""
    name = wanted.format or (known.read.format if known.read is not None else None)
    if name is None:
        raise UsageError("The format of the objects is not remembered: give it (--format), such as --format csv.")
    if wanted.csv and name != "csv":
        raise UsageError(f"The options of the dialect are for the format csv, and the format is {name}.")
    same = known.read is not None and known.read.format == name
    csv = known.read.csv if known.read is not None and same else CsvOptions()
    in_paths = "" if known.read is None else known.read.partitions_ddl
    changed = replace(csv, **wanted.csv)  # type: ignore[arg-type] # checked by `SchemaChange`
    return ReadOptions(format=name, csv=changed, partitions_ddl=in_paths)


def _given(remembered: Remembered, schema: str, *, at: float) -> Remembered:
    read = remembered.read or ReadOptions()
    checked = checked_reading(read, schema) if remembered.read is not None else replace(read, schema_ddl=schema)
    return remembered.changed(checked.schema_ddl, read, how=How.GIVEN, at=at, source="")


def _inferred(remembered: Remembered, where: TablePaths, address: str, *, at: float) -> Remembered:
    """Infer from the present objects, with the remembered dialect if a person gave it."""
    if not address:
        raise UsageError(
            f"The source of {where.pipeline} is not remembered: name it, as in `penstock admin schema diff SOURCE`."
        )
    source = source_of(address, where)
    if remembered.by_names:
        source = source.ending_in(KNOWN_SUFFIXES)
    chunks = source.scan(own=where.own).chunks()
    objects = list(islice((ref for chunk in chunks for ref in chunk), OBJECTS_MAX))
    if not objects:
        raise UsageError(f"The source {source} holds no objects to compare with.")
    read, origin = remembered.read, remembered.origin
    is_own = read is not None and _is_given(origin)
    name = read.format if read is not None and is_own else infer_format(objects, source.store, source=source.address)
    csv = read.csv if read is not None and is_own and read.format == name else CsvOptions()
    found = infer_schema(
        objects,
        source.store,
        ReadOptions(
            format=name,
            csv=replace(csv, null_marks=()),
            partitions_ddl="" if read is None else read.partitions_ddl,
        ),
        delimiter_given=is_own,
        source=source.address,
    )
    if is_own:  # marks that a person gave are no difference
        marks = dict.fromkeys((*csv.null_marks, *found.options.csv.null_marks))
        options = replace(found.options, csv=replace(found.options.csv, null_marks=tuple(marks)))
        found = replace(found, options=options)
    return inferred_now(found, at=at, source=source.address, by_names=remembered.by_names)


def _source(remembered: Remembered) -> str:
    return remembered.origin.source if remembered.origin is not None else ""


def _is_given(origin: Origin | None) -> bool:
    return origin is not None and origin.dialect is not How.INFERRED

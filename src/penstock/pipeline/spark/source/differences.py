"""Compare a remembered schema and dialect with what objects have now, with a given schema, and with the table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import TableError, UsageError
from penstock.messaging.wording import counted
from penstock.pipeline.spark.source.ddl import PROVENANCE, RESCUED, format_ddl, parse_ddl, type_text
from penstock.pipeline.spark.source.evidence import ColumnEvidence
from penstock.pipeline.spark.source.options import ReadOptions, checked
from penstock.pipeline.spark.source.remembered import Remembered, RememberedColumn
from penstock.sinks import schema as table_schemas

_FIELDS_SHOWN = 3  # of those inside a column that differ


class Against(StrEnum):
    """The other side of a comparison."""

    OBJECTS = "objects"  # what inference says about the present ones
    GIVEN = "given"  # a schema on the command line
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference, with its reason."""

    against: Against
    name: str  # of the column, or of the option of the dialect
    is_column: bool
    remembered: str | None  # None: the column is not remembered
    found: str | None  # None: the column is not there
    reason: str
    object: str | None = None  # address of the one that shows it
    line: int | None = None
    row: int | None = None


def differences(remembered: Remembered, other: Remembered, against: Against, *, source: str) -> Sequence[Difference]:
    """Return the differences of dialect and columns. ``source``: the address that those of objects are shortened by."""
    return [
        *_dialects(remembered, other, against),
        *_columns(remembered, other, against, source=source),
    ]


def table_differences(remembered: Remembered, table: pa.Schema) -> Sequence[Difference]:
    """Return the differences between remembered columns and those of the table, apart from those that readers add."""
    return [
        Difference(against=Against.TABLE, name=name, is_column=True, remembered=read, found=there, reason=reason)
        for name, read, there, reason in _beside_table(remembered.ddl, table)
    ]


def check_table(ddl: str, table: pa.Schema, *, uri: str) -> None:
    """Raise `UsageError` if rows with these columns could not be added to the table."""
    for name, read, there, _ in _beside_table(ddl, table):
        if read is None:
            raise UsageError(
                f"The table {uri} has a column {name} ({there}), and the schema would lack it: keep it in the schema, "
                "or give --transform if a transform adds it, or ingest into another table (penstock ingest --schema)."
            )
        if there is not None:
            raise UsageError(
                f"The column {name} is {there} in the table {uri} and would become {read}, which it cannot hold: keep "
                f"{there}, or give --transform if a transform casts it to {there}, or ingest into another table "
                "(penstock ingest --schema)."
            )
    try:
        table_schemas.additions(table, parse_ddl(ddl), table=uri)
    except TableError as error:
        raise UsageError(str(error)) from error


def replaced_columns(ddl: str, changes: Sequence[str]) -> str:
    """Return a schema with columns, each given as DDL, in place of those of the same name, or behind the others.

    Raises `UsageError` for text that is no column.
    """
    columns = {field.name.lower(): field for field in (parse_ddl(ddl) if ddl else ())}
    for change in changes:
        for field in parse_ddl(change):
            known = columns.get(field.name.lower())
            columns[field.name.lower()] = field if known is None else known.with_type(field.type)
    return format_ddl(pa.schema(list(columns.values())))


def checked_reading(read: ReadOptions, ddl: str) -> ReadOptions:
    """Return the options with this schema in canonical text. Raises `UsageError` if they do not go together."""
    return checked(ReadOptions(schema_ddl=ddl, format=read.format, csv=read.csv))


def dialect_of(read: ReadOptions | None) -> Mapping[str, Any]:
    """Return the format and, for CSV, the dialect, by name; empty if they are not remembered."""
    if read is None:
        return {}
    csv = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(read.csv).items()}
    return {"format": read.format, **(csv if read.format == "csv" else {})}


def _dialects(remembered: Remembered, other: Remembered, against: Against) -> Iterator[Difference]:
    before, now = dialect_of(remembered.read), dialect_of(other.read)
    first = other.origin.objects[0] if other.origin is not None and other.origin.objects else None
    reason = "as the first object of the sample has it" if against is Against.OBJECTS else "as given"
    for name, value in now.items():
        if name in before and before[name] != value:
            yield Difference(
                against=against,
                name=name,
                is_column=False,
                remembered=_shown(before[name]),
                found=_shown(value),
                reason=reason,
                object=first,
            )


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "none"
        case str() if value.isalnum():
            return value
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def _columns(remembered: Remembered, other: Remembered, against: Against, *, source: str) -> Iterator[Difference]:
    before = {column.name.lower(): column for column in remembered.columns}
    now = {column.name.lower(): column for column in other.columns}
    details = {one.column.lower(): one for one in (other.origin.details if other.origin is not None else ())}
    for folded, column in now.items():
        known = before.get(folded)
        if known is not None and known.type == column.type:
            continue
        inside = _inside(known, column) if known is not None else []
        evidence = _evidence(column, details, inside)
        if inside and against is Against.OBJECTS:
            reason = _reason_inside(inside, details, source=source)
        else:
            reason = _reason(evidence, against, source=source, is_new=known is None)
        yield Difference(
            against=against,
            name=column.name,
            is_column=True,
            remembered=None if known is None else known.type,
            found=column.type,
            reason=reason,
            object=(evidence.object or None) if evidence is not None else None,
            line=evidence.line if evidence is not None else None,
            row=evidence.row if evidence is not None else None,
        )
    for folded, column in before.items():
        if folded not in now:
            lacks = "no object of the sample has it" if against is Against.OBJECTS else "the given schema lacks it"
            yield Difference(
                against=against,
                name=column.name,
                is_column=True,
                remembered=column.type,
                found=None,
                reason=f"{lacks}; rows get NULL" if against is Against.OBJECTS else lacks,
            )


class _FieldChange(NamedTuple):
    """A field inside a column that only one side has, or each with another type."""

    name: str  # with the names around it: a.b
    remembered: str | None
    found: str | None

    def sentence(self, details: Mapping[str, ColumnEvidence], source: str) -> str:
        if self.remembered is None:
            return f"{self.name} is new"
        if self.found is None:
            return f"no object of the sample has {self.name}"
        evidence = details.get(self.name.lower())
        return evidence.sentence(source) if evidence is not None else f"{self.name} is {self.found}"


def _inside(known: RememberedColumn, column: RememberedColumn) -> Sequence[_FieldChange]:
    """Return the differences between the fields of two structs, or of lists of structs; none if a column is neither."""
    before, now = (parse_ddl(f"v {one.type}").field(0).type for one in (known, column))
    return list(_field_changes(before, now, column.name))


def _field_changes(before: pa.DataType, now: pa.DataType, name: str) -> Iterator[_FieldChange]:
    if pa.types.is_list(before) and pa.types.is_list(now):
        yield from _field_changes(before.value_type, now.value_type, name)
        return
    if not (pa.types.is_struct(before) and pa.types.is_struct(now)):
        return
    known = {field.name.lower(): field for field in before}
    for field in now:
        full, was = f"{name}.{field.name}", known.pop(field.name.lower(), None)
        if was is None:
            yield _FieldChange(full, None, type_text(field.type))
        elif type_text(was.type) != type_text(field.type):
            changes = list(_field_changes(was.type, field.type, full))
            yield from changes or [_FieldChange(full, type_text(was.type), type_text(field.type))]
    for field in known.values():
        yield _FieldChange(f"{name}.{field.name}", type_text(field.type), None)


def _reason_inside(inside: Sequence[_FieldChange], details: Mapping[str, ColumnEvidence], *, source: str) -> str:
    sentences = [change.sentence(details, source) for change in inside[:_FIELDS_SHOWN]]
    if more := len(inside) - len(sentences):
        sentences.append(f"{counted(more, 'other field')} differ{'s' if more == 1 else ''}")
    return "; ".join(sentences)


def _evidence(
    column: RememberedColumn, details: Mapping[str, ColumnEvidence], inside: Sequence[_FieldChange]
) -> ColumnEvidence | None:
    """Return the evidence that explains the difference in a column, or that in a field inside it."""
    own = column.origin.evidence if column.origin is not None else None
    if inside:
        return next((details[change.name.lower()] for change in inside if change.name.lower() in details), None)
    nested = next((one for name, one in details.items() if name.startswith(f"{column.name.lower()}.")), None)
    return nested if nested is not None and (own is None or own.cause is None) else own


def _reason(evidence: ColumnEvidence | None, against: Against, *, source: str, is_new: bool) -> str:
    if against is Against.GIVEN:
        return "as given"
    found = evidence.sentence(source) if evidence is not None else "no value in the sample"
    return f"not remembered, so not read; {found}" if is_new else found


def _beside_table(ddl: str, table: pa.Schema) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Yield name, remembered type, type in the table, and reason for each column that differs.

    The first two kinds make an ingest without a transform fail.
    """
    read = {field.name.lower(): field for field in (parse_ddl(ddl) if ddl else ())}
    there = {field.name.lower(): field for field in table_schemas.canonical(table)}
    added = {field.name for field in (*PROVENANCE, RESCUED)}
    for folded, field in there.items():
        if folded in added:
            continue
        kind, wanted = type_text(field.type), read.get(folded)
        if wanted is None:
            yield field.name, None, kind, "only the table has it: an ingest is refused unless a transform adds it"
        elif not table_schemas.same_type(wanted.type, field.type):
            yield (
                field.name,
                type_text(wanted.type),
                kind,
                "the table has another type: an ingest is refused unless a transform casts it",
            )
    for folded, field in read.items():
        if folded not in there:
            yield field.name, type_text(field.type), None, "the table gets it with the next batch"

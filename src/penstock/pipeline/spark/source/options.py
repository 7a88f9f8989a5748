"""How to read the objects of a source. Checked once, on the driver."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.pipeline.spark.source.ddl import OBJECT, RESCUED, format_ddl, parse_ddl
from penstock.pipeline.spark.source.formats import OWN_FORMAT, format_of, unknown_format

_MIB = 1 << 20
_TEXT_DDL = "value STRING"
BINARY_DDL = "path STRING, length BIGINT, content BINARY"
_FIXED_DDL = {"text": _TEXT_DDL, "binary": BINARY_DDL}
_TAB = r"\t"  # as typed on a command line
EVOLUTIONS = ("none", "rescue", "add", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """The CSV dialect. csv_lines.py defines the meaning of a line."""

    header: bool = True  # the first non-blank line names the columns; without a header they are in declared order
    delimiter: str = ","
    quote: str = '"'  # "": nothing is quoted
    # in quotes, it makes a quote or itself behind it literal; see csv_escapes.py. "": doubled quotes only
    escape: str = ""
    null_text: str = ""  # unquoted text that means NULL, in addition to the empty field
    nulls: tuple[str, ...] = ()  # more such texts
    null_marks: tuple[str, ...] = ()  # further ones in columns other than strings, such as NA
    comment: str = ""  # lines that begin with this character are skipped
    skip_lines: int = 0  # before the header or the first row
    unnamed_first: bool = False  # the header lacks a name for the first column, as R writes row names

    def __post_init__(self) -> None:
        for name in ("null_marks", "nulls"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCsv:
    """The part of a dialect that a person gave. None, and no null texts: not given."""

    header: bool = True
    delimiter: str | None = None
    nulls: tuple[str, ...] = ()
    quote: str | None = None
    escape: str | None = None
    comment: str | None = None
    skip_lines: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that were given."""
        default = GivenCsv()
        return tuple(name for name in asdict(default) if getattr(self, name) != getattr(default, name))

    def over(self, csv: CsvOptions) -> CsvOptions:
        """Return a dialect with the given fields in place of its own."""
        given = {name: getattr(self, name) for name in self.names}
        if "header" in given:
            given["unnamed_first"] = False
        return replace(csv, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options for reading the objects of a source. ``schema_ddl`` is canonical once the plan is made; none for text."""

    schema_ddl: str = ""
    format: str = "jsonl"
    reader: str = ""  # module:function, for the format that a function reads
    csv: CsvOptions = CsvOptions()
    partitions_ddl: str = ""  # columns from the paths of objects; see path_partitions.py
    provenance: bool = True  # rows carry _object, and _offset or _row
    quarantine_ratio_max: float = 1.0  # fraction of an object's lines; an object above it fails
    object_bytes_max: int = 1 << 40  # of one object as stored; a larger one fails for good at once
    # a compressed object up to this size is verified before its first row is released
    inflated_bytes_verified_max: int = 64 * _MIB
    inflated_bytes_max: int = 16 << 30  # of one compressed object
    line_bytes_max: int = 128 * _MIB
    whole_bytes_max: int = 1 << 30  # of an object that is one unit, such as a JSON document
    block_bytes: int = 8 * _MIB  # decoded at once
    evolve: str = "none"  # what happens to fields without a column: one of EVOLUTIONS

    @property
    def rescues(self) -> bool:
        """Return True if values that no column takes are kept in the column _rescued."""
        return self.evolve in ("rescue", "add")

    @property
    def columns(self) -> pa.Schema:
        """Return the columns of the rows that the reader yields."""
        in_paths = parse_ddl(self.partitions_ddl) if self.partitions_ddl else ()
        declared = [*parse_ddl(self.schema_ddl), *([RESCUED] if self.rescues else []), *in_paths]
        return pa.schema([*declared, OBJECT, format_of(self.format).position] if self.provenance else declared)

    @property
    def place(self) -> str:
        """Return the name of the column with a row's place in its object: its byte offset, or its number."""
        name: str = format_of(self.format).position.name
        return name


def as_text(options: ReadOptions, *, by_names: bool = False) -> str:
    """Return format, dialect and path partitions as JSON, to be remembered with an inferred schema.

    ``by_names``: the format follows from the names of objects, see `formats.KNOWN_SUFFIXES`.
    """
    remembered = {"format": options.format, "csv": asdict(options.csv), "by_names": by_names}
    if options.partitions_ddl:
        remembered["partitions"] = options.partitions_ddl
    return json.dumps(remembered, separators=(",", ":"))


def is_by_names(text: str) -> bool:
    """Return True if the format in a text of `as_text` follows from the names of objects."""
    return bool(json.loads(text).get("by_names"))


def from_text(text: str) -> ReadOptions:
    """Return the options of `as_text`, with defaults for all others."""
    stored: dict[str, Any] = json.loads(text)
    csv = CsvOptions(**stored["csv"])
    return ReadOptions(format=stored["format"], csv=csv, partitions_ddl=stored.get("partitions", ""))


def checked(options: ReadOptions) -> ReadOptions:
    """Return the options with the schema in canonical form. Raises `UsageError` for invalid options."""
    if options.format == OWN_FORMAT and not options.reader:
        raise unknown_format(options.format)
    format_of(options.format)
    schema = parse_ddl(options.schema_ddl or _FIXED_DDL.get(options.format, ""))
    if options.format == "text":
        _check_text(schema)
    if options.format in ("jsonl", "json"):
        _check_json(schema)
    _check_evolve(options, schema)
    if options.format == "csv":
        _check_flat(schema)
        options = replace(options, csv=checked_csv(options.csv))
    partitions = checked_partitions(options.partitions_ddl, schema.names)
    return replace(options, schema_ddl=format_ddl(schema), partitions_ddl=partitions)


def partitions_ddl(partitions: Mapping[str, str]) -> str:
    """Return a declaration by name and type as schema text."""
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in partitions.items())


def checked_partitions(ddl: str, columns: Iterable[str]) -> str:
    """Return schema text in canonical form.

    Raises `UsageError` if it is invalid, or names one of the columns that are read from the objects.
    """
    if not ddl:
        return ""
    schema = parse_ddl(ddl)
    known = {name.lower() for name in columns}
    for field in schema:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            kind = format_ddl(pa.schema([field]))
            raise UsageError(f"The partition {kind} cannot be read from a path: declare a type with one simple value.")
        if field.name.lower() in known:
            raise UsageError(
                f"The partition {field.name} is also a column of the schema: its values come from the path, so leave "
                "it out of the schema."
            )
    return format_ddl(schema)


def check_evolution(evolve: str) -> None:
    """Raise `UsageError` if there is no such choice."""
    if evolve not in EVOLUTIONS:
        raise UsageError(f"--evolve {evolve!r} is unknown: write one of {', '.join(EVOLUTIONS)}.")


def _check_evolve(options: ReadOptions, schema: pa.Schema) -> None:
    check_evolution(options.evolve)
    if options.evolve != "none" and options.format in _FIXED_DDL:
        raise UsageError(
            f"The format {options.format} has no other fields than its columns: leave out evolve={options.evolve!r}."
        )
    in_paths = parse_ddl(options.partitions_ddl) if options.partitions_ddl else ()
    if options.rescues and any(field.name.lower() == RESCUED.name for field in (*schema, *in_paths)):
        raise UsageError(
            f"The schema has a column {RESCUED.name}, which evolve={options.evolve!r} adds: name yours otherwise."
        )


def _check_text(schema: pa.Schema) -> None:
    if len(schema) != 1 or not pa.types.is_string(schema.field(0).type):
        raise UsageError(
            f"The format text gives one column of strings, not {format_ddl(schema)}: declare '{_TEXT_DDL}', or nothing."
        )


def _check_json(schema: pa.Schema) -> None:
    for field in schema:
        if any(not pa.types.is_string(key) for key in _keys(field.type)):
            kind = format_ddl(pa.schema([field]))
            raise UsageError(
                f"The names of a JSON object are strings, unlike the keys in {kind}: declare MAP<STRING, ...>."
            )


def _keys(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of the keys of all maps in a type."""
    if pa.types.is_map(kind):
        yield kind.key_type
        yield from _keys(kind.item_type)
    elif pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            yield from _keys(kind.field(index).type)


def _check_flat(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            kind = format_ddl(pa.schema([field]))
            raise UsageError(f"The format csv has no place for a list or struct, as in {kind}: declare it as a string.")


def checked_csv(csv: CsvOptions) -> CsvOptions:
    """Return the dialect with the delimiter itself in place of its name. Raises `UsageError` for an invalid one."""
    delimiter = "\t" if csv.delimiter == _TAB else csv.delimiter
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in "\r\n\0":
        raise UsageError(f"The delimiter {csv.delimiter!r} is not one ASCII character within a line, such as ';'.")
    if len(csv.quote) > 1 or not csv.quote.isascii() or csv.quote in ("\r", "\n", "\0", delimiter):
        raise UsageError(f"The quote {csv.quote!r} is neither one ASCII character besides the delimiter nor empty.")
    if len(csv.escape) > 1 or not csv.escape.isascii() or csv.escape in ("\r", "\n", "\0", delimiter):
        raise UsageError(f"The escape {csv.escape!r} is not one ASCII character besides the delimiter, such as '\\'.")
    if (
        len(csv.comment) > 1
        or not csv.comment.isascii()
        or csv.comment in ("\r", "\n", "\0", delimiter, csv.quote or "\n")
    ):
        raise UsageError(
            f"The comment {csv.comment!r} is not one ASCII character besides delimiter and quote, such as '#'."
        )
    if csv.skip_lines < 0:
        raise UsageError(f"The number of lines to skip is {csv.skip_lines}; it has to be 0 or more.")
    nulls: Sequence[Any] = csv.nulls
    for text in nulls:
        if not isinstance(text, str) or any(character in text for character in "\r\n\0"):
            raise UsageError(f"The null text {text!r} is not text within a line, such as 'NA'.")
    return replace(csv, delimiter=delimiter)

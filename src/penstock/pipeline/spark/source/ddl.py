"""Convert schema text (Spark's DDL) to the Arrow schema that the reader decodes under, and back.

Parsed here, not by Spark, so that a mistake is reported before a JVM starts and executors need none of Spark's types.
The grammar is the part of Spark's that makes sense for a source: ``name type`` or ``name: type``, separated by commas,
other than plain names in backticks, comments allowed.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import UsageError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
OBJECT, OFFSET, ROW = pa.field("_object", pa.string()), pa.field("_offset", pa.int64()), pa.field("_row", pa.int64())
RESCUED = pa.field("_rescued", pa.string())  # JSON: what no column takes
PROVENANCE = (OBJECT, OFFSET, ROW)  # the columns that the reader may add: the object, and a position in it

_PLAIN = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_REFUSED = frozenset(
    {"interval", "char", "character", "varchar", "void", "null", "object", "time"} | {"geometry", "geography"}
)
_NAMES = (
    (pa.int8(), "TINYINT"),
    (pa.int16(), "SMALLINT"),
    (pa.int32(), "INT"),
    (pa.int64(), "BIGINT"),
    (pa.float32(), "FLOAT"),
    (pa.float64(), "DOUBLE"),
    (pa.bool_(), "BOOLEAN"),
    (pa.string(), "STRING"),
    (pa.binary(), "BINARY"),
    (pa.date32(), "DATE"),
    (TIMESTAMP, "TIMESTAMP"),
    (TIMESTAMP_NTZ, "TIMESTAMP_NTZ"),
)
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<mark>[<>(),:]))""",
)
DEPTH_MAX = 32  # of a type
_PLAIN_NAME = re.compile(r"\S(?:.*\S)?")


def may_be_column(name: str, *, depth: int = 0) -> bool:
    """Return True if a column, or a field of a struct at ``depth``, can have this name.

    It cannot be empty or have half a surrogate pair, and a column neither blanks at an end nor the name of one that the
    reader adds.
    """
    if not name.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        return False
    if depth:
        return bool(name)
    return bool(_PLAIN_NAME.fullmatch(name)) and name.lower() not in {field.name for field in PROVENANCE}


def parse_ddl(ddl: str) -> pa.Schema:
    """Parse schema text into an Arrow schema, every field nullable.

    Raises `UsageError` for invalid text, a type that no source can hold (such as intervals), NOT NULL, a column given
    twice, and a column named like one that the reader adds.
    """
    fields = _Parser(ddl).schema()
    _refuse_twice(fields, where="the schema")
    for own in PROVENANCE:
        if any(field.name.lower() == own.name for field in fields):
            raise UsageError(f"The schema has a column {own.name}, which the reader adds itself: name yours otherwise.")
    return pa.schema(fields)


def format_ddl(schema: pa.Schema) -> str:
    """Return a schema in its canonical text, which Spark and `parse_ddl` both read."""
    return ", ".join(f"{_quoted(field.name)} {type_text(field.type)}" for field in schema)


def spark_ddl(schema: pa.Schema) -> str:
    """Return a schema as text that means the same with all settings of Spark: of timestamps, and of reserved words."""
    return ", ".join(f"{_always_quoted(field.name)} {_type(field.type, for_spark=True)}" for field in schema)


def type_text(kind: pa.DataType) -> str:
    """Return the canonical text of a type."""
    return _type(kind, for_spark=False)


def _type(kind: pa.DataType, *, for_spark: bool) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{_type(kind.value_type, for_spark=for_spark)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_type(kind.key_type, for_spark=for_spark)}, {_type(kind.item_type, for_spark=for_spark)}>"
    if pa.types.is_struct(kind):
        quoted = _always_quoted if for_spark else _quoted
        fields = (f"{quoted(field.name)}: {_type(field.type, for_spark=for_spark)}" for field in kind)
        return f"STRUCT<{', '.join(fields)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if for_spark and kind == TIMESTAMP:
        return "TIMESTAMP_LTZ"  # spark.sql.timestampType decides the meaning of TIMESTAMP
    return next(name for plain, name in _NAMES if plain == kind)


def _always_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else _always_quoted(name)


def _refuse_twice(fields: list[pa.Field], *, where: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise UsageError(
                f"The column {field.name!r} appears twice in {where} (names that differ only in case are the same)."
            )
        seen.add(field.name.lower())


class _Parser:
    """Recursive descent over one schema text."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = list(self._scan())
        self._at = 0

    def _scan(self) -> Iterator[tuple[str, str]]:
        at = 0
        text = self._ddl.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise UsageError(f"The schema {self._ddl!r} cannot be read at {text[at:].strip()[:20]!r}.")
            kind = str(match.lastgroup)
            value = match.group(kind)
            yield kind, value.replace("``", "`") if kind == "quoted" else value
            at = match.end()

    def schema(self) -> list[pa.Field]:
        if not self._tokens:
            raise UsageError("The schema is empty: write it as 'id bigint, ts timestamp, name string'.")
        fields = [self._field(0)]
        while self._take(","):
            fields.append(self._field(0))
        if self._at < len(self._tokens):
            raise self._unexpected("a comma or the end")
        return fields

    def _field(self, depth: int) -> pa.Field:
        name = self._name()
        self._take(":")
        field = pa.field(name, self._type(name, depth))
        if self._take_word("not"):
            raise UsageError(f"The column {name!r} is NOT NULL: a source cannot promise that, filter in the transform.")
        if self._take_word("comment"):
            self._comment()
        return field

    def _name(self) -> str:
        kind, value = self._next("a column's name")
        if kind not in ("word", "quoted"):
            raise self._unexpected("a column's name", back=1)
        return value

    def _comment(self) -> None:
        kind, _ = self._next("the comment's text")
        if kind != "text":
            raise self._unexpected("the comment's text", back=1)

    def _type(self, column: str, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise UsageError(f"The type of {column!r} is nested deeper than {DEPTH_MAX} levels.")
        kind, value = self._next(f"the type of {column!r}")
        name = value.lower()
        if kind != "word":
            raise self._unexpected(f"the type of {column!r}", back=1)
        if name in _PLAIN:
            return _PLAIN[name]
        if name in _DECIMALS:
            return self._decimal(column)
        if name == "array":
            return self._array(column, depth)
        if name == "map":
            return self._map(column, depth)
        if name == "struct":
            return self._struct(column, depth)
        if name == "variant":
            raise UsageError(
                f"The column {column!r} has type {value}, which tables of this version cannot hold: declare STRING, "
                "which takes any JSON value as its text."
            )
        if name in _REFUSED:
            raise UsageError(f"The column {column!r} has type {value}, which this source cannot read: leave it out.")
        raise UsageError(
            f"The column {column!r} has the unknown type {value!r}: name one of Spark's, such as long, double, string, "
            "date or timestamp."
        )

    def _decimal(self, column: str) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number(column)
            if self._take(","):
                scale = self._number(column)
            self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise UsageError(f"The column {column!r} is decimal({precision},{scale}): at most 38 digits, scale within.")
        return pa.decimal128(precision, scale)

    def _number(self, column: str) -> int:
        kind, value = self._next(f"a number for the decimal {column!r}")
        if kind != "word" or not re.fullmatch(r"[0-9]{1,3}", value):
            raise self._unexpected(f"a number for the decimal {column!r}", back=1)
        return int(value)

    def _array(self, column: str, depth: int) -> pa.DataType:
        self._expect("<")
        item = self._type(column, depth + 1)
        self._expect(">")
        return pa.list_(pa.field("element", item))  # Spark's own name for it, which Spark compares

    def _map(self, column: str, depth: int) -> pa.DataType:
        self._expect("<")
        key = self._type(column, depth + 1)
        self._expect(",")
        value = self._type(column, depth + 1)
        self._expect(">")
        if pa.types.is_map(key):
            raise UsageError(f"The column {column!r} has a map as the key of a map, which Spark does not have.")
        return pa.map_(key, value)

    def _struct(self, column: str, depth: int) -> pa.DataType:
        self._expect("<")
        fields = [self._field(depth + 1)]
        while self._take(","):
            fields.append(self._field(depth + 1))
        self._expect(">")
        _refuse_twice(fields, where=f"{column!r}")
        return pa.struct(fields)

    def _next(self, expected: str) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise UsageError(f"The schema {self._ddl!r} ends where {expected} should follow.")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, mark: str) -> bool:
        return self._take_token("mark", mark)

    def _take_word(self, word: str) -> bool:
        return self._take_token("word", word)

    def _take_token(self, kind: str, value: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at][0] == kind
        if found and self._tokens[self._at][1].lower() == value:
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._unexpected(f"{mark!r}")

    def _unexpected(self, expected: str, *, back: int = 0) -> UsageError:
        at = self._at - back
        found = repr(self._tokens[at][1]) if at < len(self._tokens) else "the end"
        return UsageError(f"The schema {self._ddl!r} has {found} where {expected} should be.")

"""Parse the schemas of Avro objects, and find the Arrow types of their values.

A name is resolved as the specification says (Avro 1.12, "Names"): with its namespace, else in the enclosing one. An
unknown or invalid logical type is ignored. Columns have no place for a type that contains itself, so it is refused, and
so are schemas that grow without bounds when their names are expanded.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.pipeline.spark.source.ddl import TIMESTAMP

DIGITS_WIDEST = 76
UNION_MEMBERS_MAX = 64  # so that the number of a member is one byte
_DEPTH_MAX = 64
_TYPES_MAX = 10_000  # with the types of names counted each time they are used
_NAME_CHARS_SHOWN = 100

_LEAST_BYTES = {"null": 0, "float": 4, "double": 8}
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_LOGICAL = frozenset(
    {
        ("int", "date"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        ("string", "uuid"),
        ("bytes", "decimal"),
        ("fixed", "decimal"),
        *(("long", f"{zone}timestamp-{unit}") for zone in ("", "local-") for unit in ("millis", "micros", "nanos")),
    }
)
_FIXED_SIZES = {"uuid": 16, "duration": 12}  # bytes of the logical types that need a fixed of this size
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


class Unsupported(Exception):
    """A schema that is invalid, or that no table has columns for. The text is the end of a sentence about an object."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AvroField:
    """A field of a record, with the other names that the writer gave it."""

    name: str
    type: "AvroType"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AvroType:
    """A type. Which of the fields below ``least_bytes`` are set depends on the kind."""

    kind: str  # as the specification calls it
    logical: str = ""  # a logical type that fits the kind
    types: int = 1  # this type and those inside it
    depth: int = 0
    least_bytes: int = 1  # that a value takes
    precision: int = 0
    scale: int = 0
    size_bytes: int = 0  # of a fixed
    symbols: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    item: "AvroType | None" = None  # of an array, and the values of a map
    members: "tuple[AvroType, ...]" = ()

    @property
    def inner(self) -> "AvroType":
        """Return the type of an array's items or a map's values."""
        assert self.item is not None, "an array or a map"
        return self.item

    @property
    def null_place(self) -> int | None:
        """Return the place of null in a union."""
        return next((place for place, member in enumerate(self.members) if member.kind == "null"), None)

    @property
    def present(self) -> "tuple[tuple[int, AvroType], ...]":
        """Return the members of a union other than null, with their places."""
        return tuple((place, member) for place, member in enumerate(self.members) if member.kind != "null")

    @property
    def widened(self) -> pa.DataType | None:
        """Return the type that a union's members have together, as in Spark: of int and long, of float and double."""
        kinds = {member.kind for _, member in self.present}
        if any(member.logical for member in self.members):
            return None
        return {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}.get(
            frozenset(kinds)
        )


def parse_schema(text: bytes) -> AvroType:
    """Return the type of an object's rows. Raises `Unsupported` unless it is a record with a valid schema."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unsupported("has a schema that is not JSON") from error
    try:
        found = _SchemaParser().parse(schema, "", 0)
    except RecursionError as error:
        raise Unsupported("has a schema that is nested too deeply") from error
    if found.kind != "record":
        raise Unsupported(f"has rows of the type {found.kind}, and only records have columns")
    return found


def arrow_type(found: AvroType) -> pa.DataType:
    """Return the type that holds the values of an Avro type."""
    match found.kind:
        case "array":
            return pa.list_(pa.field("element", arrow_type(found.inner)))
        case "map":
            return pa.map_(pa.string(), arrow_type(found.inner))
        case "record":
            return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in found.fields])
        case "union":
            return _arrow_union(found)
    if found.logical == "decimal":
        wide = found.precision > 38
        return (pa.decimal256 if wide else pa.decimal128)(found.precision, found.scale)
    return logical_type(found) or _ARROW[found.kind]


def logical_type(found: AvroType) -> pa.DataType | None:
    """Return the Arrow type of a logical type other than decimal; None if there is no logical type."""
    name = found.logical
    if name in ("uuid", "duration"):
        return pa.string()
    if name == "date":
        return pa.date32()
    if name.startswith("time-"):
        return pa.time32("ms") if name == "time-millis" else pa.time64("us")
    if "timestamp" in name:
        zone = None if name.startswith("local") else TIMESTAMP.tz
        return pa.timestamp(_UNITS[name.rpartition("-")[2]], tz=zone)
    return None


def _arrow_union(found: AvroType) -> pa.DataType:
    if not found.present:
        return pa.null()
    if found.widened is not None:
        return found.widened
    if len(found.present) == 1:
        return arrow_type(found.present[0][1])
    return pa.struct(
        [pa.field(member_name(number), arrow_type(member)) for number, (_, member) in enumerate(found.present)]
    )


def member_name(number: int) -> str:
    """Return the name of a union's member in a struct, counted without null, as Spark calls it."""
    return f"member{number}"


class _SchemaParser:
    """One parse of one schema."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}  # by full name; None: it is being defined

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > _DEPTH_MAX:
            raise Unsupported(f"has a schema that is nested deeper than {_DEPTH_MAX} levels")
        match schema:
            case str():
                found = self._by_name(schema, namespace)
            case list():
                found = self._union(schema, namespace, depth)
            case {"type": str(kind)} if kind in _NAMED or kind in ("array", "map"):
                found = self._complex(kind, schema, namespace, depth)
            case {"type": str(kind)}:
                found = _with_logical(self._by_name(kind, namespace), schema)
            case {"type": list() | dict() as inner}:
                found = self.parse(inner, namespace, depth + 1)
            case _:
                raise Unsupported(f"has a schema with {_shown(schema)}, which is no type")
        if found.types > _TYPES_MAX:
            raise Unsupported(f"has a schema of more than {_TYPES_MAX} types")
        if depth + found.depth > _DEPTH_MAX:
            raise Unsupported(f"has a schema that is nested deeper than {_DEPTH_MAX} levels")
        return found

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(kind=name, least_bytes=_LEAST_BYTES.get(name, 1))
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise Unsupported(f"has a schema in which the type {_shown(name)} contains itself")
                return found
        raise Unsupported(f"has a schema with the unknown type {_shown(name)}")

    def _union(self, members: Sequence[Any], namespace: str, depth: int) -> AvroType:
        if len(members) > UNION_MEMBERS_MAX:
            raise Unsupported(f"has a schema with a union of more than {UNION_MEMBERS_MAX} types")
        found = tuple(self.parse(member, namespace, depth + 1) for member in members)
        return AvroType(kind="union", members=found, types=_types(found), depth=_depth(found))

    def _complex(self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        if kind in ("array", "map"):
            item = self.parse(schema.get("items" if kind == "array" else "values"), namespace, depth + 1)
            return AvroType(kind=kind, item=item, types=item.types + 1, depth=item.depth + 1)
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise Unsupported(f"has a schema with a type {kind} without a name")
        inside = schema.get("namespace")
        full = _full_name(name, inside if isinstance(inside, str) else namespace)
        self._named[full] = None
        if kind == "fixed":
            found = _fixed(schema)
        elif kind == "enum":
            found = AvroType(kind=kind, symbols=_texts(schema.get("symbols"), "the symbols of an enum"))
        else:
            found = self._record(schema, full.rpartition(".")[0], depth)
        self._named[full] = found
        return found

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        fields = []
        given = schema.get("fields")
        if not isinstance(given, list):
            raise Unsupported("has a schema with a record without fields")
        for one in given:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str):
                raise Unsupported("has a schema with a field without a name")
            aliases = one.get("aliases") or ()
            fields.append(
                AvroField(
                    name=name,
                    type=self.parse(one.get("type"), namespace, depth + 1),
                    aliases=_texts(aliases, "the aliases of a field"),
                )
            )
            if sum(field.type.types for field in fields) > _TYPES_MAX:
                break  # the caller refuses it
        found = [field.type for field in fields]
        return AvroType(
            kind="record",
            fields=tuple(fields),
            types=_types(found),
            depth=_depth(found),
            least_bytes=sum(one.least_bytes for one in found),
        )


def _fixed(schema: Mapping[str, Any]) -> AvroType:
    size = schema.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise Unsupported("has a schema with a fixed type without a valid size")
    return _with_logical(AvroType(kind="fixed", size_bytes=size, least_bytes=size), schema)


def _with_logical(found: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Return the type with the logical type that the schema gives it, if that is known and valid."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return found
    if found.kind == "fixed" and found.size_bytes == _FIXED_SIZES.get(logical):
        return replace(found, logical=logical)
    if (found.kind, logical) not in _LOGICAL:
        return found
    if logical != "decimal":
        return replace(found, logical=logical)
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return found
    if not (1 <= precision <= DIGITS_WIDEST and 0 <= scale <= precision):
        return found
    return replace(found, logical=logical, precision=precision, scale=scale)


def _texts(given: Any, subject: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise Unsupported(f"has a schema in which {subject} are not texts")
    return tuple(given)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _types(found: Sequence[AvroType]) -> int:
    return 1 + sum(one.types for one in found)


def _depth(found: Sequence[AvroType]) -> int:
    return 1 + max((one.depth for one in found), default=0)


def _shown(value: Any) -> str:
    return repr(value)[:_NAME_CHARS_SHOWN]

"""Random walks of a schema, the objects that a producer writes on the way, and an oracle over all their values.

A walk is a series of objects. Before each one, the producer may add, drop, rename or retype fields. The oracle knows
the text of every value and shares no code with the reader: a value has to be in its column, in ``_rescued`` with its
text, or in a quarantined line.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import strategies as st

NAMES = ("id", "amount", "name", "seen", "tags", "place", "Extra", "é x", "b.c")
DDL = "id bigint, amount double, name string, seen timestamp, tags array<bigint>, place struct<city: string, zip: int>"
CSV_DDL = "id bigint, amount double, name string, seen timestamp"

_WORDS = st.sampled_from(["x", "", "12", "true", "NaN", "2024-05-06", 'ü"\\', "a,b", "007", "-1.5e3", "null"])
_INTS = st.one_of(st.integers(-9, 9), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(1 << 63, 1 << 70)).map(str)
_FLOATS = st.sampled_from(["1.5", "-0.25", "1e3", "1.50", "2E-2", "0.1"])
_MOMENTS = st.sampled_from(['"2024-05-06T07:08:09Z"', '"2024-05-06 07:08:09.123456+02:00"', '"2024-05-06T07:08:09"'])
TEXTS: Mapping[str, st.SearchStrategy[str]] = {
    "int": _INTS,
    "float": _FLOATS,
    "bool": st.sampled_from(["true", "false"]),
    "word": _WORDS.map(json.dumps),
    "moment": _MOMENTS,
    "ints": st.lists(_INTS, max_size=2).map(lambda items: f"[{','.join(items)}]"),
    "words": st.lists(_WORDS.map(json.dumps), max_size=2).map(lambda items: f"[{', '.join(items)}]"),
    "place": st.sampled_from(
        [
            *('{"city":"B","zip":1}', '{"city":"B"}', '{"zip":"x"}', '{"city":"B","zip":1,"land":"D"}'),
            *("{}", '{"land":null}'),
        ]
    ),
    "null": st.just("null"),
}
# with one spelling per value, since Parquet stores none
PARQUET_TEXTS: Mapping[str, st.SearchStrategy[str]] = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1).map(str),
    "float": st.sampled_from(["1.5", "-0.25", "1000.0"]),
    "bool": st.sampled_from(["true", "false"]),
    "word": _WORDS.map(json.dumps),
    "ints": st.lists(st.integers(-9, 9), max_size=2).map(lambda items: json.dumps(items, separators=(",", ":"))),
    "place": st.sampled_from(['{"city":"B","zip":1}', '{"city":"B","zip":1,"land":"D"}']),
    "null": st.just("null"),
}
PARQUET_KINDS: Mapping[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "word": pa.string(),
    "moment": pa.string(),
    "ints": pa.list_(pa.int64()),
    "place": pa.struct([("city", pa.string()), ("zip", pa.int64()), ("land", pa.string())]),
    "null": pa.null(),
}
CSV_TEXTS: Mapping[str, st.SearchStrategy[str]] = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1).map(str),
    "float": _FLOATS,
    "bool": st.sampled_from(["true", "false"]),
    "word": st.sampled_from(["x", "12", "2024-05-06", "a b", "007", "NA"]),
    "moment": st.sampled_from(["2024-05-06T07:08:09Z", "2024-05-06 07:08:09"]),
    "null": st.just(""),
}


@dataclass
class Line:
    """One line of an object: its fields as text, or None for a line that is no record."""

    fields: dict[str, str] | None
    raw: str


@dataclass
class Walk:
    objects: list[list[Line]] = field(default_factory=list)
    kinds: list[dict[str, str]] = field(default_factory=list)  # of the fields of each object


@st.composite
def walks(draw: st.DrawFn, texts: Mapping[str, st.SearchStrategy[str]], *, csv: bool = False, bad: bool = True) -> Walk:
    """Draw a series of objects whose schema changes. ``bad``: some lines are no records."""
    kinds = {"id": "int", "amount": "float", "name": "word", "seen": "moment" if "moment" in texts else "word"}
    walk = Walk()
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            _step(draw, kinds, list(texts), keep="id" if csv else None)
        walk.kinds.append(dict(kinds))
        walk.objects.append([_line(draw, kinds, texts, csv=csv, bad=bad) for _ in range(draw(st.integers(1, 4)))])
    return walk


def _step(draw: st.DrawFn, kinds: dict[str, str], choices: list[str], *, keep: str | None) -> None:
    """Change the schema: add, drop, rename or retype a field."""
    unused = [name for name in NAMES if name.lower() not in {known.lower() for known in kinds}]
    changed = [name for name in kinds if name != keep]
    match draw(st.sampled_from(["add", "drop", "rename", "retype"])):
        case "add" if unused:
            kinds[draw(st.sampled_from(unused))] = draw(st.sampled_from(choices))
        case "drop" if changed:
            del kinds[draw(st.sampled_from(changed))]
        case "rename" if changed and unused:
            kinds[draw(st.sampled_from(unused))] = kinds.pop(draw(st.sampled_from(changed)))
        case "retype" if changed:
            kinds[draw(st.sampled_from(changed))] = draw(st.sampled_from(choices))
        case _:
            pass


def _line(
    draw: st.DrawFn, kinds: Mapping[str, str], texts: Mapping[str, st.SearchStrategy[str]], *, csv: bool, bad: bool
) -> Line:
    if bad and not csv and draw(st.integers(0, 9)) == 0:
        return Line(None, draw(st.sampled_from(["nope", "[1]", '{"id":'])))
    fields = {name: draw(texts[kind if draw(st.integers(0, 5)) else "null"]) for name, kind in kinds.items()}
    if csv:
        fields["id"] = fields["id"] or "0"  # otherwise the line may be blank
        return Line(fields, ",".join(fields.values()))
    members = (f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in fields.items())
    return Line(fields, "{" + ", ".join(members) + "}")


def check_values(
    lines: Sequence[Line], rows: Mapping[int, Mapping[str, Any]], bad: Mapping[int, bytes], *, csv: bool
) -> None:
    """Check that every value of an object is somewhere. ``rows`` and ``bad`` are by the number of the line."""
    for number, line in enumerate(lines):
        assert (number in rows) != (number in bad), f"line {number} is lost or there twice"
        if number in bad:
            assert bad[number].decode().strip() == line.raw.strip()
            continue
        assert line.fields is not None, f"{line.raw!r} became a row"
        _check_row(line.fields, rows[number], csv=csv)


def _check_row(fields: Mapping[str, str], row: Mapping[str, Any], *, csv: bool) -> None:
    rescued = json.loads(row.get("_rescued") or "{}", parse_int=str, parse_float=str, parse_constant=_no)
    for name, text in fields.items():
        value = text or None if csv else json.loads(text, parse_float=Decimal)
        if value is None:
            assert row.get(name) is None
            assert name not in rescued
        elif name in rescued:
            expected = text if csv else json.loads(text, parse_int=str, parse_float=str)
            assert _without_nulls(rescued[name]) == _without_nulls(expected), (name, text)
        else:
            assert holds(row.get(name), value, csv=csv), (name, text, row)
    for name, value in row.items():
        assert value is None or name == "_rescued" or name in fields, f"{name} was made up: {value!r}"
    assert rescued.keys() <= fields.keys()


def holds(column: Any, value: Any, *, csv: bool = False) -> bool:
    """Return True if a column's value is a source's value."""
    if csv:
        return _holds_text(column, value)
    match column:
        case bool():
            return value is column
        case float() if not math.isfinite(column):  # written in quotes, as Spark reads it
            return value in ("NaN", "INF", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity")
        case int() | float() | Decimal():
            return not isinstance(value, bool | str | list | dict) and _same_number(column, value)
        case datetime():
            return isinstance(value, str) and _moment(value) == column
        case str():
            return column == value or (not isinstance(value, str) and _is_text_of(column, value))
        case list():
            return isinstance(value, list) and len(value) == len(column) and all(map(_holds_or_null, column, value))
        case dict() if value == []:  # an empty struct
            return all(item is None for item in column.values())
        case dict():
            return isinstance(value, dict) and all(
                item is None or holds(column.get(name), item) for name, item in value.items()
            )
        case _:
            return False


def _holds_text(column: Any, text: str) -> bool:
    match column:
        case bool():
            return text == str(column).lower()
        case int() | float() | Decimal():
            return _same_number(column, Decimal(text))
        case datetime():
            return _moment(text) == column
        case date():
            return text == column.isoformat()
        case _:
            return bool(column == text)


def _holds_or_null(column: Any, value: Any) -> bool:
    return (column is None and value is None) or holds(column, value)


def _same_number(column: float | Decimal, value: int | Decimal) -> bool:
    if isinstance(column, float):  # a double holds the nearest number, as documented
        return math.isclose(column, float(value), rel_tol=1e-15)
    return column == value


def _is_text_of(column: str, value: Any) -> bool:
    try:
        return bool(_without_nulls(json.loads(column, parse_float=Decimal)) == _without_nulls(value))
    except ValueError:
        return False


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _without_nulls(value: Any) -> Any:
    """Return the value without fields that are null, which Parquet has in each struct."""
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(item) for name, item in value.items() if item is not None}


def _no(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def unknown_counts(lines: Sequence[Line], is_known: Callable[[str], bool]) -> Counter[str]:
    """Return the lines that have each field without a column, of the top level: also those with a wrong type."""
    return Counter(
        name
        for line in lines
        for name, text in (line.fields or {}).items()
        if text not in ("", "null") and not is_known(name)
    )


def wrong_type_counts(rows: Mapping[int, Mapping[str, Any]], is_known: Callable[[str], bool]) -> Counter[str]:
    """Return the rows that have each column's value in ``_rescued`` only, which `check_values` finds correct."""
    return Counter(
        name
        for row in rows.values()
        for name in json.loads(row.get("_rescued") or "{}")
        if is_known(name) and row[name] is None
    )


def columns_of(table: Path, *, declared: Collection[str]) -> dict[str, str]:
    """Return the types of a Delta table's columns that were not declared, by name."""
    own = {*declared, "_rescued", "_object", "_offset"}
    fields = json.loads(DeltaTable(str(table)).schema().to_json())["fields"]
    return {
        one["name"]: one["type"] if isinstance(one["type"], str) else one["type"]["type"]
        for one in fields
        if one["name"] not in own
    }

"""A line has the same row, or the same reason, alone and among any neighbours: all types, JSON lines and CSV.

Each format has one decoder for many lines: every line is decoded alone, then all of them in groups, with and without a
bad line that makes the decoder process the block line by line.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest

from penstock.pipeline.spark.source.blocks import Decoder
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import Layout
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.options import CsvOptions

FLAT = (
    "t tinyint, h smallint, i int, l bigint, f float, d double, b boolean, s string, y date, ts timestamp, "
    "tn timestamp_ntz, n decimal(10,2), n0 decimal(38,0), n9 decimal(18,9), n38 decimal(38,38)"
)
NESTED = (
    "al array<bigint>, af array<float>, ay array<date>, at array<timestamp>, an array<decimal(38,10)>, "
    "aa array<array<double>>, o struct<i: smallint, f: double, n: decimal(38,0), y: date, t: timestamp_ntz, "
    "s: string, e: array<boolean>, o: struct<d: decimal(20,20), l: array<int>>>"
)
MAPS = "m map<string, double>, ms map<string, string>, o struct<n: map<string, array<timestamp>>, b: binary>, b binary"
LINES = 600  # more than 512: such a group is narrowed down, not judged line by line
GROUPS = (3, 40, LINES)
Fate = tuple[object, ...]

INTEGERS = [0, 1, -1, 2**7 - 1, 2**7, -(2**7) - 1, 2**15, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64]
NUMBERS = """
-0 0.0 -0.0 1.0 1e2 1E2 1e-2 0.1 1.5 -1.25 1.230 1e400 -1e400 9e308 1.7976931348623157e308 1e39 3.4028236e38 3.4e38
1e-400 5e-324 1e-46 NaN Infinity -Infinity Inf -Inf -NaN 01 +1 .5 5. 1e 0x1f 0Xff - 99999999.99 99999999.999 100000000
1e7 1e8 0.001 1e-39 1e-38 0.00000000000000000000000000000000000001 99999999999999999999999999999999999999 11 1e38 0e99
1_000 1e+2
"""
WORDS = """
"-INF" "+Infinity" INF +INF [-Inf] [+INF,-NaN] "aGk=" "aGk"
true false null True TRUE False tru yes NULL "" "x" "1" "1.5" "+1" ".5" "é" "\\u00e9" "\\ud800" "\\u0031" "a\\tb"
"NaN" "2024-05-06" "2024-02-30" "0000-02-29" "9999-12-31" "2024-5-6" "2024-05-06T07" "2024-05-06T07:08:09.123456"
"2024-05-06T07:08:09.1234567" "2024-05-06T07:08:09.123456789Z" "2024-05-06T07:08:09.1234567890" "2024-05-06T07:08:09Z"
"2024-05-06T07:08:09+02:30" "2024-05-06T07:08:09+0230" "2024-05-06T24:00:00" "2024-05-06T07:08:60"
"1969-12-31T23:59:59.9Z" "2024-05-06Z" "0001-01-01T00:00:00" "9999-12-31T23:59:59.999999" [] {} [1] [null]
["2024-05-06"] [1e400] [[1.5],[]] [[1]] {"i":1} {"o":{"d":0.5}} {"e":[true,null]} {"i":1,"i":2} {"f":1e400}
{"n":1e-39} {"\\ud800":[Inf]} {"x":{"y":"\\udc00"}} {"o":{"d":11}} {"y":"2024-02-30"}
"""
FIXED = [*NUMBERS.split(), *WORDS.split(), '"2024-05-06 07:08:09"', '" 1"', "1 ", " 1"]
BY_SHAPE: dict[str, Callable[[random.Random], str]] = {
    "int": lambda rng: str(rng.choice(INTEGERS) + rng.choice((-1, 0, 0, 1))),
    "digits": lambda rng: _signed(rng) + "".join(rng.choices("0123456789", k=rng.randrange(1, 42))),
    "point": lambda rng: f"{_signed(rng)}{rng.randrange(10 ** rng.randrange(1, 12))}.{_digits(rng, 40)}",
    "exponent": lambda rng: f"{_signed(rng)}{rng.randrange(100)}.{_digits(rng, 20)}e{rng.randrange(-330, 330)}",
    "small": lambda rng: f"{rng.randrange(1000)}e{rng.randrange(-45, 45)}",
    "day": lambda rng: f'"{rng.randrange(10_000):04}-{rng.randrange(14):02}-{rng.randrange(33):02}"',
    "time": lambda rng: (
        f'"{rng.randrange(1, 10_000):04}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}{rng.choice("T ")}'
        f"{rng.randrange(26):02}:{rng.randrange(61):02}:{rng.randrange(61):02}.{_digits(rng, 10)}"
        f'{rng.choice(("", "Z", "+01:00", "-2330"))}"'
    ),
}


def _signed(rng: random.Random) -> str:
    return rng.choice(("", "", "-"))


def _digits(rng: random.Random, most: int) -> str:
    return "".join(rng.choices("0123456789", k=rng.randrange(1, most)))


def value(rng: random.Random) -> str:
    return rng.choice(FIXED) if rng.random() < 0.4 else rng.choice(list(BY_SHAPE.values()))(rng)


def mostly_valid(rng: random.Random, kind: pa.DataType) -> str:
    """Return a value that is usually of the type: bad values alone would test little."""
    if rng.random() < 0.12:
        return value(rng)
    if pa.types.is_list(kind):
        return "[" + ",".join(mostly_valid(rng, kind.value_type) for _ in range(rng.randrange(3))) + "]"
    if pa.types.is_map(kind):
        keys = rng.choices(("a", "b", "é", "", "\\u0061"), k=rng.randrange(3))
        return "{" + ", ".join(f'"{key}" : {mostly_valid(rng, kind.item_type)}' for key in keys) + "}"
    if pa.types.is_struct(kind):
        fields = rng.sample(list(kind), k=rng.randrange(3))
        return "{" + ",".join(f'"{field.name}":{mostly_valid(rng, field.type)}' for field in fields) + "}"
    if pa.types.is_date(kind):
        return f'"20{rng.randrange(100):02}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}"'
    if pa.types.is_timestamp(kind):
        return f'"2024-05-06T{rng.randrange(24):02}:08:09.{_digits(rng, 8)}Z"'
    if pa.types.is_binary(kind):
        return rng.choice(('""', '"aGk="', '"a+/b"', '"AAAAAAA="'))
    if pa.types.is_boolean(kind):
        return rng.choice(("true", "false"))
    if pa.types.is_string(kind):
        return f'"{_digits(rng, 30)}"'
    if pa.types.is_integer(kind):
        return str(rng.randrange(128))
    if pa.types.is_decimal(kind):
        whole = _digits(rng, 1 + min(12, max(1, kind.precision - kind.scale))) if kind.precision > kind.scale else "0"
        return _signed(rng) + (str(int(whole)) + (f".{_digits(rng, 1 + kind.scale)}" if kind.scale else ""))
    return f"{rng.randrange(1000)}.{_digits(rng, 20)}"


def json_line(schema: pa.Schema, rng: random.Random) -> str:
    fields = rng.sample(list(schema), k=min(len(schema), rng.randrange(1, 4)))
    blank = rng.choice(("", "", " "))
    return "{" + ",".join(f'"{one.name}":{blank}{mostly_valid(rng, one.type)}{blank}' for one in fields) + "}"


def csv_line(schema: pa.Schema, rng: random.Random) -> str:
    given = {one.name for one in rng.sample(list(schema), k=min(len(schema), rng.randrange(1, 4)))}

    def field(one: pa.Field) -> str:
        if one.name not in given:
            return rng.choice(("", "", '""'))
        text = mostly_valid(rng, one.type).strip('"').replace('"', '""')
        return f'"{text}"' if "," in text or rng.random() < 0.2 else text

    return ",".join(field(one) for one in schema)


def fates(decoder: Decoder, lines: Sequence[bytes]) -> list[Fate]:
    """Return the result of each line: its row, or the reason why it is refused."""
    ends = [0]
    for line in lines:
        ends.append(ends[-1] + len(line))
    decoded = decoder.decode(b"".join(lines))
    decoded.rows.validate(full=True)
    results: dict[int, Fate] = {bad.start: ("bad", bad.raw, bad.reason, bad.detail) for bad in decoded.bad}
    rows = _texts(decoded.rows)
    assert len(rows) == len(decoded.starts)
    results |= {int(start): ("row", row) for start, row in zip(decoded.starts, rows, strict=True)}
    assert results.keys() <= set(ends)
    return [results.get(start, ("blank",)) for start in ends[:-1]]


def _texts(rows: pa.Table) -> list[str]:
    """Return rows as text, with times as numbers, since Python supports fewer years than Arrow."""
    plain = [_without_times(column.combine_chunks()) for column in rows.columns]
    return [repr(values) for values in zip(*(column.to_pylist() for column in plain), strict=True)]


def _without_times(column: pa.Array) -> pa.Array:
    return column.cast(_untimed(column.type))


def _untimed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_untimed(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _untimed(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_untimed(field.type)) for field in kind])
    return kind


def groups(lines: Sequence[bytes], size: int, rng: random.Random) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield neighbouring lines in groups of about that size, with the index of each group's first line."""
    cuts = sorted({0, len(lines), *(rng.randrange(len(lines)) for _ in range(len(lines) // size))})
    for start, stop in pairwise(cuts):
        yield start, lines[start:stop]


def check(
    decoder: Decoder, made: Sequence[str], bad: bytes, rng: random.Random, *, bad_share_min: float = 1 / 20
) -> None:
    lines = [line.encode("utf-8", "surrogatepass") + b"\n" for line in made]
    alone = [fate for line in lines for fate in fates(decoder, [line])]
    kinds = [fate[0] for fate in alone]
    assert kinds.count("row") > len(lines) // 4, "bad lines alone would test little"
    assert kinds.count("bad") > len(lines) * bad_share_min
    good = [index for index, kind in enumerate(kinds) if kind == "row"]  # decoded as a block, since all are good
    for which in (range(len(lines)), good):
        chosen, expected = [lines[index] for index in which], [alone[index] for index in which]
        for size in GROUPS:
            for start, group in groups(chosen, size, rng):
                wanted = expected[start : start + len(group)]
                _same(fates(decoder, group), wanted, group)
                at = rng.randrange(len(group) + 1)
                beside = fates(decoder, [*group[:at], bad, *group[at:]])
                assert beside.pop(at)[0] == "bad"
                _same(beside, wanted, group)


def _same(found: Sequence[Fate], wanted: Sequence[Fate], group: Sequence[bytes]) -> None:
    for one, other, line in zip(found, wanted, group, strict=True):
        assert one == other, f"{line!r} among {len(group)} lines"


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ddl", [FLAT, NESTED, MAPS], ids=["flat", "nested", "maps"])
def test_json_lines_of_all_types_are_independent_of_their_neighbours(ddl: str, seed: int) -> None:
    schema, rng = parse_ddl(ddl), random.Random(seed)
    check(JsonlDecoder(schema), [json_line(schema, rng) for _ in range(LINES)], b"{x\n", rng)


@pytest.mark.parametrize("seed", SEEDS)
def test_csv_lines_of_all_types_are_independent_of_their_neighbours(seed: int) -> None:
    schema, rng = parse_ddl(FLAT), random.Random(seed)
    layout = Layout(fields=len(schema), indexes=tuple(range(len(schema))))
    check(CsvDecoder(schema, CsvOptions(), layout), [csv_line(schema, rng) for _ in range(LINES)], b'"x\n', rng)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", parse_ddl(FLAT).names)
def test_a_single_column_of_each_type_is_independent_of_its_neighbours(name: str, seed: int) -> None:
    """Nothing else in the line can make the decoder process a block line by line."""
    schema, rng = pa.schema([parse_ddl(FLAT).field(name)]), random.Random(seed)
    made = [f'{{"{name}":{value(rng)}}}' for _ in range(150)]
    made += [json_line(schema, rng) for _ in range(150)]
    # a column of strings takes every value: its bad lines are no JSON, or have half a surrogate pair
    check(JsonlDecoder(schema), made, b"{x\n", rng, bad_share_min=1 / 60 if name == "s" else 1 / 20)

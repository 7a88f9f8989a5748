"""Every value is read as Spark reads it, except for the differences that docs/use/formats.md lists with their reasons.

Spark reads each case with the schema and a column for corrupt records; the decoders read the same line. A case whose
result differs has to belong to a row of the docs' table, and a row of the table has to have such a case.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as Spark's documentation calls it

from penstock.pipeline.spark.source.blocks import Decoder
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import Layout
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.options import CsvOptions

PAGE = Path(__file__).parents[2] / "docs" / "use" / "formats.md"
HEADING = "## Differences from Spark"
BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A value of a column, as a file has it."""

    format: str
    kind: str
    value: str


def cases(format_name: str, kind: str, *lines: str) -> Iterator[Case]:
    """Yield a case per word of the lines, or for a line with blanks in a list of its own, written with ␣."""
    for word in " ".join(lines).split():
        yield Case(format=format_name, kind=kind, value=word.replace("␣", " "))


ALIKE: Sequence[Case] = (
    *cases("json", "string", '"x" 1 1.10 -0 1e400 12345678901234567890 true false null {"a":1,"b":[1,2.0]} [] {} 1E5'),
    *cases("json", "string", r'[1,"x",null] NaN Infinity "\u00e9" {"a":"\u00e9","b":"x\/y"} "a\u0000b" {"a":NaN}'),
    *cases("json", "string", '{␣"a"␣:␣1␣,␣"b":[␣1,␣2␣]} 0.1000000000000000055511151231257827 "␣x␣" ""'),
    *cases("json", "bigint", '1 1.0 1e2 "1" true 9223372036854775808 -9223372036854775808 "" {} [] -0 null 01 +1 NaN'),
    *cases("json", "tinyint", "127 256 -129"),
    *cases("json", "double", '1 1.5 NaN Infinity -Infinity -INF +INF "NaN" "Infinity" "-Infinity" "-INF"'),
    *cases("json", "double", '"+INF" "+Infinity" "Inf" "nan" "1.5" "" true 0x1f 12345678901234567890 .5 5. 1e-400 {}'),
    *cases("json", "float", '3.4028235e38 16777217 "NaN" 0.1'),
    *cases("json", "decimal(6,2)", '1 1.5 1.25 1.230 9999.99 1e2 "1.5" "+1.5" "x" "" NaN "1e2" "NaN"'),
    *cases("json", "decimal(38,0)", "12345678901234567890 99999999999999999999999999999999999999"),
    *cases("json", "boolean", 'true false "true" 1 0 TRUE "TRUE" null'),
    *cases("json", "date", '"2024-05-06" "2024-5-6" "2024-02-30" "2024-W19-1" "2024-127" "" "␣2024-05-06␣"'),
    *cases("json", "timestamp", '"2024-05-06" "2024-5-6" "2024-05-06T07:08" "2024-05-06T07:08:09" "2024-05-06T7:8:9"'),
    *cases(
        "json", "timestamp", '"2024-05-06T07:08:09.1" "2024-05-06T07:08:09.1234567" "2024-05-06T07:08:09.123456789"'
    ),
    *cases("json", "timestamp", '"2024-05-06T07:08:09.1234567890" "2024-05-06T07:08:09,123" "2024-05-06T07:08:09Z"'),
    *cases("json", "timestamp", '"2024-05-06T07:08:09+01" "2024-05-06T07:08:09+0100" "2024-05-06T07:08:09+01:00"'),
    *cases("json", "timestamp", '"2024-05-06T07:08:09+1" "2024-05-06T07:08:09UTC" "2024-05-06T07:08:09GMT" "" "x"'),
    *cases("json", "timestamp", '"2024-05-06T24:00:00" "2024-05-06T07:08:60" "2024-W19-1T07:08:09" "20240506T070809Z"'),
    *cases("json", "timestamp", '"2024-05-06␣07:08:09" "␣2024-05-06T07:08:09␣" "2024-05-06␣07:08:09␣UTC"'),
    *cases("json", "timestamp", '"2024-05-06T07:08:09.123-00:00" "2024-05-06T07:08:09-18:00"'),
    *cases("json", "timestamp_ntz", '"2024-05-06T07:08:09" "2024-05-06" "2024-05-06T07:08:09.123456789"'),
    *cases("json", "binary", '"aGk=" "a+/b" "hi!!" "" 5 [1,2] {}'),
    *cases("json", "struct<a: int>", '{"a":1} {} "x" {"A":1} {"a":"x"} null {"a":null} {"b":1}'),
    *cases(
        "json", "map<string, int>", '{"a":1} {} {"a":null} {"a":"x"} [{"key":"a","value":1}] null {"":1} {"\\u00e9":1}'
    ),
    *cases("json", "map<string, string>", '{"a":1,"b":{"c":[]},"d":"x"}'),
    *cases("json", "array<int>", '[1,null] [] {} 1 "x" ["x"] [[1]] null {"a":1}'),
    *cases("json", "array<struct<a: int>>", '[{"a":1}] [1] [null]'),
    *cases("json", "array<string>", '[1,"x",{"a":1},null,true] "x"'),
    *cases("csv", "string", 'x NA null 1e400 "x,y" a"b ␣x␣'),
    *cases("csv", "bigint", '1 +1 1.0 1e2 01 -01 0x1f 9223372036854775808 "" "1" 1_000 NA - -0 1L x'),
    *cases("csv", "tinyint", "128 0xff 127"),
    *cases("csv", "double", "1 1.5 NaN Inf -Inf Infinity -Infinity +1.5 .5 5. $1 1% -0.0 1e-400 x"),
    *cases("csv", "float", "16777217 0.1"),
    *cases("csv", "decimal(6,2)", "1 1.5 1e2 +1.5 1.230 x 9999.99"),
    *cases("csv", "boolean", "true TRUE True tRuE t 1 0 yes false T F"),
    *cases("csv", "date", "2024-05-06 2024-5-6 2024-02-30 05/06/2024 2024-W19-1 x"),
    *cases("csv", "timestamp", "2024-05-06 2024-05-06T07:08:09 2024-05-06␣07:08:09 2024-05-06T07:08:09.1234567"),
    *cases("csv", "timestamp", "2024-05-06T07:08:09.123456789Z 2024-05-06T07:08:09+01 2024-05-06T07:08:09+0100"),
    *cases("csv", "timestamp", "2024-05-06T07:08:09Z 2024-05-06T7:8:9 2024-05-06␣07:08:09␣UTC 2024-05-06T24:00:00"),
    *cases("csv", "timestamp_ntz", "2024-05-06T07:08:09 2024-05-06"),
    *cases("csv", "binary", "hi aGk= é"),
)
DIFFERENT: Mapping[str, Sequence[Case]] = {
    "JSON: half a surrogate pair in a string column": [*cases("json", "string", r'"\ud800"')],
    "a number beyond the range of its float": [
        *cases("json", "double", "1e400 -1e400"),
        *cases("json", "float", "1e39"),
        *cases("csv", "double", "1e400"),
        *cases("csv", "float", "1e39"),
    ],
    "JSON: 128 to 255 in a TINYINT column": [*cases("json", "tinyint", "128 255")],
    "a decimal with more places than its type": [
        *cases("json", "decimal(6,2)", '1.255 "1.255"'),
        *cases("csv", "decimal(6,2)", "1.255"),
    ],
    "a decimal with thousands separators": [
        *cases("json", "decimal(6,2)", '"1,000"'),
        *cases("csv", "decimal(6,2)", '"1,000.50"'),
    ],
    "JSON: `Inf`, `INF` and `-NaN`": [*cases("json", "double", 'Inf -Inf -NaN INF "INF"')],
    "CSV: NaN and infinity in any case": [*cases("csv", "double", "nan inf INF -INF")],
    "a year or a month as a date or time": [
        *cases("json", "date", '"2024-05" "2024"'),
        *cases("json", "timestamp", '"2024-05" "2024"'),
        *cases("csv", "timestamp", "2024"),
    ],
    "a time in a date column": [*cases("json", "date", '"2024-05-06T07:08:09"')],
    "JSON: a number in a timestamp column": [*cases("json", "timestamp", "1714979289 1714979289123")],
    "JSON: digits in a date column": [*cases("json", "date", '"20240506"')],
    "a time zone in a timestamp_ntz column": [
        *cases("json", "timestamp_ntz", '"2024-05-06T07:08:09Z" "2024-05-06T07:08:09+01:00"'),
    ],
    "a time zone beyond 18 hours": [*cases("json", "timestamp", '"2024-05-06T07:08:09+19:00"')],
    "a time of a region, such as `Europe/Paris`": [*cases("json", "timestamp", '"2024-05-06T07:08:09Europe/Paris"')],
    "a time without a day": [*cases("json", "timestamp", '"12:30" "T12:30"')],
    "JSON: a field given twice": [*cases("json", "struct<a: int>", '{"a":1,"a":2}')],
    "JSON: `[]` for an object": [*cases("json", "struct<a: int>", "[]"), *cases("json", "map<string, int>", "[]")],
    'CSV: `""` in a string column': [*cases("csv", "string", '""')],
    "CSV: a quote in a quoted field": [*cases("csv", "string", '"a""b" "a\\"b"')],
    "CSV: blanks around whole numbers": [*cases("csv", "bigint", "␣1 1␣")],
    "CSV: Java's spellings of numbers": [
        *cases("csv", "double", "1d 1.5f 0x1p3"),
        *cases("csv", "bigint", "\N{ARABIC-INDIC DIGIT ONE}"),
    ],
}


def ours(format_name: str, kind: str, values: Sequence[str]) -> list[Any]:
    """Return the value that each line gives, or that it is bad."""
    schema = parse_ddl(f"n int, v {kind}")
    lines = [_line(format_name, number, value) for number, value in enumerate(values)]
    decoder: Decoder = JsonlDecoder(schema)
    if format_name == "csv":
        decoder = CsvDecoder(schema, CsvOptions(), Layout(fields=2, indexes=(0, 1)))
    decoded = decoder.decode("".join(lines).encode())
    found = [BAD] * len(values)
    column = decoded.rows["v"].combine_chunks()
    column = _as_numbers(column)
    for number, value in zip(decoded.rows["n"].to_pylist(), column.to_pylist(), strict=True):
        found[number] = _comparable(value)
    return found


def _line(format_name: str, number: int, value: str) -> str:
    return f"{number},{value}\n" if format_name == "csv" else f'{{"n":{number},"v":{value}}}\n'


def _as_numbers(column: pa.Array) -> pa.Array:
    """Return times as microseconds and dates as days, since Python has fewer years than Arrow and Spark."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


def sparks(spark: SparkSession, folder: Path, format_name: str, kind: str, values: Sequence[str]) -> list[Any]:
    """Return the value that each line gives in Spark, or that its line is a corrupt record."""
    path = folder / "lines"
    path.write_text("".join(_line(format_name, number, value) for number, value in enumerate(values)))
    reader = spark.read.schema(f"n int, v {kind}, _corrupt_record string").option("mode", "PERMISSIVE")
    frame = reader.json(str(path)) if format_name == "json" else reader.csv(str(path))
    rows = frame.select("n", _numbered(kind).alias("v"), "_corrupt_record").cache().collect()
    assert len(rows) == len(values)
    return [_comparable(row["v"]) if row["_corrupt_record"] is None else BAD for row in rows]


def _numbered(kind: str) -> Column:
    if kind == "date":
        return F.unix_date("v")
    return F.unix_micros(F.col("v").cast("timestamp")) if kind.startswith("timestamp") else F.col("v")


def _comparable(value: Any) -> Any:
    """Return a value in which NaN equals itself and maps and rows have one form."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return sorted((name, _comparable(item)) for name, item in value.items())  # Spark's maps have another order
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return _comparable(value.asDict())
    if isinstance(value, list) and value and all(type(item) is tuple for item in value):
        return _comparable(dict(value))  # a map, as Arrow returns it
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return value


def rows_of_the_page() -> list[str]:
    """Return the first cell of each row of the table."""
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in section.splitlines() if line.startswith("| ")]
    return cells[1:]


def test_the_page_lists_the_differences_of_this_test() -> None:
    rows = rows_of_the_page()
    assert len(set(rows)) == len(rows)
    assert set(rows) == set(DIFFERENT)


@pytest.mark.parametrize("format_name", ["json", "csv"])
def test_values_are_read_as_spark_reads_them_except_for_the_listed(
    format_name: str, spark: SparkSession, tmp_path: Path
) -> None:
    listed = [case for each in DIFFERENT.values() for case in each]
    everything = [case for case in (*ALIKE, *listed) if case.format == format_name]
    found: dict[Case, tuple[Any, Any]] = {}
    for kind in dict.fromkeys(case.kind for case in everything):
        values = [case.value for case in everything if case.kind == kind]
        folder = tmp_path / f"{len(found)}"
        folder.mkdir()
        both = zip(ours(format_name, kind, values), sparks(spark, folder, format_name, kind, values), strict=True)
        for value, pair in zip(values, both, strict=True):
            found[Case(format=format_name, kind=kind, value=value)] = pair
    differing = {case: pair for case, pair in found.items() if pair[0] != pair[1]}
    assert {case: pair for case, pair in differing.items() if case not in listed} == {}, (
        "not in the docs: (ours, Spark's)"
    )
    assert {case for case in listed if case.format == format_name} - set(differing) == set(), "no longer different"

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


ALIKE: Sequence[Case] = ()
DIFFERENT: Mapping[str, Sequence[Case]] = {}


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
        return [(name, _comparable(item)) for name, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return _comparable(value.asDict())
    if isinstance(value, list):
        return [item if isinstance(item, tuple) else _comparable(item) for item in value]
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

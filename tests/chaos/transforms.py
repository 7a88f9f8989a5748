"""Transforms for the ingests of the tests. Copied into the folder where the ingest runs.

Functions for Spark's Python workers are nested, so that Spark pickles them by value and the workers do not import this
module.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documentation calls it so

GATE, AT_GATE = (
    "gate-is-shut",
    "at-gate",
)  # files: while the first exists, the run waits; the second shows that it waits


def is_shut(gate: Path, objects: Iterable[str]) -> bool:
    """Return True while the gate exists and names no object, or a part of the URI of one of these."""
    with suppress(FileNotFoundError):
        name = gate.read_text()
        return any(name in uri for uri in objects)
    return False


def held(frame: DataFrame) -> DataFrame:
    """Make every task wait at the gate, at most two minutes."""
    gate, at_gate = Path.cwd() / GATE, Path.cwd() / AT_GATE

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            deadline = time.monotonic() + 120
            while gate.exists() and time.monotonic() < deadline:
                at_gate.touch()
                time.sleep(0.02)  # between two looks at a file that the test removes
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def held_by_name(frame: DataFrame) -> DataFrame:
    """Make a task wait at the gate, at most two minutes, if it reads the object that the gate names."""
    gate, at_gate = Path.cwd() / GATE, Path.cwd() / AT_GATE

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            deadline = time.monotonic() + 120
            found = set(batch.column("_object").to_pylist())
            while gate.exists() and any(gate.read_text() in uri for uri in found) and time.monotonic() < deadline:
                at_gate.touch()
                time.sleep(0.02)  # between two looks at a file that the test removes
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def no_number(frame: DataFrame) -> DataFrame:
    """Fail in execution, in the cast of a row whose s is `poison`."""
    return frame.withColumn("n", F.when(F.col("s") == "poison", F.col("s").cast("int")))


def always_fails(frame: DataFrame) -> DataFrame:
    """Fail in execution for every row, after a successful planning."""
    return frame.withColumn("n", F.concat(F.lit("no number "), F.col("s")).cast("int"))


def mended(frame: DataFrame) -> DataFrame:
    """Return the same columns as `always_fails` without its mistake."""
    return frame.withColumn("n", F.length("s"))


def tangled(frame: DataFrame) -> DataFrame:
    """Count, join with itself, and sort: the input is read several times, and every row is returned once."""
    assert frame.count() > 0
    return frame.join(frame.select("id").distinct(), "id").orderBy(F.desc("v"), "id")


def nothing(frame: DataFrame) -> DataFrame:
    """Return no rows, which Spark can do without reading."""
    return frame.where("false")

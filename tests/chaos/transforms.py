"""Transforms that the ingests of the tests name. Copied into the folder where the ingest runs.

What runs in Spark's Python workers is defined inside its function: so it travels by value, and they need not find this
module.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documentation calls it so

GATE, AT_GATE = "gate-is-shut", "at-gate"  # files: who makes the first holds the run, the second says that it is held


def held(frame: DataFrame) -> DataFrame:
    """Every task waits at the gate, at most two minutes."""
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


def no_number(frame: DataFrame) -> DataFrame:
    """Fails in execution for a row whose s is `poison`, for its cast alone."""
    return frame.withColumn("n", F.when(F.col("s") == "poison", F.col("s").cast("int")))


def always_fails(frame: DataFrame) -> DataFrame:
    """Fine to plan; every row fails."""
    return frame.withColumn("n", F.concat(F.lit("no number "), F.col("s")).cast("int"))


def mended(frame: DataFrame) -> DataFrame:
    """The same columns as `always_fails`, without its mistake."""
    return frame.withColumn("n", F.length("s"))


def tangled(frame: DataFrame) -> DataFrame:
    """Counts first, joins with itself, sorts: everything is read several times, and every row comes out once."""
    assert frame.count() > 0
    return frame.join(frame.select("id").distinct(), "id").orderBy(F.desc("v"), "id")


def nothing(frame: DataFrame) -> DataFrame:
    """Spark need not even read for this."""
    return frame.where("false")

"""Bad lines of a folder on Spark: a warning, a schema that reads them, a replay, and each row is there once."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as users write it
from tests.services.forked_process import run_forked

from penstock.config import Settings
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

GOOD, FIXED = 40, 10  # lines
SECONDS_MAX = 300.0  # of a command


def in_kilograms(rows: DataFrame) -> DataFrame:
    return rows.withColumn("kg", F.regexp_extract(F.col("kg").cast("string"), r"^\d+", 0).cast("bigint"))


def penstock(*arguments: str) -> Any:
    done = run_forked([sys.executable, "-m", "penstock", *arguments, "--json"], timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("suffix", ["", pytest.param(".gz", marks=pytest.mark.slow)])
def test_bad_lines_are_replayed_once_with_the_schema_that_reads_them(
    tmp_path: Path, spark: SparkSession, suffix: str
) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    source.mkdir()
    lines = [json.dumps({"id": number, "kg": number}) for number in range(GOOD)]
    lines[5:5] = [json.dumps({"id": GOOD + number, "kg": f"{number} kg"}) for number in range(FIXED)]
    content = "\n".join([*lines, "--- log rotated ---", ""]).encode()
    if suffix:
        import gzip

        content = gzip.compress(content)
    (source / f"a.jsonl{suffix}").write_bytes(content)
    (source / "b.jsonl").write_text('{"id": 1000, "kg": 1}\n')

    def load(schema: str) -> IngestReport:
        request = IngestRequest(
            source=str(source),
            table=str(table),
            schema=schema,
            transform=f"{__name__}:in_kilograms",
            settings=Settings(),
        )
        return ingest(request, stop=StopSignal(), spark=spark)

    first = load("id bigint, kg bigint")
    assert (first.rows_written, first.lines_quarantined) == (GOOD + 1, FIXED + 1)
    assert (first.warned_objects, first.warned_lines, first.objects_replayed) == (1, FIXED + 1, 0)
    assert penstock("status", "--table", str(table))["problem_kinds"] == ["bad lines"]
    assert load("id bigint, kg bigint").warned_objects == 1, "it stays until something is done"

    assert penstock("quarantine", "replay", "--table", str(table), "--yes")["sent"] == 1
    second = load("id bigint, kg string")
    assert (second.objects_processed, second.objects_skipped, second.objects_replayed) == (0, 2, 1)
    assert (second.rows_written, second.lines_quarantined, second.objects_new_versions) == (FIXED, 1, 0)
    assert (second.warned_objects, second.warned_lines) == (0, 0), "1 of 51 lines is no warning"
    rows = sorted((row["id"], row["kg"]) for row in DeltaTable(table).to_pyarrow_table().to_pylist())
    fixed = [(GOOD + number, number) for number in range(FIXED)]
    assert rows == [*((number, number) for number in range(GOOD)), *fixed, (1000, 1)]
    left = DeltaTable(f"{table}_quarantine").to_pyarrow_table().to_pylist()
    assert [row["raw"] for row in left].count(b"--- log rotated ---") == 2, "one for each attempt"
    states = [one["state"] for one in penstock("quarantine", "list", "--table", str(table))]
    assert sorted(states) == ["open", "replayed"]
    assert penstock("status", "--table", str(table))["problem_kinds"] == []

    again = penstock("quarantine", "replay", str(source / f"a.jsonl{suffix}"), "--table", str(table), "--yes")
    assert (again["replayed_before"], again["sent"]) == (1, 1), "only the line that is bad again is left"
    assert load("id bigint, kg string").rows_written == 0
    assert DeltaTable(table).to_pyarrow_table().num_rows == len(rows)

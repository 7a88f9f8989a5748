"""The way back after a wrong inference: a remembered schema is compared, changed, and used by the next ingest."""

import json
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

from penstock.cli.main import main
from penstock.errors import UsageError
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal


def keep_codes(frame: DataFrame) -> DataFrame:
    """Keep the table's column of numbers, and the text in a new one."""
    return frame.withColumn("code_text", col("code")).withColumn("code", expr("try_cast(code AS BIGINT)"))


class Case:
    """One source and table, used by ingests in the shared session and by commands."""

    def __init__(
        self, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.source, self.table = folder / "in", folder / "t"
        self._spark, self._monkeypatch, self._capfd = spark, monkeypatch, capfd
        self.source.mkdir()

    def write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text)

    def ingest(self, transform: str | None = None) -> IngestReport:
        request = IngestRequest(source=str(self.source), table=str(self.table), transform=transform)
        return ingest(request, stop=StopSignal(), spark=self._spark)

    def schema(self, *arguments: str) -> tuple[int, str, str]:
        called = ["penstock", "admin", "schema", arguments[0], "--table", str(self.table), *arguments[1:]]
        self._monkeypatch.setattr("sys.argv", called)
        self._monkeypatch.setattr("penstock.cli.main.ignore_handled_signals", lambda: None)
        self._monkeypatch.setattr("penstock.cli.main.leave", sys.exit)
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = self._capfd.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, captured.out, captured.err

    def rows(self, *names: str) -> list[tuple[object, ...]]:
        found = DeltaTable(self.table).to_pyarrow_table().sort_by("id")
        return list(zip(*(found[name].to_pylist() for name in names), strict=True))


def test_a_wrong_inference_is_found_changed_and_left_behind(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, spark, monkeypatch, capfd)
    case.write("1.csv", "id,code\n1,10\n2,20\n")
    report = case.ingest()
    assert (report.schema, report.rows_written) == ("id BIGINT, code BIGINT", 2)

    case.write("2.csv", "id,code,city\n3,A30,Bonn\n4,40,Köln\n")
    report = case.ingest()
    assert (report.rows_written, report.lines_quarantined) == (1, 1)

    code, out, _ = case.schema("diff", "--json")
    assert code == 3
    assert {(one["name"], one["against"]): one["found"] for one in json.loads(out)["differences"]} == {
        ("code", "objects"): "STRING",
        ("city", "objects"): "STRING",
    }
    assert "A30" in out

    code, _, err = case.schema("set", "--column", "code string")
    assert code == 2
    assert "The column code is BIGINT in the table" in err

    assert case.schema("set", "--column", "code string", "--column", "city string", "--transform")[0] == 0
    case.write("2.csv", "id,code,city\n5,A50,Bonn\n")
    keep_codes = f"{__name__}:keep_codes"
    with pytest.raises(UsageError, match="were made without a transform, and this ingest has the transform"):
        case.ingest(transform=keep_codes)
    assert case.schema("transform", keep_codes)[0] == 0
    report = case.ingest(transform=keep_codes)
    assert (report.rows_written, report.lines_quarantined) == (1, 0)
    assert report.schema == "id BIGINT, code STRING, city STRING"
    assert case.rows("id", "code", "code_text", "city") == [
        (1, 10, None, None),
        (2, 20, None, None),
        (5, None, "A50", "Bonn"),
    ]
    [document] = json.loads(case.schema("show", "--json")[1])
    assert document["transform"] == keep_codes
    with pytest.raises(UsageError, match=f"were made with the transform {keep_codes}, and this ingest has none"):
        case.ingest()


def test_a_dialect_set_by_hand_is_used_by_the_next_ingest(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, spark, monkeypatch, capfd)
    case.write("1.csv", "id,age\n1,10\n2,20\n")
    case.ingest()
    case.write("2.csv", "id,age\n3,missing\n4,n/x\n")
    assert case.schema("set", "--null", "missing", "--null", "n/x")[0] == 0
    report = case.ingest()
    assert (report.rows_written, report.lines_quarantined) == (2, 0)
    assert case.rows("id", "age") == [(1, 10), (2, 20), (3, None), (4, None)]
    code, out, _ = case.schema("show", "--json")
    [document] = json.loads(out)
    assert (code, document["dialect"]["null_marks"]) == (0, ["missing", "n/x"])

"""How an ingest finds out how to read its objects, if its ledger knows only part of that."""

from pathlib import Path

import pytest

from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestPipeline, IngestRequest
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.worker.shutdown import StopSignal


@pytest.mark.parametrize(
    ("name", "content", "format_name"),
    [("a.jsonl", '{"id": 1}\n', "jsonl"), ("a.csv", "id\n1\n", "csv")],
)
def test_a_schema_recorded_without_a_format_is_used_with_the_format_that_the_names_tell(
    name: str, content: str, format_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(content)
    found: list[ReadOptions] = []

    def serve(pipeline: IngestPipeline, *, sample: object, **_: object) -> None:
        pipeline.state.ledger.remember_source_schema(pipeline.where.pipeline, "id INT")  # as earlier versions did
        found.append(pipeline._find_reading(sample))  # type: ignore[arg-type]

    monkeypatch.setattr(IngestPipeline, "serve", serve)
    ingest(IngestRequest(source=str(tmp_path / "in"), table=str(tmp_path / "t")), stop=StopSignal())
    assert [(read.format, read.schema_ddl) for read in found] == [(format_name, "id INT")]

"""Loading the user's transform."""

from pathlib import Path

import pytest

from penstock.app.sources import source_at
from penstock.errors import UsageError
from penstock.operations.ingest import pipeline
from penstock.operations.ingest.pipeline import IngestRequest, check
from penstock.storage.aws import Aws

NEEDS_SESSION = """
import pathlib
if not pathlib.Path("session").exists():
    raise RuntimeError("[SESSION_OR_CONTEXT_NOT_EXISTS] SparkContext or SparkSession should be created first.")

def double(frame):
    return frame * 2
"""


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IngestRequest:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"transform_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(NEEDS_SESSION)
    (tmp_path / "in").mkdir()
    return IngestRequest(source="in", table="t", transform=f"{name}:double")


def test_a_module_that_needs_a_spark_session_is_imported_when_one_exists(
    request_: IngestRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "has_session", lambda: False)
    transform = check(request_, source_at(request_.source, Aws()))
    assert transform is not None
    Path("session").touch()
    monkeypatch.setattr(pipeline, "has_session", lambda: True)
    assert transform(21) == 42  # type: ignore[arg-type, comparison-overlap]  # a frame that can be doubled


def test_the_same_import_failure_is_an_error_if_a_session_exists(
    request_: IngestRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "has_session", lambda: True)
    with pytest.raises(UsageError, match="cannot be imported"):
        check(request_, source_at(request_.source, Aws()))

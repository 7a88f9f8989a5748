"""Run a declared pipeline on a test's files, into temporary tables, in the test's Spark session."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from penstock.app.app import App
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.config import Settings
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.pipeline.spark.runtime import Session

ATTEMPT_SECONDS = 0.1  # between two attempts on an unreadable object


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The result of a run: rows as dictionaries, without _object, _offset and _row, in no order."""

    rows: Sequence[Mapping[str, Any]]
    quarantined: Sequence[Mapping[str, Any]]  # columns: object, offset, raw, reason, detail
    report: "RunReport"


def run_pipeline(
    pipeline: Pipeline, files: Mapping[str, bytes | str], *, spark: "Session", folder: Path | None = None
) -> PipelineResult:
    """Process the files once with the whole pipeline, as a worker would, and read the tables back.

    Source, table, queue and ledger are below ``folder``; those of the declaration are not used.

    Args:
        pipeline: The declared pipeline.
        files: Contents by path relative to the source.
        spark: The test's Spark session.
        folder: A folder to keep; by default a temporary one.

    Raises:
        UsageError: A file name is not a relative path below the source.
        PenstockError: The run failed.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
            return _run(pipeline, files, spark, Path(name))
    return _run(pipeline, files, spark, folder)


def _run(pipeline: Pipeline, files: Mapping[str, bytes | str], spark: "Session", folder: Path) -> PipelineResult:
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = source / _checked(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    declaration = pipeline.declaration
    moved = Pipeline(
        replace(
            declaration,
            source=replace(declaration.source, folder=str(source)),
            sink=declaration.sink.for_test(str(folder / "table")),
        )
    )
    settings = Settings.model_construct(data_dir=str(folder / "state"), objects_retry_base=ATTEMPT_SECONDS)
    with App(
        broker=f"sqlite:///{folder / 'queue.db'}", ledger=f"sqlite:///{folder / 'ledger.db'}", settings=settings
    ) as app:
        app.add(PipelineService(pipeline=moved))
        moved.belongs_to(app)
        report = moved.run(spark, source=source)
    return PipelineResult(
        rows=[] if report.table_version is None else _rows(moved.read(spark)),
        quarantined=[] if report.quarantine_table is None else _rows(moved.quarantine.read(spark)),
        report=report,
    )


def _rows(frame: Any) -> list[dict[str, Any]]:
    return [
        {
            name: value
            for name, value in row.asDict(recursive=True).items()
            if name not in ("_object", "_offset", "_row")
        }
        for row in frame.collect()
    ]


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"The file {name!r} is no path below the source; write one like 'a.jsonl'.")
    return path

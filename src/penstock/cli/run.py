"""`penstock run`: one pipeline of an app, alone in this process."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import StopTimeout
from penstock.cli.output import Json, counted, print_json, printable
from penstock.cli.progress import IngestProgress, losses
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.app.pipelines.running import RunReport


def run(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The name it was declared with.")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Drain what is in its queue, print a report, and exit.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="DIR", help="Announce the files of this folder first, unless they are done."),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", envvar="SPARK_MASTER", help="Where Spark runs; default: local[*].")
    ] = None,
    stop_timeout: StopTimeout = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Answer here for metrics and health.")
    ] = None,
    json_: Json = False,
) -> None:
    """Serve one pipeline of an app: until SIGTERM or Ctrl-C, or with --available-now until its queue is empty and all
    is published.

    Exit code 3: some object died. With --available-now also 75 or 130: stopped before everything was done.
    """
    from penstock.pipeline.extra import require_spark

    if available_now and metrics is not None:
        raise UsageError("--metrics is for a run that stays up; one with --available-now ends before it is asked.")
    require_spark()
    from penstock.app.loading import load_app
    from penstock.app.scope import ScopeRequest
    from penstock.app.telemetry import is_logged
    from penstock.cli.exits import leave_job, stoppable
    from penstock.config import with_flags

    options = ScopeRequest(app=app_name, pipeline=pipeline).options
    with stoppable() as stop, IngestProgress(options=options) as progress:
        app = load_app(app_name)
        app.settings = with_flags(
            app.settings, spark_master=master, stop_timeout_seconds=stop_timeout, metrics_address=metrics
        )
        if is_logged(app.settings):
            progress.silence()
        with app:
            report = named(app, pipeline, app_name).run(
                available_now=available_now, source=source, stop=stop, listeners=(progress,)
            )
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        print_run_report(report, options=options)
    leave_job(report, stop, forced=progress.forced)


def print_run_report(report: "RunReport", *, options: str = "") -> None:
    """The end of a run for people. ``options`` lead the verbs of a hint to this pipeline."""
    objects, rows = counted(report.objects_processed, "object"), counted(report.rows_written, "row")
    batches = counted(report.batches, "batch", "batches")
    print(f"{printable(report.pipeline)}: {objects} processed, {rows} written in {batches}, {report.seconds:.1f} s.")
    version = "no version yet" if report.table_version is None else f"version {report.table_version}"
    print(f"Table: {printable(report.table)} ({version})")
    for line in _remarks(report, options):
        print(printable(line))


def _remarks(report: "RunReport", options: str) -> list[str]:
    remarks: list[str] = []
    if report.objects_skipped:
        skipped = counted(report.objects_skipped, "object")
        remarks.append(f"Skipped: {skipped} of {report.objects_found:,} found, done before.")
    remarks += losses(report, options)
    if report.objects_superseded:
        remarks.append(f"Superseded: {counted(report.objects_superseded, 'object')}, changed before they were read.")
    if report.messages_left:
        remarks.append(f"Left in the queue: {counted(report.messages_left, 'message')}.")
    return remarks + [f"Could not be looked at: {problem}" for problem in report.problems]


def named(app: "App", name: str, app_name: str) -> "Pipeline":
    """The pipeline of that name. Raises `UsageError` where the app has none such."""
    for pipeline in app.pipelines:
        if pipeline.name == name:
            return pipeline
    known = ", ".join(sorted(pipeline.name for pipeline in app.pipelines)) or "none"
    raise UsageError(f"The app {app_name} has no pipeline {name}; its pipelines: {known}.")

"""`penstock run`: run one pipeline of an app in this process."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.loading import load_app
from penstock.app.scope import ScopeRequest
from penstock.app.telemetry import is_logged
from penstock.cli.apps import AppArgument, AppOption, PipelineArgument, app_and_reader
from penstock.cli.exits import leave_job, stoppable
from penstock.cli.options import Master, SparkSession, StopTimeout
from penstock.cli.output import Json, print_json, printable
from penstock.cli.progress import IngestProgress, grown, losses, merged, replaced, replayed, warning_of
from penstock.config import with_flags
from penstock.errors import UsageError
from penstock.messaging.wording import counted, worded
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.app.pipelines.running import RunReport


def run(
    app: AppArgument = None,
    pipeline: PipelineArgument = None,
    app_option: AppOption = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is in its queue, print a report, and exit.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="DIR", help="First enqueue the unprocessed files of this folder."),
    ] = None,
    master: Master = None,
    spark_session: SparkSession = None,
    stop_timeout: StopTimeout = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics-address", metavar="HOST:PORT", help="Serve metrics and health here.")
    ] = None,
    json_: Json = False,
) -> None:
    """Run one pipeline of an app.

    It runs until SIGTERM or Ctrl-C; with --available-now until the queue of the pipeline is empty and everything is
    published. Exit code 3: an object failed for good. With --available-now also 75 or 130: stopped before everything
    was done.
    """
    if available_now and metrics is not None:
        raise UsageError(
            "--metrics-address is for a run without --available-now: with it, the run ends before it could be scraped."
        )
    require_spark()
    app_name, name = app_and_reader(app, pipeline, app_option)
    options = ScopeRequest(app=app_name, pipeline=name).options
    with stoppable() as stop, IngestProgress(options=options) as progress:
        loaded = load_app(app_name)
        loaded.settings = with_flags(
            loaded.settings,
            spark_master=master,
            spark_session=spark_session,
            worker_stop_timeout=stop_timeout,
            metrics_address=metrics,
        )
        if is_logged(loaded.settings):
            progress.silence()
        with loaded:
            report = named(loaded, name, app_name).run(
                available_now=available_now, source=source, stop=stop, listeners=(progress,)
            )
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        print_run_report(report, options=options)
    leave_job(report, stop, forced=progress.forced)


def print_run_report(report: "RunReport", *, options: str = "") -> None:
    """Print the report of a run. ``options`` select this pipeline in the commands of hints."""
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
    remarks += [*merged(report), *grown(report), *replaced(report), *losses(report, options), *replayed(report)]
    if report.objects_superseded:
        subject = worded(
            report.objects_superseded, "{} object, changed before it was", "{} objects, changed before they were"
        )
        remarks.append(f"Superseded: {subject} read.")
    if report.messages_left:
        remarks.append(f"Left in the queue: {counted(report.messages_left, 'message')}.")
    remarks += [f"Could not be checked: {problem}" for problem in report.problems]
    return remarks + list(report.unregistered) + warning_of(report, options)


def named(app: "App", name: str, app_name: str) -> "Pipeline":
    """Return the pipeline of that name. Raises `UsageError` if the app has none."""
    for pipeline in app.pipelines:
        if pipeline.name == name:
            return pipeline
    known = ", ".join(sorted(pipeline.name for pipeline in app.pipelines)) or "none"
    raise UsageError(f"The app {app_name} has no pipeline {name}; its pipelines: {known}.")

"""`penstock admin cleanup`: tag, move or delete source objects that were processed."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.loading import load_app
from penstock.app.object_service import ObjectService
from penstock.app.telemetry import is_logged
from penstock.cli.apps import AppArgument, AppOption, PipelineArgument, app_and_reader
from penstock.cli.exits import stoppable, stopped_code
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.progress import CLEANED, event_lines
from penstock.cli.run import named
from penstock.messaging.wording import counted
from penstock.operations.tables.cleanup import CleanupReport, clean_up

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.events import Event


def cleanup(
    app: AppArgument = None,
    pipeline: PipelineArgument = None,
    app_option: AppOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what is due, change nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of objects.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="Maximum number of objects per second.")
    ] = None,
    although_missing: Annotated[
        bool,
        typer.Option(
            "--although-missing",
            help="Also objects whose rows another writer removed, or may have removed, from the table.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Tag, move or delete source objects that were processed.

    Does what the pipeline or object handler declares, to exactly the versions that were processed, once their batch is
    old enough and, for a pipeline, visible in both tables. Workers do the same in the background. Run it again at any
    time. Exit code 75 or 130: stopped before everything was done.
    """
    app_name, name = app_and_reader(app, pipeline, app_option)
    with stoppable() as stop, load_app(app_name) as loaded:
        report = clean_up(
            loaded,
            _reader(loaded, name, app_name),
            dry_run=dry_run,
            limit=limit,
            rate=rate,
            although_missing=although_missing,
            stop=stop,
            listeners=() if is_logged(loaded.settings) else (_print_event,),
        )
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        for line in summary(report):
            print(printable(line))
    if report.stopped:
        raise typer.Exit(stopped_code(stop))


def summary(report: CleanupReport) -> list[str]:
    """Return the lines that report a cleanup."""
    objects, batches = counted(report.objects, "object"), counted(report.batches, "batch", "batches")
    done = CLEANED[report.action]
    if report.dry_run:
        return [f"{report.pipeline}: {objects} of {batches} would be {done}, unless they changed meanwhile."]
    lines = [f"{report.pipeline}: {objects} {done}, done with {batches}, up to batch {report.done_to}."]
    if report.already:
        lines.append(f"Tagged before: {counted(report.already, 'object')}.")
    lines += [f"Left alone: {counted(number, 'object')}: {reason}." for reason, number in report.skipped.items()]
    if report.waits_for is not None:
        lines.append(
            f"The next batch waits for the pipeline {report.waits_for}, which still has to read objects of it."
        )
    if report.stopped or report.limited:
        lines.append("More is due: run it again.")
    return lines


def _print_event(event: "Event") -> None:
    for line in event_lines(event):
        talk(printable(line))


def _reader(app: "App", name: str, app_name: str) -> "Pipeline | ObjectService":
    """Return the pipeline or object handler of that name. Raises `UsageError` if the app has none."""
    for service in app.services:
        if isinstance(service, ObjectService) and service.name == name:
            return service
    return named(app, name, app_name)

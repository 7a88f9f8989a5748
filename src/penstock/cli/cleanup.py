"""`penstock cleanup`: tag, move or delete what a pipeline has processed and published."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.progress import CLEANED, told

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.object_service import ObjectService
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.events import Event
    from penstock.operations.tables.cleanup import CleanupReport


def cleanup(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The name it was declared with.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is due, touch nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many objects.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="At most so many objects a second.")
    ] = None,
    although_missing: Annotated[
        bool,
        typer.Option(
            "--although-missing",
            help="Also objects whose rows another writer removed, or may have removed, from the table on purpose.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Tag, move or delete the objects that a pipeline or object handler has processed, as its declaration says.

    Only what is committed long enough ago and, of a pipeline, visible in both tables; exactly the versions that were
    processed. Workers do the same beside their work. Run it again at any time. Exit code 75 or 130: stopped before all
    was done.
    """
    from penstock.app.loading import load_app
    from penstock.app.telemetry import is_logged
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.operations.tables.cleanup import clean_up

    with stoppable() as stop, load_app(app_name) as app:
        report = clean_up(
            app,
            _reader(app, pipeline, app_name),
            dry_run=dry_run,
            limit=limit,
            rate=rate,
            although_missing=although_missing,
            stop=stop,
            listeners=() if is_logged(app.settings) else (_tell,),
        )
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        for line in summary(report):
            print(printable(line))
    if report.stopped:
        raise typer.Exit(stopped_code(stop))


def summary(report: "CleanupReport") -> list[str]:
    """The end of a cleanup for people."""
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


def _tell(event: "Event") -> None:
    for line in told(event):
        talk(printable(line))


def _reader(app: "App", name: str, app_name: str) -> "Pipeline | ObjectService":
    """Return the pipeline or object handler of that name. Raises `UsageError` where the app has none such."""
    from penstock.app.object_service import ObjectService
    from penstock.cli.run import named

    for service in app.services:
        if isinstance(service, ObjectService) and service.name == name:
            return service
    return named(app, name, app_name)

"""`penstock cleanup`: tag, move or delete what a pipeline has processed and published."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.progress import CLEANED, told

if TYPE_CHECKING:
    from penstock.app.cleanup_verb import CleanupReport
    from penstock.events import Event


def cleanup(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The name it was declared with.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is due, touch nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many objects.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="At most so many objects a second.")
    ] = None,
    json_: Json = False,
) -> None:
    """Tag, move or delete the objects whose rows are published, as the pipeline's source declares it.

    Only what is committed long enough ago and visible in both tables; exactly the versions that were processed. Workers
    do the same beside their work. Run it again at any time. Exit code 75 or 130: stopped before all was done.
    """
    from penstock.pipeline.extra import require_spark

    require_spark()  # the tables are asked what they show
    from penstock.app.cleanup_verb import clean_up
    from penstock.app.loading import load_app
    from penstock.cli.leaving import stoppable, stopped_code
    from penstock.cli.run import named

    with stoppable() as stop, load_app(app_name) as app:
        report = clean_up(
            app,
            named(app, pipeline, app_name),
            dry_run=dry_run,
            limit=limit,
            rate=rate,
            stop=stop,
            listeners=(_tell,),
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

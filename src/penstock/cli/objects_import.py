"""`penstock objects import`: mark objects as processed that another system has processed."""

from collections.abc import Callable
from typing import Annotated

import typer

from penstock.cli.apps import AppArgument, AppOption, PipelineArgument, app_and_pipeline, app_if_any
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.cli.where import StateFolder
from penstock.messaging.wording import counted
from penstock.operations.objects.importing import (
    ObjectImportReport,
    UnreadableError,
    import_processed,
    replaced_text,
    target_of,
)

BUSY_SHOWN = 20


def import_(
    app: AppArgument = None,
    pipeline: PipelineArgument = None,
    app_option: AppOption = None,
    processed: Annotated[
        str,
        typer.Option(
            "--processed",
            metavar="FILE",
            help="The list: JSON lines, CSV with a header, or manifest.json of an S3 Inventory; - for standard input.",
        ),
    ] = ...,  # type: ignore[assignment]  # Typer's way to say that an option has to be given
    table: Annotated[
        str | None, typer.Option("--table", metavar="FOLDER", help="The table of an ingest, instead of APP PIPELINE.")
    ] = None,
    state: StateFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be new, change nothing.")] = False,
    json_: Json = False,
) -> None:
    """Mark objects as processed that another system has processed.

    Ingests and workers then skip them. Nothing is imported unless every entry is readable. Repeating it adds nothing.
    """
    app, pipeline = app_and_pipeline(app, pipeline)
    app_name = app or app_option if table is not None else app_if_any(app, app_option)
    with target_of(app=app_name, pipeline=pipeline, table=table, state=state) as target:
        try:
            done = import_processed(target, processed, dry_run=dry_run, report_progress=_progress_printer())
        except UnreadableError as error:
            for problem in error.problems:
                talk(printable(problem))
            raise
    for uri in done.busy[:BUSY_SHOWN]:
        talk(f"Being processed now, so left alone: {printable(uri)}")
    if json_:
        print_json(
            {
                "pipeline": done.pipeline,
                "source": done.source,
                "listed": done.listed,
                "new": done.new,
                "known": done.known,
                "busy": len(done.busy),
                "replaced": {state.value: count for state, count in done.replaced.items()},
                "dry_run": dry_run,
            }
        )
        return
    verb = "would be imported" if dry_run else "imported"
    before = f" ({replaced_text(done.replaced)} before)" if done.replaced else ""
    print(
        f"{counted(done.listed, 'object')} listed: {done.new:,} {verb} as processed{before}, {done.known:,} known "
        f"already, {len(done.busy):,} being processed and left alone."
    )


def _progress_printer() -> Callable[[ObjectImportReport], None]:
    """Return a function that prints a line every few seconds, for lists of millions."""
    pace = ProgressPace()

    def print_progress(done: ObjectImportReport) -> None:
        if pace.begin_if_due():
            talk(f"{done.new + done.known + len(done.busy):,} of {counted(done.listed, 'object')}")

    return print_progress

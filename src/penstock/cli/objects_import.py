"""`penstock objects import`: objects that somebody else processed are known from now on, and not processed again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.cli.where import StateFolder

if TYPE_CHECKING:
    from penstock.operations.objects.importing import ObjectImportReport

BUSY_SHOWN = 20


def import_(
    app_name: Annotated[str | None, typer.Argument(metavar="[APP]", help="module:attribute, as in shop:app.")] = None,
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="A pipeline, or object handler, of that app.")
    ] = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be new, change nothing.")] = False,
    json_: Json = False,
) -> None:
    """Take objects for processed that somebody else has processed: ingests and workers pass them over for ever.

    Nothing is imported unless every entry can be read. Doing it again adds nothing."""
    from penstock.operations.objects.importing import UnreadableError, import_processed, replaced_words, target_of

    with target_of(app=app_name, pipeline=pipeline, table=table, state=state) as target:
        try:
            done = import_processed(target, processed, dry_run=dry_run, told=_teller())
        except UnreadableError as error:
            for problem in error.problems:
                talk(printable(problem))
            raise
    for uri in done.busy[:BUSY_SHOWN]:
        talk(f"At work just now, so left alone: {printable(uri)}")
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
    before = f" ({replaced_words(done.replaced)} before)" if done.replaced else ""
    print(
        f"{counted(done.listed, 'object')} listed: {done.new:,} {verb} as processed{before}, {done.known:,} known "
        f"already, {len(done.busy):,} at work and left alone."
    )


def _teller() -> "Callable[[ObjectImportReport], None]":
    """A line every few seconds, for lists of millions."""
    pace = ProgressPace()

    def tell(done: "ObjectImportReport") -> None:
        if pace.is_due():
            talk(f"{done.new + done.known + len(done.busy):,} of {counted(done.listed, 'object')}")

    return tell

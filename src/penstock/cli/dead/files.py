"""`penstock dead export` and `import`: write dead letters to a file, and read them back."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.dead import options
from penstock.cli.dead.options import FilterOptions, Limit, QueueArgument
from penstock.cli.exits import stoppable, stopped_code
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.operations.dead_letters import files
from penstock.operations.dead_letters.files import STDOUT
from penstock.operations.dead_letters.selection import opened_ledger
from penstock.operations.inspection import view

if TYPE_CHECKING:
    from penstock.operations.dead_letters.files import ExportFile, ExportReport


@grouped_options
def export(
    where: ScopeOptions,
    which: FilterOptions,
    queue_name: QueueArgument = None,
    limit: Limit = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FILE", help="A new file, or s3://BUCKET/KEY; default and -: standard output."),
    ] = STDOUT,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete them from their queues once the file is written.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write dead letters as JSON lines, without loss.

    `penstock dead import` reads them. The file appears as a whole or not at all; without dead letters there is no file.
    If --remove is interrupted, export the rest to another file: messages in both are imported once.
    """
    which = which.with_queue(queue_name)
    selection = which.to_selection(limit=limit)
    options.refuse_empty({"--to": to})
    if remove and to == STDOUT:
        raise UsageError("Standard output keeps nothing: --remove needs a file, with --to FILE.")
    if json_ and to == STDOUT:
        raise UsageError("Standard output holds the dead letters, one line of JSON each: use --json with --to FILE.")
    with view(where.scope()) as seen:
        options.warn_of_hiding(seen, selection)
        export_file = None if to == STDOUT else files.export_file_at(to, seen.scope.aws)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("exporting", total=None) as on_progress,
        ):
            if export_file is None:
                done = files.export_to_stream(
                    seen,
                    selection,
                    sys.stdout.buffer,
                    ledger=ledger,
                    stopped=lambda: stop.requested,
                    on_progress=on_progress,
                )
            else:
                done = files.export_to_file(
                    seen,
                    selection,
                    export_file,
                    ledger=ledger,
                    remove=remove,
                    stopped=lambda: stop.requested,
                    on_progress=on_progress,
                )
    _report(done, export_file, json_=json_, remove=remove)
    if done.interrupted:
        raise typer.Exit(stopped_code(stop))
    if options.report_unmatched(selection, done.ids_met, count=done.dead_letters):
        raise typer.Exit(UsageError.exit_code)


@grouped_options
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported file: a path, or s3://BUCKET/KEY.")],
    where: ScopeOptions,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", metavar="QUEUE", help="Import them as dead letters of this queue; default: where they were."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Put exported dead letters back into the queues they were in, as dead letters.

    Each is imported once, however often the same file is imported. `penstock dead replay` then sends them to their
    origins.
    """
    options.refuse_empty({"FILE": file, "--queue": queue})
    with view(where.scope(make=True), make=True) as seen:
        export_file = files.export_file_at(file, seen.scope.aws)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("importing", total=None) as on_progress,
        ):
            done = files.import_file(
                seen, export_file, queue=queue, ledger=ledger, stopped=lambda: stop.requested, on_progress=on_progress
            )
    if json_:
        print_json(
            {
                "imported": done.dead_letters,
                "imported_before": done.before,
                "replayed": done.replayed,
                "by_queue": done.by_queue,
                "interrupted": done.interrupted,
            }
        )
    else:
        into = ", ".join(f"{name} {count:,}" for name, count in done.by_queue.items() if count)
        print(printable(f"{options.dead_letter_count(done.dead_letters)} put back{f' ({into})' if into else ''}."))
        if done.before:
            print(f"{options.dead_letter_count(done.before)} were imported before.")
        if done.replayed:
            print(f"{options.dead_letter_count(done.replayed)} were replayed, and are not put back.")
    if done.interrupted:
        raise typer.Exit(stopped_code(stop))


def _report(done: "ExportReport", export_file: "ExportFile | None", *, json_: bool, remove: bool) -> None:
    file = export_file.address if export_file is not None and done.dead_letters else None
    if json_:
        fields = {"exported": done.dead_letters, "removed": done.removed, "file": file, "interrupted": done.interrupted}
        print_json(fields)
    elif not done.interrupted or done.dead_letters:
        removed = f", and {done.removed:,} of them deleted from their queues" if remove and done.dead_letters else ""
        where = "" if file is None else f" to {file}"
        talk(printable(f"{options.dead_letter_count(done.dead_letters)} exported{where}{removed}."))

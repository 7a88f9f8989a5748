"""`penstock dead export` and `import`: dead letters into a file, and back."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.dead import options
from penstock.cli.dead.options import FilterOptions, Limit
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.operations.dead_letters.files import ExportFile, ExportReport

STDOUT = "-"  # as in `penstock.operations.dead_letters.files`; not imported from there, to keep `--help` quick


@grouped_options
def export(
    where: ScopeOptions,
    which: FilterOptions,
    limit: Limit = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FILE", help="A new file, or s3://BUCKET/KEY; default, and -: standard output."),
    ] = STDOUT,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete them from their queues once the file is safe.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write dead letters as JSON lines, losing nothing: `penstock dead import` puts them back.

    The file is there as a whole or not at all; of no letters there is none. Where --remove is cut short, export the
    rest into another file: what is in both is imported once.
    """
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.operations.dead_letters import files
    from penstock.operations.dead_letters.letters import opened_ledger
    from penstock.operations.inspection import view

    asked = which.asked(limit=limit)
    options.must_say_something({"--to": to})
    if remove and to == STDOUT:
        raise UsageError("Standard output keeps nothing: --remove needs a file, with --to FILE.")
    if json_ and to == STDOUT:
        raise UsageError("Standard output has the letters, a line of JSON each: --json is for --to FILE.")
    with view(where.scope()) as seen:
        options.say_hidden(seen, asked)
        place = None if to == STDOUT else files.place_of(to, seen.scope.aws)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("exporting", total=None) as told,
        ):
            if place is None:
                done = files.export_to_stream(
                    seen, asked, sys.stdout.buffer, ledger=ledger, stopped=lambda: stop.requested, told=told
                )
            else:
                done = files.export_to_file(
                    seen, asked, place, ledger=ledger, remove=remove, stopped=lambda: stop.requested, told=told
                )
    _report(done, place, json_=json_, remove=remove)
    if done.interrupted:
        raise typer.Exit(stopped_code(stop))
    if options.say_unmet(asked, done.ids_met, count=done.letters):
        raise typer.Exit(UsageError.exit_code)


@grouped_options
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What an export wrote; a path, or s3://BUCKET/KEY.")],
    where: ScopeOptions,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", metavar="QUEUE", help="Make all of them letters of this queue; default: where they lay."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Put exported dead letters back, as dead letters, into the queues they lay in. Each once, however often the same
    file is imported. `penstock dead replay` then sends them where they belong."""
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.operations.dead_letters import files
    from penstock.operations.dead_letters.letters import opened_ledger
    from penstock.operations.inspection import view

    options.must_say_something({"FILE": file, "--queue": queue})
    with view(where.scope(make=True), make=True) as seen:
        place = files.place_of(file, seen.scope.aws)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("importing", total=None) as told,
        ):
            done = files.import_file(seen, place, queue=queue, ledger=ledger, stopped=lambda: stop.requested, told=told)
    if json_:
        print_json(
            {
                "imported": done.letters,
                "imported_before": done.before,
                "replayed": done.replayed,
                "by_queue": done.by_queue,
                "interrupted": done.interrupted,
            }
        )
    else:
        into = ", ".join(f"{name} {count:,}" for name, count in done.by_queue.items() if count)
        print(printable(f"{options.letters_said(done.letters)} put back{f' ({into})' if into else ''}."))
        if done.before:
            print(f"{options.letters_said(done.before)} were imported before.")
        if done.replayed:
            print(f"{options.letters_said(done.replayed)} were replayed, and are not put back.")
    if done.interrupted:
        raise typer.Exit(stopped_code(stop))


def _report(done: "ExportReport", place: "ExportFile | None", *, json_: bool, remove: bool) -> None:
    file = place.address if place is not None and done.letters else None
    if json_:
        fields = {"exported": done.letters, "removed": done.removed, "file": file, "interrupted": done.interrupted}
        print_json(fields)
    elif not done.interrupted or done.letters:
        removed = f", and {done.removed:,} of them deleted from their queues" if remove and done.letters else ""
        where = "" if file is None else f" to {file}"
        talk(printable(f"{options.letters_said(done.letters)} exported{where}{removed}."))

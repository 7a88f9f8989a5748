"""`penstock objects reprocess`: read processed objects again, and replace their rows."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.kill import killing_probe
from penstock.app.scope import scope_ledger
from penstock.cli import output
from penstock.cli.dead import options
from penstock.cli.exits import stoppable, stopped_code
from penstock.cli.options import duration_if, grouped_options, object_uri
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.ledger.reopening_choice import LeftAlone
from penstock.messaging.wording import counted
from penstock.operations.inspection import view

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.operations.objects.reprocess import ReprocessPlan

TEMPORARY = 75

_WHY = {
    LeftAlone.UNKNOWN: "the ledger knows no such object",
    LeftAlone.BUSY: "being processed: try again once that has ended",
    LeftAlone.REPLAYING: "a replay of its bad lines waits: try again once that has ended",
    LeftAlone.VERSIONS: "the table has rows of several versions of it, which one version cannot replace: retract it "
    "(`penstock objects retract`), then retry it",
    LeftAlone.ARCHIVED: "archived, and its record cannot be read or was never kept (`penstock objects show`)",
    LeftAlone.FAILED: "to be read again, and failed: `penstock objects retry`, or --withdraw",
    LeftAlone.UNPROCESSED: "not processed",
}


@grouped_options
def reprocess(
    where: ScopeOptions,
    uris: Annotated[
        list[str] | None, typer.Argument(metavar="[OBJECT]...", help="Addresses or paths of objects.")
    ] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Processed objects with this text in their address.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Objects that were processed longer ago.")
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option("--newer-than", metavar="DURATION", help="Objects that were processed since then.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All processed objects of the pipeline.")] = False,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="The queue of their pipeline, if the app is not known."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="Maximum number of objects per second.")
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Do not read the named objects again after all.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be read again, change nothing.")
    ] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Read processed objects again, under the present transform and reader.

    Their new rows replace the old ones in one commit; until then the old ones stay in the table. An object handler
    calls its function again. A worker reads the objects, or the next `penstock ingest` of the table. An object that was
    deleted, or has another version by now, keeps its rows. Asks first. Exit code 1: not confirmed; 2: there is
    nothing to read again; 75: some of the objects are being processed, or stopped; 130: stopped, run it again to
    continue.
    """
    nameless = next((uri for uri in uris or () if not uri), None)
    options.refuse_empty({"--filter": filter_, "--queue": queue, "OBJECT": nameless})
    _check_selection(uris or [], filter_, older_than, newer_than, every=every, withdraw=withdraw, dry_run=dry_run)
    if not (yes or dry_run):
        output.require_terminal("objects reprocess")
    scope = where.scope()
    named = list(dict.fromkeys(object_uri(uri) for uri in uris or ()))
    if withdraw:
        _withdraw(scope, named, yes=yes, json_=json_)
        return
    from penstock.operations.objects.readers import ingest_hint
    from penstock.operations.objects.reprocess import ReprocessSelection, plan
    from penstock.operations.objects.reprocess import reprocess as reopen_and_announce

    selection = ReprocessSelection(
        uris=named,
        uri_contains=filter_,
        older_than_seconds=duration_if("--older-than", older_than),
        newer_than_seconds=duration_if("--newer-than", newer_than),
        queue=queue,
        rate=rate,
    )
    with view(scope) as seen:
        planned = plan(seen, selection)
    if dry_run or not planned.total:
        _note_left_out(planned)
        _print(planned, json_=json_, dry_run=dry_run, interrupted=False)
        raise typer.Exit(_exit_code(planned))
    if not yes:
        _note_left_out(planned)
        if not output.confirmed(f"Read {_counted(planned.total)} again, and replace their rows?"):
            raise output.declined("reopened")
    probe = killing_probe(load_settings().kill_at)
    with (
        view(scope, make=True) as seen,
        stoppable() as stop,
        closing(scope_ledger(scope, probe=probe)) as ledger,
        options.progress("reopening", total=planned.total, unit="objects") as on_progress,
    ):
        done = reopen_and_announce(
            seen,
            selection,
            planned,
            ledger=ledger,
            stopped=lambda: stop.requested,
            on_progress=on_progress,
            probe=probe,
        )
        interrupted, hint = stop.requested, ingest_hint(seen)
    if yes:
        _note_left_out(done)
    _print(done, json_=json_, dry_run=False, interrupted=interrupted)
    if hint is not None and done.total and not json_:
        talk(printable(hint))
    if interrupted:
        raise typer.Exit(stopped_code(stop))
    raise typer.Exit(_exit_code(done))


def _check_selection(
    uris: list[str],
    filter_: str | None,
    older_than: str | None,
    newer_than: str | None,
    *,
    every: bool,
    withdraw: bool,
    dry_run: bool,
) -> None:
    selects = filter_ is not None or older_than is not None or newer_than is not None
    if uris and (selects or every):
        raise UsageError("Name objects, or select them by --filter, --older-than and --newer-than, not both.")
    if withdraw and (not uris or dry_run):
        raise UsageError("--withdraw needs the names of objects, and no --dry-run.")
    if every and selects:
        raise UsageError("--all selects all processed objects: leave it out beside --filter and ages.")
    if not (uris or selects or every):
        raise UsageError("Which objects? Name some, or give --filter, --older-than, --newer-than or --all.")


def _exit_code(done: "ReprocessPlan") -> int:
    if done.left_alone[LeftAlone.BUSY] + done.left_alone[LeftAlone.REPLAYING]:
        return TEMPORARY
    return 0 if done.total else UsageError.exit_code


def _note_left_out(planned: "ReprocessPlan") -> None:
    for uri, why, state in planned.named:
        reason = _WHY[why] if state is None else f"{state.value}, and not processed"
        talk(printable(f"{uri} is left alone: {reason}."))
    if (more := planned.left_alone.total() - len(planned.named)) > 0:
        talk(f"{_counted(more)} more left alone.")
    if planned.archived:
        talk(f"{counted(planned.archived, 'archived object')} not searched: name the ones to read again.")


def _print(done: "ReprocessPlan", *, json_: bool, dry_run: bool, interrupted: bool) -> None:
    if json_:
        print_json(_document(done, dry_run=dry_run, interrupted=interrupted))
        return
    if not done.total:
        talk("No such objects.")
        return
    would = "would be" if dry_run else "is to be" if done.total == 1 else "are to be"
    rows = f"; their {counted(done.rows, 'row')} in the table stay until then" if done.rows else ""
    by = f"enqueued in {done.queue}" if done.queue is not None else "by the next `penstock ingest` of this table"
    print(printable(f"{_counted(done.total)} {would} read again ({by}){rows}."))


def _document(done: "ReprocessPlan", *, dry_run: bool, interrupted: bool) -> dict[str, Any]:
    return {
        "pipeline": done.pipeline,
        "queue": done.queue,
        "dry_run": dry_run,
        "interrupted": interrupted,
        "objects": done.objects,
        "again": done.again,
        "rows": done.rows,
        "left_alone": {why.value: count for why, count in done.left_alone.items()},
        "left_alone_objects": [
            {"object": uri, "why": why.value, "state": None if state is None else state.value}
            for uri, why, state in done.named
        ],
        "archived": done.archived,
    }


def _withdraw(scope: "Scope", named: list[str], *, yes: bool, json_: bool) -> None:
    from penstock.operations.objects.reprocess import withdraw as withdraw_reopenings

    if not yes and not output.confirmed(f"Leave {_counted(len(named))} as they were?"):
        raise output.declined("withdrawn")
    with view(scope) as seen, closing(scope_ledger(scope)) as ledger:
        done = withdraw_reopenings(seen, named, ledger=ledger)
    if json_:
        print_json({"withdrawn": done.withdrawn, "busy": done.busy})
    for uri in done.busy:
        talk(printable(f"{uri} is being read again now."))
    if not json_:
        print(printable(f"{_counted(len(done.withdrawn))} processed as before."))
    if done.busy:
        raise typer.Exit(TEMPORARY)
    if not done.withdrawn:
        raise typer.Exit(UsageError.exit_code)


def _counted(count: int) -> str:
    return counted(count, "object")

"""`penstock quarantine`: list objects with bad lines, show the lines, and replay or dismiss them."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import typer

from penstock.app.kill import killing_probe
from penstock.app.scope import Scope
from penstock.cli import output
from penstock.cli.exits import stoppable, stopped_code
from penstock.cli.options import grouped_options, object_uri
from penstock.cli.output import Json, moment, print_fields, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions, first_of, print_each
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.ledger.records import QuarantineState
from penstock.messaging.wording import counted
from penstock.operations.dead_letters.selection import opened_ledger
from penstock.operations.inspection import view
from penstock.operations.quarantine.replay import QuarantinePlan, dismiss, plan_dismissal, plan_replay, replay
from penstock.operations.quarantine.selection import Quarantined, QuarantineSelection, lines_of, select, version_of

LOCAL = "file://"  # omitted in tables
NONE = "No such bad lines."
RAW_CHARS_MAX = 200  # of a line at the terminal
RAW_BYTES_MAX = 4_096  # of a line in JSON

app = typer.Typer(no_args_is_help=True)

Objects = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OBJECT]...", help="Addresses or paths of objects; default: all with open bad lines."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineFilter:
    """The options that select objects with bad lines."""

    filter_: Annotated[str | None, typer.Option("--filter", help="Only objects with this text in their address.")] = (
        None
    )
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="ID", help="Only what this attempt quarantined.")
    ] = None
    warnings: Annotated[
        bool, typer.Option("--warnings", help="Only objects with so many bad lines that `penstock status` warns.")
    ] = False

    def selection(self, uris: Sequence[str] | None, state: QuarantineState | None) -> QuarantineSelection:
        """Return the selection. Raises `UsageError` for an empty option, or one beside named objects."""
        if self.filter_ == "" or self.attempt == "" or "" in (uris or ()):
            raise UsageError("An option or OBJECT is empty: give it a value, or leave it out.")
        if uris and self.filter_ is not None:
            raise UsageError("Name objects or give --filter, not both.")
        return QuarantineSelection(
            uris=tuple(object_uri(uri) for uri in uris or ()),
            state=state,
            uri_contains=self.filter_,
            attempt=self.attempt,
            only_warnings=self.warnings,
        )


@app.command("list")
@grouped_options
def list_(
    where: ScopeOptions,
    which: QuarantineFilter,
    only: Annotated[QuarantineState | None, typer.Option("--only", help="Only bad lines in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number.")] = 100,
    json_: Json = False,
) -> None:
    """List objects with bad lines: how many, their share, the first reason.

    One row for each object and attempt. The last column has what became of the lines: they were replayed or dismissed,
    or a replay is under way or has failed. An object of whose lines more than 5% are bad is a warning, until its lines
    were replayed or dismissed.
    """
    selection = which.selection(None, only)
    documents: list[dict[str, Any]] = []
    print_each(
        where.scopes(), lambda scope: documents.extend(_listed(scope, selection, limit, quiet=json_)), quiet=json_
    )
    if json_:
        print_json(documents)


@app.command()
@grouped_options
def show(
    uri: Annotated[str, typer.Argument(metavar="OBJECT", help="The object's address (file:///...), or its path.")],
    where: ScopeOptions,
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="ID", help="Only what this attempt quarantined.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="Maximum number of lines for each attempt.")
    ] = 20,
    json_: Json = False,
) -> None:
    """Show the bad lines of one object: place, reason and text.

    Long lines are cut; with --json after 4,096 bytes. The table TABLE_quarantine has them whole.
    """
    selection = QuarantineSelection(uris=[object_uri(uri)], state=None, attempt=attempt)
    found = first_of(where.scopes(), lambda scope: _shown(scope, selection, limit=limit))
    if json_:
        print_json([_document(one) | {"shown": [_line(line) for line in lines]} for one, lines in found])
        return
    for index, (one, lines) in enumerate(found):
        if index:
            print()
        _print_lines(one, lines)


@app.command("replay")
@grouped_options
def replay_(
    where: ScopeOptions,
    which: QuarantineFilter,
    uris: Objects = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="The queue of their pipeline, if the app is not known."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be replayed, send nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Read bad lines again, once, from the object version that has them.

    The pipeline reads them with its present schema and options, and adds the rows of those that are good now; the
    others are quarantined again. This command sends the notifications: a worker, or the next `penstock ingest` of the
    table, does the work. Asks first. Exit code 1: not confirmed; 2: none of the named objects has bad lines; 75 or
    130: stopped, run it again to continue.
    """
    selection = which.selection(uris, QuarantineState.OPEN)
    if not (yes or dry_run):
        output.require_terminal("quarantine replay")
    scope, probe = where.scope(), killing_probe(load_settings().kill_at)
    with view(scope) as seen:
        planned = plan_replay(seen, selection, queue=queue)
    _note_left_out(planned)
    if dry_run or not planned.objects:
        _print_replayed(scope, planned, {}, dry_run=dry_run, interrupted=False, json_=json_)
        raise typer.Exit(_exit_of(selection, planned))
    if not yes and not output.confirmed(f"Replay {_extent(planned)}?"):
        raise output.declined("replayed")
    with view(scope, make=True) as seen, stoppable() as stop, closing(opened_ledger(seen)) as ledger:
        sent = replay(seen, selection, planned, ledger=ledger, stopped=lambda: stop.requested, probe=probe)
        interrupted = stop.requested
    _print_replayed(scope, planned, sent, dry_run=False, interrupted=interrupted, json_=json_)
    if interrupted:
        raise typer.Exit(stopped_code(stop))


@app.command("dismiss")
@grouped_options
def dismiss_(
    where: ScopeOptions,
    which: QuarantineFilter,
    uris: Objects = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be dismissed, change nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Accept bad lines as lost: no warning is shown for them any more.

    The lines stay in the table TABLE_quarantine, and can be replayed by naming their object. Asks first. Exit code 1:
    not confirmed; 2: none of the named objects has bad lines; 75 or 130: stopped, run it again to continue.
    """
    selection = which.selection(uris, QuarantineState.OPEN)
    if not (yes or dry_run):
        output.require_terminal("quarantine dismiss")
    scope = where.scope()
    with view(scope) as seen:
        planned = plan_dismissal(seen, selection)
    _note_left_out(planned)
    if dry_run or not planned.objects:
        _print_dismissed(planned, (0, 0), dry_run=dry_run, interrupted=False, json_=json_)
        raise typer.Exit(_exit_of(selection, planned))
    if not yes and not output.confirmed(f"Dismiss {_extent(planned)}?"):
        raise output.declined("dismissed")
    with view(scope) as seen, stoppable() as stop, closing(opened_ledger(seen)) as ledger:
        done = dismiss(selection, planned, ledger=ledger, stopped=lambda: stop.requested)
        interrupted = stop.requested
    _print_dismissed(planned, done, dry_run=False, interrupted=interrupted, json_=json_)
    if interrupted:
        raise typer.Exit(stopped_code(stop))


def _listed(scope: Scope, selection: QuarantineSelection, limit: int, *, quiet: bool) -> list[dict[str, Any]]:
    """Print the objects of a scope, unless ``quiet``; return them as documents."""
    with view(scope) as seen:
        found = list(islice(select(seen, selection), limit + 1))
    if len(found) > limit:
        talk(f"There are more than {limit:,}; --limit shows more, --only and --filter fewer.")
    found = sorted(found[:limit], key=lambda one: (one.row.pipeline, one.row.bad.uri, one.row.recorded_at))
    tables = {pipeline: str(where.table) for pipeline, where in scope.tables.items()}
    documents = [{"table": tables.get(one.row.pipeline), **_document(one)} for one in found]
    if quiet:
        return documents
    print_table(
        (
            *(("pipeline",) if seen.several else ()),
            *("object", "version", "bad lines", "share", "warning", "first reason", "attempt", "outcome"),
        ),
        [
            (
                *((one.row.pipeline,) if seen.several else ()),
                one.row.bad.uri.removeprefix(LOCAL),
                version_of(one.ref),
                f"{one.row.bad.lines_quarantined:,}",
                _share(one),
                "yes" if one.row.warns else "",
                one.row.bad.reason or "",
                one.row.attempt_id,
                one.outcome,
            )
            for one in found
        ],
        empty="No bad lines." if selection == QuarantineSelection(state=None) else NONE,
    )
    if any(one.row.state is QuarantineState.OPEN for one in found):
        talk(
            printable(
                f"`penstock quarantine show{scope.options} OBJECT` shows the lines. Once the cause is fixed, `penstock "
                f"quarantine replay{scope.options}` reads them again; `penstock quarantine dismiss{scope.options}` "
                "accepts them as lost."
            )
        )
    return documents


def _shown(
    scope: Scope, selection: QuarantineSelection, *, limit: int
) -> list[tuple[Quarantined, Sequence[Mapping[str, object]]]]:
    """Return the versions of an object with their bad lines. Raises `UsageError` if there is none."""
    with view(scope) as seen:
        found = list(select(seen, selection))
        if not found:
            raise UsageError(
                f"The ledger of {scope.name} knows no bad lines of {selection.uris[0]}; `penstock quarantine "
                f"list{scope.options}` lists all objects with some."
            )
        return [(one, lines_of(seen, one.row, limit=limit)) for one in found]


def _print_lines(one: Quarantined, lines: Sequence[Mapping[str, Any]]) -> None:
    bad = one.row.bad
    print_fields(
        {
            "object": bad.uri,
            "version": version_of(one.ref),
            "attempt": f"{one.row.attempt_id}, {moment(one.row.recorded_at)}",
            "bad lines": f"{bad.lines_quarantined:,} ({_share(one)}{', a warning' if one.row.warns else ''})",
            "outcome": one.outcome,
        }
    )
    print_table(
        (bad.place.removeprefix("_"), "reason", "line"),
        [
            (line["offset"], f"{line['reason']}: {line['detail']}", _cut(_text(line["raw"]), RAW_CHARS_MAX))
            for line in lines
        ],
        empty="No lines.",
    )
    if len(lines) < bad.lines_quarantined:
        talk(f"{len(lines):,} of {counted(bad.lines_quarantined, 'bad line')}; --limit shows more.")


def _note_left_out(planned: QuarantinePlan) -> None:
    for uri in planned.unknown:
        talk(printable(f"The ledger knows no bad lines of {uri}."))
    for uri, reason in planned.missing:
        talk(printable(f"{uri} cannot be read again, and its lines stay in quarantine: {reason}."))
    if planned.replayed:
        talk(f"{counted(planned.replayed, 'object')} left alone: the lines were replayed before.")
    if planned.dismissed:
        talk(f"{counted(planned.dismissed, 'object')} left alone: the lines were dismissed before.")
    if planned.running:
        talk(f"{counted(planned.running, 'object')} left alone: a replay of the lines runs.")


def _print_replayed(
    scope: Scope,
    planned: QuarantinePlan,
    sent: Mapping[str, int],
    *,
    dry_run: bool,
    interrupted: bool,
    json_: bool,
) -> None:
    if json_:
        document = {"by_queue": dict(planned.by_queue if dry_run else sent), **_plan_document(planned)}
        count = {} if dry_run else {"sent": sum(sent.values()), "interrupted": interrupted}
        print_json(count | document)
    elif not planned.objects:
        talk(NONE)
    elif dry_run:
        print(f"Would replay {_extent(planned)}.")
    else:
        doer = "the workers read" if scope.table is None else "run the same `penstock ingest` again, which reads"
        print(printable(f"Replays sent for {counted(sum(sent.values()), 'object')}; {doer} the lines."))


def _print_dismissed(
    planned: QuarantinePlan, done: tuple[int, int], *, dry_run: bool, interrupted: bool, json_: bool
) -> None:
    objects, lines = done
    if json_:
        count = {} if dry_run else {"dismissed": objects, "interrupted": interrupted}
        print_json(count | _plan_document(planned))
    elif not planned.objects:
        talk(NONE)
    elif dry_run:
        print(f"Would dismiss {_extent(planned)}.")
    else:
        print(f"Dismissed: {counted(lines, 'bad line')} in {counted(objects, 'object')}.")


def _plan_document(planned: QuarantinePlan) -> dict[str, Any]:
    return {
        "objects": len(planned.objects),
        "lines": planned.lines,
        "replayed_before": planned.replayed,
        "dismissed_before": planned.dismissed,
        "running": planned.running,
        "missing": [{"object": uri, "reason": reason} for uri, reason in planned.missing],
        "unknown": planned.unknown,
    }


def _exit_of(selection: QuarantineSelection, planned: QuarantinePlan) -> int:
    return UsageError.exit_code if selection.uris and len(planned.unknown) == len(selection.uris) else 0


def _document(one: Quarantined) -> dict[str, Any]:
    """Return an object with bad lines as a JSON document. Times are epoch seconds."""
    row, bad = one.row, one.row.bad
    return {
        "pipeline": row.pipeline,
        "object": bad.uri,
        "version": version_of(one.ref),
        "attempt_id": row.attempt_id,
        "bad_lines": bad.lines_quarantined,
        "good_lines": bad.rows,
        "share": round(row.share, 6),
        "warning": row.warns,
        "first_reason": bad.reason,
        "state": row.state.value,
        "replay": None if one.replay is None else one.replay.value,
        "replay_reason": None if one.replay_row is None else one.replay_row.reason,
        "quarantined_at": row.recorded_at,
        "ended_at": row.ended_at,
    }


def _line(line: Mapping[str, Any]) -> dict[str, Any]:
    raw: bytes = line["raw"]
    return {
        "place": line["offset"],
        "reason": line["reason"],
        "detail": line["detail"],
        "line": _text(raw[:RAW_BYTES_MAX]),
        "bytes": len(raw),
    }


def _extent(planned: QuarantinePlan) -> str:
    return f"{counted(planned.lines, 'bad line')} in {counted(len(planned.objects), 'object')}"


def _share(one: Quarantined) -> str:
    return f"{one.row.share:.1%}"


def _text(raw: bytes) -> str:
    """Return a line as text, with bytes that are not UTF-8 made visible."""
    return raw.decode("utf-8", "backslashreplace")


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}... ({len(text):,} characters)"

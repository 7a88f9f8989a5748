"""`penstock objects retry`: send notifications for objects that ended unprocessed or retracted again."""

from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.app.kill import killing_probe
from penstock.cli import output
from penstock.cli.dead import options
from penstock.cli.exits import stoppable, stopped_code
from penstock.cli.options import grouped_options, object_uri
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.ledger.records import ObjectState
from penstock.messaging.wording import counted
from penstock.operations.dead_letters.selection import opened_ledger
from penstock.operations.inspection import view
from penstock.operations.objects.readers import ingest_hint
from penstock.operations.objects.retry import RetryPlan, RetrySelection, plan
from penstock.operations.objects.retry import retry as announce_anew

NONE = "No such objects."


class EndedState(StrEnum):
    """The states that can be selected."""

    DEAD = "dead"
    DELETED = "gone"
    SUPERSEDED = "superseded"
    RETRACTED = "retracted"


@grouped_options
def retry(
    where: ScopeOptions,
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OBJECT]...", help="Addresses or paths of objects; default: all failed ones."),
    ] = None,
    only: Annotated[
        EndedState, typer.Option("--only", help="All objects in this state; named objects may be in any.")
    ] = EndedState.DEAD,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Only objects with this text in their address.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="The queue of their pipeline, if the app is not known."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Maximum number of objects; the same ones until a worker takes them."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="Maximum number of objects per second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be sent, send nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Send notifications for failed, deleted, superseded or retracted objects again.

    A worker then processes them, with attempts counted from one. Use it for a failed object whose dead letter was
    purged or expired (otherwise `penstock dead replay --object` sends the dead letter back), and for a deleted or
    superseded one whose content still exists. For a retracted one it undoes `penstock objects retract`. Asks first.
    Exit code 1: not confirmed; 2: none of the named objects is in one of these states; 75 or 130: stopped, run it
    again to continue.
    """
    nameless = next((uri for uri in uris or () if not uri), None)
    options.refuse_empty({"--filter": filter_, "--queue": queue, "OBJECT": nameless})
    if uris and filter_ is not None:
        raise UsageError("Name objects or give --filter, not both.")
    if not (yes or dry_run):
        output.require_terminal("objects retry")
    named = [object_uri(uri) for uri in uris or ()]
    selection = RetrySelection(
        uris=named, state=ObjectState(only.value), uri_contains=filter_, queue=queue, limit=limit, rate=rate
    )
    scope, probe = where.scope(), killing_probe(load_settings().kill_at)
    with view(scope) as seen:
        planned = plan(seen, selection)
    _note_left_out(planned)
    total = planned.objects.total()
    if dry_run:
        _print_plan(planned, json_=json_)
    elif not total:
        _print_sent({}, planned, interrupted=False, json_=json_)
    if dry_run or not total:
        raise typer.Exit(UsageError.exit_code if named and not total else 0)
    _note_dead_letters(planned)
    if not yes:
        for name, count in planned.by_queue.items():
            talk(printable(f"{count:>9,}  -> {name}"))
        if not output.confirmed(f"Enqueue {_object_count(total)} again?"):
            raise output.declined("announced")
    with (
        view(scope, make=True) as seen,  # a missing queue is created
        stoppable() as stop,
        closing(opened_ledger(seen)) as ledger,
        options.progress("announcing", total=total, unit="objects") as on_progress,
    ):
        sent = announce_anew(
            seen,
            selection,
            planned,
            ledger=ledger,
            stopped=lambda: stop.requested,
            on_progress=on_progress,
            probe=probe,
        )
        interrupted, hint = stop.requested, ingest_hint(seen)
    _print_sent(sent, planned, interrupted=interrupted, json_=json_)
    if hint is not None and sent.total() and not json_:
        talk(printable(hint))
    if interrupted:
        raise typer.Exit(stopped_code(stop))


def _note_left_out(planned: RetryPlan) -> None:
    for uri in planned.unknown:
        talk(printable(f"The ledger knows no object {uri}."))
    for uri, state in planned.not_dead:
        talk(printable(f"{uri} is {state.value}, and left alone."))
    if planned.replaced:
        talk(f"{_object_count(planned.replaced)} left alone: later versions of them were processed.")
    if planned.others:
        talk(printable(f"Not in the app, so left alone: the ledger's pipelines {', '.join(planned.others)}."))


def _note_dead_letters(planned: RetryPlan) -> None:
    if planned.dead_letters:
        counts = ", ".join(f"{name} {count:,}" for name, count in planned.dead_letters.items())
        talk(
            printable(
                f"The DLQs have dead letters ({counts}), perhaps of these objects: `penstock dead replay` sends those "
                "back instead. A processed object needs no dead letter: `penstock dead purge --object` deletes it."
            )
        )


def _print_plan(planned: RetryPlan, *, json_: bool) -> None:
    if json_:
        print_json({"objects": planned.objects.total(), **_document(planned, planned.by_queue)})
        return
    _note_dead_letters(planned)
    print_table(("objects", "to"), [(count, name) for name, count in planned.by_queue.items()], empty=NONE)


def _print_sent(sent: Mapping[str, int], planned: RetryPlan, *, interrupted: bool, json_: bool) -> None:
    total = sum(sent.values())
    if json_:
        print_json({"sent": total, "interrupted": interrupted, **_document(planned, sent)})
        return
    if not planned.objects.total():
        talk(NONE)
        return
    into = ", ".join(f"{name} {count:,}" for name, count in sent.items())
    print(printable(f"{_object_count(total)} enqueued again{f' ({into})' if into else ''}."))


def _document(planned: RetryPlan, by_queue: Mapping[str, int]) -> dict[str, Any]:
    return {
        "by_queue": dict(by_queue),
        "dead_letters": dict(planned.dead_letters),
        "replaced": planned.replaced,
        "other_pipelines": list(planned.others),
        "not_dead": [{"object": uri, "state": state.value} for uri, state in planned.not_dead],
        "unknown": planned.unknown,
    }


def _object_count(count: int) -> str:
    return counted(count, "object")

"""`penstock objects retry`: dead, gone and superseded objects are announced anew."""

from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.dead import options
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, counted, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions, object_uri
from penstock.errors import UsageError
from penstock.ledger.records import ObjectState

if TYPE_CHECKING:
    from penstock.operations.objects.retry import RetryPlan

NONE = "No such objects."


class EndedState(StrEnum):
    """The states that can be named."""

    DEAD = "dead"
    GONE = "gone"
    SUPERSEDED = "superseded"


@grouped_options
def retry(
    where: ScopeOptions,
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OBJECT]...", help="Their addresses, or paths; default: all that are dead."),
    ] = None,
    only: Annotated[
        EndedState, typer.Option("--only", help="All in this state; objects that are named may be in any of them.")
    ] = EndedState.DEAD,
    filter_: Annotated[str | None, typer.Option("--filter", help="Those whose address contains this text.")] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="What feeds their pipeline, where no --app can say it."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="At most so many objects: the same ones until a worker takes them."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="At most so many objects a second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be announced, send nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Announce dead, gone or superseded objects anew: a worker tries them again, with all their attempts.

    For dead objects whose dead letter was purged or expired; otherwise `penstock dead replay --object` sends the letter
    back instead. For gone and superseded ones if their content exists after all. Asks first. Exit code 1: you said no;
    2: none of those named is dead, gone or superseded; 75 or 130: stopped, run it again to go on.
    """
    from penstock.app.kill import killing_probe
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.config import load_settings
    from penstock.operations.dead_letters.letters import opened_ledger
    from penstock.operations.inspection import view
    from penstock.operations.objects.retry import RetrySelection, plan
    from penstock.operations.objects.retry import retry as announce_anew

    nameless = next((uri for uri in uris or () if not uri), None)
    options.must_say_something({"--filter": filter_, "--queue": queue, "OBJECT": nameless})
    if uris and filter_ is not None:
        raise UsageError("Name objects or give --filter, not both.")
    if not (yes or dry_run):
        output.must_be_told("objects retry")
    named = [object_uri(uri) for uri in uris or ()]
    asked = RetrySelection(
        uris=named, state=ObjectState(only.value), uri_contains=filter_, queue=queue, limit=limit, rate=rate
    )
    scope, probe = where.scope(), killing_probe(load_settings().kill_at)
    with view(scope) as seen:
        planned = plan(seen, asked)
    _say_left_out(planned)
    total = planned.objects.total()
    if dry_run:
        _print_plan(planned, json_=json_)
    elif not total:
        _print_sent({}, planned, interrupted=False, json_=json_)
    if dry_run or not total:
        raise typer.Exit(UsageError.exit_code if named and not total else 0)
    _say_letters(planned)
    if not yes:
        for name, count in planned.by_queue.items():
            talk(printable(f"{count:>9,}  -> {name}"))
        if not output.confirmed(f"Announce {_said(total)} anew?"):
            raise output.declined("announced")
    with (
        view(scope, make=True) as seen,  # where the queue was lost it is made again
        stoppable() as stop,
        closing(opened_ledger(seen)) as ledger,
        options.progress("announcing", total=total, what="objects") as told,
    ):
        sent = announce_anew(
            seen, asked, planned, ledger=ledger, stopped=lambda: stop.requested, told=told, probe=probe
        )
        interrupted = stop.requested
    _print_sent(sent, planned, interrupted=interrupted, json_=json_)
    if interrupted:
        raise typer.Exit(stopped_code(stop))


def _say_left_out(planned: "RetryPlan") -> None:
    for uri in planned.unknown:
        talk(printable(f"The ledger knows no object {uri}."))
    for uri, state in planned.not_dead:
        talk(printable(f"{uri} is {state.value}, and left alone."))
    if planned.replaced:
        talk(f"{_said(planned.replaced)} left alone: later versions of them were processed.")
    if planned.others:
        talk(printable(f"Of the ledger's pipelines the app does not have {', '.join(planned.others)}: left alone."))


def _say_letters(planned: "RetryPlan") -> None:
    if planned.letters:
        lying = ", ".join(f"{name} {count:,}" for name, count in planned.letters.items())
        talk(
            printable(
                f"Dead letters lie there ({lying}), perhaps of these objects: `penstock dead replay` sends those back "
                "instead. One whose object is processed is of use to nobody: `penstock dead purge --object` deletes it."
            )
        )


def _print_plan(planned: "RetryPlan", *, json_: bool) -> None:
    if json_:
        print_json({"objects": planned.objects.total(), **_document(planned, planned.by_queue)})
        return
    _say_letters(planned)
    print_table(("objects", "to"), [(count, name) for name, count in planned.by_queue.items()], empty=NONE)


def _print_sent(sent: Mapping[str, int], planned: "RetryPlan", *, interrupted: bool, json_: bool) -> None:
    total = sum(sent.values())
    if json_:
        print_json({"sent": total, "interrupted": interrupted, **_document(planned, sent)})
        return
    if not planned.objects.total():
        talk(NONE)
        return
    into = ", ".join(f"{name} {count:,}" for name, count in sent.items())
    print(printable(f"{_said(total)} announced anew{f' ({into})' if into else ''}."))


def _document(planned: "RetryPlan", by_queue: Mapping[str, int]) -> dict[str, Any]:
    return {
        "by_queue": dict(by_queue),
        "letters": dict(planned.letters),
        "replaced": planned.replaced,
        "other_pipelines": list(planned.others),
        "not_dead": [{"object": uri, "state": state.value} for uri, state in planned.not_dead],
        "unknown": planned.unknown,
    }


def _said(count: int) -> str:
    return counted(count, "object")

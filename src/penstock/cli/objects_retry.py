"""`penstock objects retry`: dead objects are announced anew."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import asking, dead_options
from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, counted, print_json, print_table, printable, talk
from penstock.cli.where import Where, object_uri
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.objects_retry import Plan, Report


@grouped_options
def retry(
    where: Where,
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OBJECT]...", help="Their addresses, or paths; default: all that are dead."),
    ] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Dead objects whose address contains this text.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Announce them here, where --app is not given.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many objects.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="At most so many objects a second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be announced, send nothing.")] = False,
    yes: asking.Yes = False,
    json_: Json = False,
) -> None:
    """Announce dead objects anew: whoever works on their queue tries them again, with all their attempts.

    For those whose dead letter is gone; where it is not, `penstock dead replay --object` sends that back instead. Asks
    first. Run twice it lets each live again once. Exit code 2: none of those named is dead; 75 or 130: stopped.
    """
    from penstock.app.dead_letters import opened_ledger
    from penstock.app.inspect import view
    from penstock.app.kill import killing_probe
    from penstock.app.objects_retry import Asked, plan
    from penstock.app.objects_retry import retry as announce_anew
    from penstock.cli.leaving import stoppable, stopped_code
    from penstock.config import load_settings

    nameless = next((uri for uri in uris or () if not uri), None)
    dead_options.must_say_something({"--filter": filter_, "--queue": queue, "OBJECT": nameless})
    if uris and filter_ is not None:
        raise UsageError("Name objects or give --filter, not both.")
    if not (yes or dry_run):
        asking.must_be_told("objects retry")
    asked = Asked(uris=[object_uri(uri) for uri in uris or ()], uri_contains=filter_, queue=queue, limit=limit)
    with view(where.scope()) as seen:
        planned = plan(seen, asked)
        _say_left_out(planned)
        if dry_run:
            _print_plan(planned, json_=json_)
            raise typer.Exit(UsageError.exit_code if uris and not planned.objects else 0)
        if planned.objects and not yes:
            for name, count in planned.by_queue.items():
                talk(printable(f"{count:>9,}  -> {name}"))
            if not asking.confirmed(f"Announce {_said(planned.objects)} anew?"):
                raise asking.declined("announced")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            dead_options.progress("announcing", total=planned.objects, what="objects") as told,
        ):
            report = announce_anew(
                seen,
                asked,
                rate=rate,
                ledger=ledger,
                stopped=lambda: stop.requested,
                told=told,
                probe=killing_probe(load_settings().kill_at),
            )
    _print_report(report, planned, interrupted=stop.requested, json_=json_)
    if stop.requested:
        raise typer.Exit(stopped_code(stop))
    if uris and not planned.objects:
        raise typer.Exit(UsageError.exit_code)


def _say_left_out(planned: "Plan") -> None:
    for uri in planned.unknown:
        talk(printable(f"The ledger knows no object {uri}."))
    for uri, state in planned.not_dead:
        talk(printable(f"{uri} is not dead but {state.value}, and left alone."))
    if planned.replaced:
        talk(f"{_said(planned.replaced)} left alone: later versions of them were processed.")


def _print_plan(planned: "Plan", *, json_: bool) -> None:
    if json_:
        print_json({"objects": planned.objects, "by_queue": planned.by_queue, **_left_out(planned)})
        return
    print_table(("objects", "to"), [(count, name) for name, count in planned.by_queue.items()], empty=_NONE)


def _print_report(report: "Report", planned: "Plan", *, interrupted: bool, json_: bool) -> None:
    sent = report.sent.total()
    if json_:
        left = _left_out(planned)
        print_json({"sent": sent, "by_queue": report.sent, "interrupted": interrupted, **left})
        return
    if not planned.objects:
        talk(_NONE)
        return
    into = ", ".join(f"{name} {count:,}" for name, count in report.sent.items())
    print(printable(f"{_said(sent)} announced anew{f' ({into})' if into else ''}."))
    if report.letters.total():
        lying = ", ".join(f"{name} {count:,}" for name, count in report.letters.items() if count)
        talk(printable(f"Dead letters stay where they are ({lying}), those of these objects too."))


def _left_out(planned: "Plan") -> dict[str, object]:
    return {
        "replaced": planned.replaced,
        "not_dead": [{"object": uri, "state": state.value} for uri, state in planned.not_dead],
        "unknown": planned.unknown,
    }


def _said(count: int) -> str:
    return counted(count, "dead object")


_NONE = "No such dead objects."

"""`penstock monitor`: measure queues, dead letters and ledger, and answer for the numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import TEMPORARY_FAILURE
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.queues import age_of, oldest, oldest_visible
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.operations.monitor.look import MonitorSample


def monitor(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where to answer, as in the setting monitor_address."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="MonitorSample once, print what is there, and exit.")] = False,
    json_: Json = False,
) -> None:
    """Measure the app's queues, dead letters and ledger until SIGTERM or Ctrl-C, and answer for the numbers: /metrics,
    /livez, /readyz and /startupz. It changes nothing; run one beside any number of workers.

    Exit code 75: with --once, and something could not be seen.
    """
    from penstock.cli.exits import leave_now, stoppable

    if json_ and not once:
        raise UsageError("--json is for the one look of --once; without it the numbers are at /metrics.")
    with stoppable() as stop:
        from penstock.app.loading import load_app
        from penstock.config import with_flags
        from penstock.operations.monitor.process import look_once, run_monitor

        served = load_app(app_name)
        served.settings = with_flags(served.settings, monitor_address=address)
        if once:
            raise typer.Exit(_report(look_once(served), json_=json_))
        if not run_monitor(served, stop=stop):
            leave_now(0)


def _report(look: "MonitorSample", *, json_: bool) -> int:
    """Print it; answers the exit code."""
    if json_:
        print_json(dataclasses.asdict(look))
    else:
        _print(look)
        for source, error in look.errors.items():
            talk(printable(f"The {source} cannot be seen: {error}"))
    return TEMPORARY_FAILURE if look.errors else 0


def _print(look: "MonitorSample") -> None:
    if look.queues or "broker" not in look.errors:
        print_table(
            ("queue", "visible", "in flight", "delayed", "oldest visible", "oldest"),
            [
                (
                    one.queue,
                    one.visible,
                    one.in_flight,
                    one.delayed,
                    oldest_visible(one),
                    oldest(one),
                )
                for one in look.queues
            ],
            empty="No queue is there yet.",
        )
    if look.dead_letters:
        print_table(
            ("queue", "tier", "dead letters", "oldest"),
            [
                (one.queue, one.tier, one.letters, age_of(one.oldest_age_seconds) if one.letters else "")
                for one in look.dead_letters
            ],
            empty="",
        )
    if look.pipelines:
        print_table(
            ("pipeline", "objects", "oldest unprocessed", "overdue", "missing", "publish lag"),
            [
                (
                    one.pipeline,
                    ", ".join(_counts(one.objects)) or "none",
                    age_of(one.oldest_unprocessed_age_seconds or None),
                    one.overdue,
                    "" if one.missing is None else one.missing,
                    age_of(one.commit_to_publish_lag_seconds),
                )
                for one in look.pipelines
            ],
            empty="",
        )


def _counts(objects: Mapping[str, int]) -> Sequence[str]:
    return [f"{count:,} {state}" for state, count in objects.items() if count]

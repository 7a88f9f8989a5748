"""`penstock replayer`: bring dead letters back, and do nothing else."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import TEMPORARY_FAILURE
from penstock.cli.options import StopTimeout
from penstock.cli.output import Json, print_json, print_table
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.running import WorkerRole
    from penstock.operations.dead_letters.replay_once import ReplayCounts, ReplayTally


def replayer(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", metavar="A,B", help="The queues whose dead letters come back; default: all with a handler."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Bring back what is due now, report, and exit.")] = False,
    stop_timeout: StopTimeout = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Answer here for metrics and health.")
    ] = None,
    json_: Json = False,
) -> None:
    """Send dead letters back to their queues, each after its wait, until SIGTERM or Ctrl-C; those that were replayed
    often enough go to the second tier.

    A worker does the same beside its work with --replay. `penstock worker ps`, `drain` and `stop` know it as a worker.
    Exit code 78: a setting or a queue does not fit. 75: with --once, and letters are left that could not be sent now.
    """
    from penstock.cli.worker import run_here

    if json_ and not once:
        raise UsageError("--json is for the report of --once; without it there is none, and the log tells.")
    names = None if queues is None else _names(queues)
    tally: list[ReplayTally] = []

    def prepare(app: "App") -> "WorkerRole":
        part, told = _part(app, names, once=once)
        tally.append(told)
        return part

    run_here(
        app_name,
        {"stop_timeout_seconds": stop_timeout, "metrics_address": metrics},
        process="replayer",
        prepare=prepare,
        conclude=lambda: _report(tally[0].report(), json_=json_) if once else 0,
    )


def _part(app: "App", queues: "list[str] | None", *, once: bool) -> "tuple[WorkerRole, ReplayTally]":
    from penstock.app.replayer import tiers_to_serve, with_sample
    from penstock.app.running import WorkerRole
    from penstock.dead_letters.sample import sample_settings
    from penstock.messaging.clock import SystemClock
    from penstock.operations.dead_letters.replay_once import NothingDue, ReplayTally

    sample = sample_settings(os.environ)
    app.settings = with_sample(app.settings, sample)
    if queues is None and not app.settings.queues and sample.queue is not None:
        queues = [sample.queue]
    tiers = tiers_to_serve(app, queues)
    tally = ReplayTally()
    until = NothingDue(app.broker, tiers, clock=SystemClock()) if once else None
    return WorkerRole(tiers=tiers, until=until, listeners=(tally,) if once else ()), tally


def _report(found: "Mapping[str, ReplayCounts]", *, json_: bool) -> int:
    """Print it; answers the exit code."""
    if json_:
        print_json({queue: dataclasses.asdict(each) for queue, each in found.items()})
    else:
        print_table(
            ("queue", "sent", "held", "set aside", "put back"),
            [(queue, each.sent, each.held, each.set_aside, each.put_back) for queue, each in found.items()],
            empty="No dead letter was due.",
        )
    return TEMPORARY_FAILURE if any(each.put_back for each in found.values()) else 0


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise UsageError(f"--queues {text!r} is not a list of different queues, as in orders,mails.")
    return names

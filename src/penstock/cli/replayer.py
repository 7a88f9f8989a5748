"""`penstock admin replayer`: send the dead letters back that are due, and exit."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.replayer import dlqs_to_serve, with_sample
from penstock.app.running import WorkerRole
from penstock.cli.apps import AppArgument, AppOption, required_app
from penstock.cli.exits import TEMPORARY_FAILURE
from penstock.cli.options import StopTimeout
from penstock.cli.output import Json, print_json, print_table
from penstock.cli.worker import run_here
from penstock.dead_letters.sample import sample_settings
from penstock.errors import UsageError
from penstock.messaging.clock import SystemClock
from penstock.operations.dead_letters.replay_once import NothingDue, ReplayCounter, ReplayCounts

if TYPE_CHECKING:
    from penstock.app.app import App


def replayer(
    app: AppArgument = None,
    app_option: AppOption = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="A,B", help="The queues to replay; default: all with a handler."),
    ] = None,
    stop_timeout: StopTimeout = None,
    json_: Json = False,
) -> None:
    """Send the dead letters back that are due now, print a report, and exit.

    Messages that were replayed too often go to the final DLQ. To replay all the time, run workers with --replay; a
    process for this alone is `penstock worker APP --replay --jobs only`. Exit code 78: a setting or a queue is wrong.
    75: some dead letters could not be sent.
    """
    names = None if queues is None else _names(queues)
    tally: list[ReplayCounter] = []

    def prepare(app: "App") -> WorkerRole:
        part, counter = _part(app, names)
        tally.append(counter)
        return part

    run_here(
        required_app(app, app_option),
        {"worker_stop_timeout": stop_timeout},
        process="replayer",
        prepare=prepare,
        conclude=lambda: _report(tally[0].report(), json_=json_),
        serves_metrics=False,
    )


def _part(app: "App", queues: list[str] | None) -> tuple[WorkerRole, ReplayCounter]:
    sample = sample_settings(os.environ)
    app.settings = with_sample(app.settings, sample)
    if queues is None and not app.settings.worker_queues and sample.queue is not None:
        queues = [sample.queue]
    dlqs = dlqs_to_serve(app, queues)
    tally = ReplayCounter()
    until = NothingDue(app.broker, dlqs, clock=SystemClock())
    return WorkerRole(dlqs=dlqs, until=until, listeners=(tally,)), tally


def _report(found: Mapping[str, ReplayCounts], *, json_: bool) -> int:
    """Print the counts; return the exit code."""
    if json_:
        print_json({queue: dataclasses.asdict(each) for queue, each in found.items()})
    else:
        print_table(
            ("queue", "sent", "waiting", "set aside", "released"),
            [(queue, each.sent, each.waiting, each.set_aside, each.released) for queue, each in found.items()],
            empty="No dead letter was due.",
        )
    return TEMPORARY_FAILURE if any(each.released for each in found.values()) else 0


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise UsageError(f"--queues {text!r} is not a list of different queues, as in orders,mails.")
    return names

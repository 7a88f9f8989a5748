"""`penstock worker`: run a worker, or several; `worker_control` has what is said to those that run.

`penstock worker ps`, `drain` and `stop`: which workers run here, and what they are told.
"""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from penstock.cli.exits import FAILED
from penstock.cli.options import StopTimeout, duration_if
from penstock.cli.output import Json, counted, moment, print_json, print_table, printable, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.registry import WorkerRecord, Workers
    from penstock.app.running import WorkerRole
    from penstock.app.telemetry import Process
    from penstock.config import Settings


State = Annotated[
    str | None, typer.Option("--state", metavar="FOLDER", help="The workers' state folder, as in the setting state.")
]
Worker = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="This one: its id, or its process id on this host.")
]
All = Annotated[bool, typer.Option("--all", help="All of this host.")]


def ps(state: State = None, json_: Json = False) -> None:
    """List the living workers of this state folder on this host. Those of other hosts are listed there."""
    import time

    workers = _workers(state)
    now = time.time()
    records, silent = workers.records(), workers.silent()
    if json_:
        print_json([_document(record, now) for record in records] + [{"worker": worker} for worker in silent])
        return
    print_table(
        ("worker", "host", "pid", "version", "since", "state", "queues", "in flight", "last heartbeat", "metrics"),
        [
            (
                record.worker,
                record.host,
                record.pid,
                record.version,
                moment(record.started_at),
                record.state,
                ", ".join(_shown(queue, {**record.unserved, **record.paused}) for queue in record.queues),
                record.in_flight,
                f"{max(0.0, now - record.beat_at):.0f} s ago",
                record.metrics_address or "",
            )
            for record in records
        ]
        + [(worker, "", "", "", "", "keeps no record", "", "", "", "") for worker in silent],
        empty="No worker of this state folder runs on this host.",
    )


def drain(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Let workers of this state folder on this host fetch no more, finish what they hold, and stay up."""
    _signal(_workers(state), signal.SIGTSTP, worker, all_=all_, json_=json_, verb="to drain")


def stop(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Let workers of this state folder on this host finish what they hold, or give it back in time, and end."""
    _signal(_workers(state), signal.SIGTERM, worker, all_=all_, json_=json_, verb="to stop")


def _workers(state: str | None) -> "Workers":
    from penstock.app.registry import Workers
    from penstock.config import load_settings

    return Workers(Path(load_settings(state=state).state))


def _signal(
    workers: "Workers", number: signal.Signals, worker: str | None, *, all_: bool, json_: bool, verb: str
) -> None:
    from penstock.app.registry import is_local

    asked: list[str] = []
    elsewhere: list[str] = []
    for record in _chosen(workers.records(), worker, all_=all_):
        if not is_local(record):
            elsewhere.append(record.worker)
        elif workers.signal(record, number):
            asked.append(record.worker)
    if json_:
        print_json({"asked": asked, "elsewhere": elsewhere})
    else:
        print(f"{counted(len(asked), 'worker')} asked {verb}.")
    for name in elsewhere:
        talk(printable(f"{name} runs on another host or in another container; ask it there."))
    if elsewhere and not asked:
        raise typer.Exit(FAILED)


def _chosen(records: "Sequence[WorkerRecord]", worker: str | None, *, all_: bool) -> "Sequence[WorkerRecord]":
    """Those that are meant. One worker alone need not be named."""
    if all_ and worker is not None:
        raise UsageError("Give --worker or --all, not both.")
    if worker is not None:
        records = [record for record in records if worker in (record.worker, str(record.pid))]
        if not records:
            raise UsageError(
                f"There is no living worker {worker} of this state folder on this host; `penstock worker ps` lists "
                "those there are."
            )
    elif len(records) > 1 and not all_:
        names = ", ".join(record.worker for record in records)
        raise UsageError(f"There are {len(records)} workers: {names}; name one with --worker, or give --all.")
    return records


def _shown(queue: str, paused: Mapping[str, str]) -> str:
    return f"{queue} (paused: {paused[queue]})" if queue in paused else queue


def _document(record: "WorkerRecord", now: float) -> dict[str, object]:
    fields = dataclasses.asdict(record)
    del fields["namespace"]
    return {**fields, "beat_age_seconds": max(0.0, now - record.beat_at)}


LEAVING_SECONDS = 1.0  # of the stop timeout's margin
MARGIN_SECONDS = 0.5  # before the platform's SIGKILL: whatever hangs then is left behind
RUN = "run"


class _RunByDefault(TyperGroup):
    """`penstock worker shop:app` is `penstock worker run shop:app`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in (*ctx.help_option_names, "--"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Run a worker on the queues of an app: `penstock worker shop:app`. See which run, and let them drain or stop.",
    subcommand_metavar="APP | COMMAND",
    no_args_is_help=True,
)


@app.command(RUN)
def run(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="A=2,B=1", help="The queues to serve, with their weights; default: all."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, max=10_000, help="Messages in work at once, in each process.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, max=256, help="Worker processes to start and watch.")
    ] = None,
    stop_timeout: StopTimeout = None,
    reconcile_every: Annotated[
        str | None,
        typer.Option(
            "--reconcile-every",
            metavar="TIME",
            help="Look so often for objects of its pipelines that were never processed, as in 1h; one worker does.",
        ),
    ] = None,
    replay: Annotated[
        bool | None,
        typer.Option("--replay/--no-replay", help="Also send the dead letters of its queues back, after a wait."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Answer here for metrics and health; of several processes each at a port of its own, from this on.",
        ),
    ] = None,
    lifeline: Annotated[
        int | None, typer.Option("--lifeline", hidden=True, help="For supervised workers: the supervisor's descriptor.")
    ] = None,
    number: Annotated[
        int, typer.Option("--number", hidden=True, help="For supervised workers: which of them this is, from 0.")
    ] = 0,
) -> None:
    """Work on the app's queues until SIGTERM or Ctrl-C; then finish what is in flight, or give it back in time.

    A second signal gives back at once. SIGTSTP stops fetching and stays up; SIGUSR1 or SIGTTIN logs what every thread
    is doing. Exit code 0: drained, or given back. 1: something would not end. 78: a setting or a queue does not fit.
    """
    from penstock.config import load_settings

    flags = {
        "queues": None if queues is None else parse_queues(queues),
        "concurrency": concurrency,
        "stop_timeout_seconds": stop_timeout,
        "reconcile_every_seconds": duration_if("--reconcile-every", reconcile_every),
        "replay": replay,
        "metrics_address": metrics,
    }
    if lifeline is None:
        settings = load_settings(processes=processes, **flags)
        if settings.processes > 1 or os.getpid() == 1:
            options = {
                "--queues": queues,
                "--concurrency": concurrency,
                "--stop-timeout": stop_timeout,
                "--reconcile-every": reconcile_every,
                "--metrics": metrics,
                "--replay": replay,
            }
            raise typer.Exit(_supervise(_arguments(app_name, options), settings))
    run_here(app_name, flags, lifeline=lifeline, number=number)


app.command()(ps)
app.command()(drain)
app.command()(stop)


def parse_queues(text: str) -> dict[str, int]:
    """`a=2,b` as weights; 1 where none is given. Raises `UsageError` for anything else."""
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, equals, weight = part.strip().rpartition("=")
        if not equals:
            name, weight = weight, "1"
        if not name or not weight.isascii() or not weight.isdigit() or not 1 <= int(weight) <= 1_000:
            raise UsageError(
                f"--queues {text!r}: {part.strip()!r} is not NAME or NAME=WEIGHT, the weight from 1 to 1000."
            )
        if name in weights:
            raise UsageError(f"--queues {text!r} names {name} more than once.")
        weights[name] = int(weight)
    return weights


def run_here(
    app_name: str,
    flags: Mapping[str, object],
    *,
    lifeline: int | None = None,
    number: int = 0,
    process: "Process" = "worker",
    prepare: "Callable[[App], WorkerRole] | None" = None,
    conclude: Callable[[], int] = lambda: 0,
) -> NoReturn:
    """The worker of this process. From the first line on a signal is a request, also while the app is loaded.

    ``number`` is which of a supervisor's it is; ``prepare`` says what part of a worker's work it does; ``conclude``
    reports in the end and answers the exit code.
    """
    from penstock.cli.exits import leave_in_time, leave_now, leave_within
    from penstock.worker.shutdown import StopSignal

    stop = StopSignal()
    stop.install()
    try:
        from penstock.app.loading import load_app
        from penstock.app.metering import metrics_beside
        from penstock.app.running import WorkerRole, must_leave, run_worker
        from penstock.config import with_flags
        from penstock.operations.supervisor import end_with_parent, ready_for_signals

        ready_for_signals()
        if lifeline is not None:
            end_with_parent(lifeline, stop)
        served = load_app(app_name)
        served.settings = metrics_beside(with_flags(served.settings, **flags), number)
        leave_in_time(stop, served.settings.stop_timeout_seconds - MARGIN_SECONDS, FAILED)
        conclusion = run_worker(
            served, stop=stop, process=process, prepare=WorkerRole if prepare is None else partial(prepare, served)
        )
        reported = conclude()
    except BaseException as error:
        stop.remove()
        # A thread that a handler began may go on for ever, and nobody would start the worker again.
        leave_within(LEAVING_SECONDS, getattr(error, "exit_code", FAILED))
        raise
    exit_code = FAILED if conclusion.outcome == "forced" else reported
    if must_leave(conclusion):
        leave_now(exit_code)
    leave_within(LEAVING_SECONDS, exit_code)
    raise typer.Exit(exit_code)  # the signals stay handled: one that comes now must not change the exit code


def _arguments(app_name: str, given: Mapping[str, object]) -> Sequence[str]:
    """The command line of one child, without its lifeline."""
    options = [text for name, value in given.items() if value is not None for text in _option(name, value)]
    return ["-m", "penstock", "worker", RUN, app_name, *options]


def _option(name: str, value: object) -> Sequence[str]:
    if isinstance(value, bool):
        return [name if value else name.replace("--", "--no-")]
    return [name, str(value)]


def _supervise(arguments: Sequence[str], settings: "Settings") -> int:
    """Several workers below this process; or one, where this is PID 1, whose duties are others than a worker's."""
    import random

    from penstock.app.naming import worker_id
    from penstock.app.telemetry import open_log, open_reports
    from penstock.events import Bus
    from penstock.messaging.clock import SystemClock
    from penstock.operations.supervisor import Supervisor, lifeline, spawner
    from penstock.worker.settings import budget

    heard = open_reports(settings, worker=worker_id(), process="supervisor", tell=open_log(settings, worker=None))
    budget(stop_timeout_seconds=settings.stop_timeout_seconds, drain_seconds=settings.drain_seconds)
    with heard.told(), lifeline() as descriptor:
        spawn = spawner(
            lambda number: [*arguments, "--lifeline", str(descriptor), "--number", str(number)],
            executable=sys.executable,
            environment=dict(os.environ),
        )
        return Supervisor(
            spawn,
            processes=settings.processes,
            stop_timeout_seconds=settings.stop_timeout_seconds,
            restarts=settings.processes > 1,
            clock=SystemClock(),
            random=random.random,
            tell=Bus(*heard.listeners).emit,
        ).run()

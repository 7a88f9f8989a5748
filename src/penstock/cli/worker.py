"""`penstock worker`: run a worker, or several of them under a supervisor."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.cli import exits
from penstock.cli.apps import AppArgument, AppOption, required_app
from penstock.cli.exits import FAILED
from penstock.cli.options import Master, SparkSession, StopTimeout, duration_if
from penstock.config import JOBS, load_settings
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.running import WorkerRole
    from penstock.app.telemetry import Process


UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"  # as in `penstock.app.spark`, which loads too much for here
LEAVING_SECONDS = 1.0  # of the stop timeout's margin


def worker(
    app: AppArgument = None,
    app_option: AppOption = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="A=2,B=1", help="The queues to serve, with their weights; default: all."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=10_000, help="Messages processed at once, in each process."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, max=256, help="Worker processes to start and supervise.")
    ] = None,
    stop_timeout: StopTimeout = None,
    master: Master = None,
    spark_session: SparkSession = None,
    reconcile_every: Annotated[
        str | None,
        typer.Option(
            "--reconcile-every",
            metavar="TIME",
            help="Interval at which one worker looks for objects that were never processed, such as 1h.",
        ),
    ] = None,
    replay: Annotated[
        bool | None,
        typer.Option("--replay/--no-replay", help="Also send dead letters of its queues back, each after its wait."),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="all|none|only|NAME,...",
            help=f"Background jobs to take part in: all, none, only (and no queue), or some of {', '.join(JOBS)}.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics-address",
            metavar="HOST:PORT",
            help="Serve metrics and health here; each further process at the next port.",
        ),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option("--web", metavar="HOST:PORT", help="Serve the dashboard here; of several processes, the first."),
    ] = None,
    lifeline: Annotated[
        int | None, typer.Option("--lifeline", hidden=True, help="For supervised workers: the supervisor's descriptor.")
    ] = None,
    number: Annotated[
        int, typer.Option("--number", hidden=True, help="For supervised workers: the position, from 0.")
    ] = 0,
) -> None:
    """Run a worker on the queues of an app.

    It runs until SIGTERM or Ctrl-C. Then it finishes the messages in flight, or releases them within the stop timeout.
    A second signal releases them at once. SIGTSTP stops fetching and keeps the worker up; SIGUSR1 or SIGTTIN logs the
    stack of every thread. Exit code 0: all messages were finished or released. 1: a message could not be released, or a
    thread hung. 78: a setting or a queue is wrong.
    """
    app_name = required_app(app, app_option)
    flags = {
        "worker_queues": None if queues is None else parse_queues(queues),
        "worker_concurrency": concurrency,
        "worker_stop_timeout": stop_timeout,
        "spark_master": master,
        "spark_session": spark_session,
        "objects_reconcile_every": duration_if("--reconcile-every", reconcile_every),
        "dead_letters_replay": replay,
        "worker_jobs": jobs,
        "metrics_address": metrics,
        "worker_web": web,
    }
    if lifeline is None:
        settings = load_settings(worker_processes=processes, **flags)
        if settings.worker_processes > 1 and UNDER_SPARK_SUBMIT in os.environ:
            raise UsageError(
                f"{settings.worker_processes} worker processes cannot share the Spark driver of one spark-submit: "
                "run spark-submit once for each, with --processes 1."
            )
        if settings.worker_processes > 1 or os.getpid() == 1:
            options = {
                "--queues": queues,
                "--concurrency": concurrency,
                "--stop-timeout": stop_timeout,
                "--master": master,
                "--spark-session": spark_session,
                "--reconcile-every": reconcile_every,
                "--jobs": jobs,
                "--metrics-address": metrics,
                "--replay": replay,
                "--web": web,
            }
            # Imported here: a worker's signals are handled from its first moment, so it loads little before that.
            from penstock.cli.supervise import supervise

            raise typer.Exit(supervise(_arguments(app_name, options), settings))
    run_here(app_name, flags, lifeline=lifeline, number=number)


def parse_queues(text: str) -> dict[str, int]:
    """Return the weights of a text such as `a=2,b`; the default is 1. Raises `UsageError` for anything else."""
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
    serves_metrics: bool = True,
) -> NoReturn:
    """Run the worker of this process, and exit. Signals are handled from the first line on, before the app is loaded.

    ``number`` is its position among a supervisor's workers; ``prepare`` returns its role; ``conclude`` prints a report
    at the end and returns the exit code. ``serves_metrics`` False is for a process that ends on its own: it may run
    beside a worker that has the address.
    """
    from penstock.worker.shutdown import StopSignal

    stop = StopSignal()
    stop.install()
    try:
        from penstock.cli import worker_process

        conclusion = worker_process.run(
            app_name,
            flags,
            stop=stop,
            lifeline=lifeline,
            number=number,
            process=process,
            prepare=prepare,
            serves_metrics=serves_metrics,
        )
        reported = conclude()
    except BaseException as error:
        stop.remove()
        # A thread that a handler started may never end, and the platform would not restart the worker.
        exits.leave_within(LEAVING_SECONDS, getattr(error, "exit_code", FAILED))
        raise
    exit_code = FAILED if conclusion.outcome == "forced" else reported
    if conclusion.has_hanging_threads:
        exits.leave_now(exit_code)
    exits.leave_within(LEAVING_SECONDS, exit_code)
    raise typer.Exit(exit_code)  # the signals stay handled: one that comes now must not change the exit code


def _arguments(app_name: str, given: Mapping[str, object]) -> Sequence[str]:
    """Return the command line of one child, without its lifeline."""
    options = [text for name, value in given.items() if value is not None for text in _option(name, value)]
    return ["-m", "penstock", "worker", app_name, *options]


def _option(name: str, value: object) -> Sequence[str]:
    if isinstance(value, bool):
        return [name if value else name.replace("--", "--no-")]
    return [name, str(value)]

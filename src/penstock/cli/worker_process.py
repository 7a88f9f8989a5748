"""The worker that this process runs, and the banner that it prints on a terminal.

Imported after the signal handlers are installed, because it loads the whole runtime.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from penstock.app.app import App
from penstock.app.loading import load_app
from penstock.app.metering import metrics_beside
from penstock.app.naming import own_version
from penstock.app.running import WorkerRole, run_worker
from penstock.app.scope import scope_of
from penstock.app.telemetry import Process
from penstock.cli import exits
from penstock.cli.output import printable, talk
from penstock.cli.web import dashboard_server, require_web
from penstock.config import Settings, shown, with_flags
from penstock.events import Event, SelectiveListener, WorkerStarted
from penstock.operations.supervisor import end_with_parent, ready_for_signals
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.shutdown import StopSignal

MARGIN_SECONDS = 0.5  # before the platform's SIGKILL: hanging threads are abandoned then
STOP_HINT = "Ctrl-C or SIGTERM finishes the messages in flight; a second one releases them at once"


def run(
    app_name: str,
    flags: Mapping[str, object],
    *,
    stop: StopSignal,
    lifeline: int | None,
    number: int,
    process: Process,
    prepare: Callable[[App], WorkerRole] | None,
    serves_metrics: bool,
) -> WorkerOutcome:
    """Load the app and run its worker until it stops. The parameters are those of `penstock.cli.worker.run_here`."""
    ready_for_signals()
    if lifeline is not None:
        end_with_parent(lifeline, stop)
    served = load_app(app_name)
    served.settings = metrics_beside(with_flags(served.settings, **flags), number)
    if not serves_metrics:
        served.settings = served.settings.model_copy(update={"metrics_address": None})
    exits.leave_in_time(stop, served.settings.worker_stop_timeout - MARGIN_SECONDS, exits.FAILED)
    has_banner = prepare is None and number == 0 and is_console_log(served.settings)
    with dashboard_beside(served, number) as url:
        ordinary = WorkerRole(
            listeners=(StartBanner(served, app_name=app_name, dashboard=url),) if has_banner else (),
            dashboard=url,
        )
        return run_worker(
            served, stop=stop, process=process, prepare=lambda: ordinary if prepare is None else prepare(served)
        )


@contextmanager
def dashboard_beside(app: App, number: int) -> Iterator[str | None]:
    """Serve the dashboard while the block runs, and yield its address; None if it is not served.

    The first of several processes serves it: each would show the same. Raises `ConfigurationError` for an address that
    cannot be used.
    """
    address = app.settings.worker_web
    if address is None or number:
        yield None
        return
    require_web()
    server = dashboard_server(scope_of(app), address, setting="worker.web", title=app.name)
    server.open()
    try:
        yield server.url
    finally:
        server.close()


class StartBanner(SelectiveListener):
    """Print the facts that the log event of a start has as fields, when the worker starts. Called by its thread."""

    def __init__(self, app: App, *, app_name: str, dashboard: str | None = None) -> None:
        self._app = app
        self._app_name = app_name
        self._dashboard = dashboard

    def wants(self, kind: type[Event]) -> bool:
        return kind is WorkerStarted

    def __call__(self, event: Event) -> None:
        if isinstance(event, WorkerStarted):
            talk(banner(self._app, event, app_name=self._app_name, dashboard=self._dashboard))


def is_console_log(settings: Settings) -> bool:
    """Return True if the log on standard error is for people: lines on a terminal, not JSON."""
    try:
        return settings.log_format != "json" and sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


def banner(app: App, started: WorkerStarted, *, app_name: str, dashboard: str | None = None) -> str:
    """Return the banner of a worker that serves the queues of the event."""
    fields = {
        "app": app_name,
        "worker": app.worker,
        **{printable(name): text for name, text in _handlers(app, started).items()},
        "jobs": ", ".join(started.jobs) or "none",
        "concurrency": f"{started.concurrency:,}",
        "broker": started.broker or str(shown("broker", app.settings.broker)),
        "ledger": started.ledger or "not used",
        "metrics": f"http://{started.metrics}/metrics" if started.metrics else "off",
        **({} if dashboard is None else {"dashboard": dashboard}),
        "stop": STOP_HINT,
    }
    width = max(map(len, fields))
    lines = [f"  {name:<{width}}  {printable(text)}" for name, text in fields.items()]
    return "\n".join([f"Penstock {own_version()}", *lines])


def _handlers(app: App, started: WorkerStarted) -> Mapping[str, str]:
    """Return a field per served queue, with its weight and its handlers or pipelines."""
    fields: dict[str, str] = {}
    for queue in started.queues:
        names = [service.name for service in app.services if service.queue_name == queue]
        weight = app.settings.worker_queues.get(queue, 1)
        fields[f"queue {queue}"] = f"{', '.join(names) or 'dead letters'}, weight {weight}"
    return fields

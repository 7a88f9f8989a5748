"""The lines that a started worker prints on a terminal: the facts that its log event has as fields elsewhere."""

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from penstock.app.app import App
from penstock.cli.output import printable, talk
from penstock.config import Settings, shown
from penstock.events import Event, SelectiveListener, WorkerStarted

STOP_HINT = "Ctrl-C or SIGTERM finishes the messages in flight; a second one releases them at once"


class StartBanner(SelectiveListener):
    """Print the banner when the worker starts to serve. Called by the worker's thread."""

    def __init__(self, app: App, *, app_name: str) -> None:
        self._app = app
        self._app_name = app_name

    def wants(self, kind: type[Event]) -> bool:
        return kind is WorkerStarted

    def __call__(self, event: Event) -> None:
        if isinstance(event, WorkerStarted):
            talk(banner(self._app, event, app_name=self._app_name))


def is_console_log(settings: Settings) -> bool:
    """Return True if the log on standard error is for people: lines on a terminal, not JSON."""
    try:
        return settings.log_format != "json" and sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


def banner(app: App, started: WorkerStarted, *, app_name: str) -> str:
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
        "stop": STOP_HINT,
    }
    width = max(map(len, fields))
    lines = [f"  {name:<{width}}  {printable(text)}" for name, text in fields.items()]
    return "\n".join([f"Penstock {_version()}", *lines])


def _handlers(app: App, started: WorkerStarted) -> Mapping[str, str]:
    """Return a field per served queue, with its weight and its handlers or pipelines."""
    fields: dict[str, str] = {}
    for queue in started.queues:
        names = [service.name for service in app.services if service.queue_name == queue]
        weight = app.settings.worker_queues.get(queue, 1)
        fields[f"queue {queue}"] = f"{', '.join(names) or 'dead letters'}, weight {weight}"
    return fields


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed)"

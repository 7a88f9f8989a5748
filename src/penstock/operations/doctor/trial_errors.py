"""Send test errors: do failures of this app reach the configured services and hooks?

One is sent for each kind of process, through telemetry opened as that process opens it. The one of an isolated child is
raised in a real child of a real worker, on an in-memory queue.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.app.naming import worker_id
from penstock.app.telemetry import Process, Telemetry, open_reports, open_telemetry
from penstock.config import load_settings
from penstock.errors import PenstockError
from penstock.events import ErrorHookFailed, Event, Listener, MessageFailed
from penstock.messaging.failure import failure_of
from penstock.operations.doctor.findings import Finding, FindingLevel

if TYPE_CHECKING:
    from penstock.app.app import App

ANSWER_SECONDS = 15.0  # for all services together; each has a shorter timeout of its own
CHILD_SECONDS = 30.0
NOBODY = "Set sentry_dsn, rollbar_token or notify_urls, or give a hook: App(on_error=...). See docs/run/errors.md."
UNTAKEN = "Until that is mended, what fails in such a process is in its log alone."


class TrialError(PenstockError):
    """A test error, to check that it arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessKind:
    """The way in which one kind of process opens its telemetry and reports an error."""

    open: Callable[["App | None", Listener], Telemetry]
    fail: Callable[[Telemetry, str], None]


def trial_errors(app_name: str | None) -> Iterator[Finding]:
    """Send one error per kind of process; yield the findings as they arrive.

    ``app_name`` names the app whose settings and hook apply; without one, the current settings apply.
    """
    from penstock.app.loading import load_app

    try:
        app = None if app_name is None else load_app(app_name)
    except PenstockError as error:
        yield Finding(check="app", verdict=FindingLevel.FAILED, found=str(error))
        return
    anybody = False
    for name, kind in _KINDS.items():
        findings = _tried(name, kind, app)
        anybody = anybody or bool(findings)
        yield from findings
        if any(finding.check == "settings" for finding in findings):
            return  # the other kinds would report the same
    if not anybody:
        yield Finding(
            check="errors",
            verdict=FindingLevel.WARNING,
            found="nobody is told of failures: there is no hook, and the settings name no service",
            hint=NOBODY,
        )


def _tried(name: str, kind: _ProcessKind, app: "App | None") -> Sequence[Finding]:
    """Return one finding for the hooks that accepted it, and one per hook that did not; empty without hooks."""
    failures: dict[str, str] = {}  # by hook; written by the hooks' threads

    def tell(event: Event) -> None:
        if isinstance(event, ErrorHookFailed):
            failures[event.hook] = event.error

    try:
        telemetry = kind.open(app, tell)
    except PenstockError as error:
        return [Finding(check="settings", verdict=FindingLevel.FAILED, found=str(error))]
    reporter = telemetry.reporter
    if reporter is None:
        return []
    try:
        kind.fail(telemetry, name)
    except PenstockError as error:
        return [Finding(check=name, verdict=FindingLevel.FAILED, found=str(error))]
    for hook in reporter.unfinished(ANSWER_SECONDS):
        failures.setdefault(hook, f"it has not answered within {ANSWER_SECONDS:g} s")
    taken = [hook for hook in reporter.hooks if hook not in failures]
    found = [Finding(check=name, verdict=FindingLevel.OK, found=f"taken by {', '.join(taken)}")] if taken else []
    return found + [
        Finding(check=name, verdict=FindingLevel.FAILED, found=f"{hook}: {error}", hint=UNTAKEN)
        for hook, error in failures.items()
    ]


# How each kind of process opens its telemetry


def _serving(process: Process, app: "App | None", tell: Listener) -> Telemetry:
    """Open telemetry as a long-running process does, except for its metrics endpoint, which stays closed."""
    if app is None:
        return open_telemetry(load_settings(), worker=worker_id(), process=process, tell=tell)
    return open_telemetry(app.settings, worker=app.worker, process=process, on_error=app.on_error, tell=tell)


def _ending(process: Process, app: "App | None", tell: Listener) -> Telemetry:
    """Open telemetry as a command does."""
    if app is None:
        return open_reports(load_settings(), worker=worker_id(), process=process, tell=tell)
    return open_reports(app.settings, worker=app.worker, process=process, on_error=app.on_error, tell=tell)


def _appless(process: Process, _: "App | None", tell: Listener) -> Telemetry:
    """Open telemetry as a command without an app does."""
    return open_reports(load_settings(), worker=worker_id(), process=process, tell=tell)


def _function(_: "App | None", tell: Listener) -> Telemetry:
    """Open telemetry as the Lambda function does.

    The user's own hook is unknown here, since it is in another module.
    """
    from penstock.app.replayer import with_sample
    from penstock.dead_letters.sample import sample_settings

    settings = with_sample(load_settings(), sample_settings(os.environ))
    return open_telemetry(settings, worker=worker_id(), process="lambda", tell=tell)


# How each kind of process fails


def _report(telemetry: Telemetry, name: str) -> None:
    try:
        _fail(name)
    except TrialError as error:
        telemetry.report(error, handler="doctor", subject="a test error")


def _fail(name: str) -> None:
    raise TrialError(f"A test error, sent by `penstock doctor --send-test-error` as by: {name}. Nothing is wrong.")


def fail_in_child(_: object) -> None:
    """Fail, as the handler in a child: at module level, so that the child can import it."""
    _fail("child")


def _child(telemetry: Telemetry, _: str) -> None:
    """Run a worker with an in-memory queue, one message, and a handler in a child process."""
    from penstock.app.app import App
    from penstock.app.serving import serve
    from penstock.brokers.memory.broker import MemoryBroker
    from penstock.config import Settings
    from penstock.worker.shutdown import StopSignal

    failed = threading.Event()
    reporter = telemetry.reporter
    assert reporter is not None, "asked before"

    def hear(event: Event) -> None:
        reporter(event)
        if isinstance(event, MessageFailed):
            failed.set()

    app = App(broker=MemoryBroker(), settings=Settings.model_construct())
    app.handler("doctor", name="doctor", max_attempts=1, isolation="process")(fail_in_child)
    app.send("doctor", {})
    stop = StopSignal()
    alarm = threading.Timer(CHILD_SECONDS, stop.request)
    alarm.daemon = True
    alarm.start()
    try:
        serve(app, stop=stop, until=failed.is_set, listeners=(hear,), resident=False)
    except Exception as error:
        raise TrialError(f"A child could not be tried: {failure_of(error).summary}.") from error
    finally:
        alarm.cancel()
        app.close()
    if not failed.is_set():
        raise TrialError(f"A child did not fail within {CHILD_SECONDS:g} s.")


_KINDS: Mapping[str, _ProcessKind] = MappingProxyType(
    {
        "worker": _ProcessKind(open=partial(_serving, "worker"), fail=_report),
        "child": _ProcessKind(open=partial(_serving, "worker"), fail=_child),
        "supervisor": _ProcessKind(open=partial(_appless, "supervisor"), fail=_report),
        "replayer": _ProcessKind(open=partial(_serving, "replayer"), fail=_report),
        "monitor": _ProcessKind(open=partial(_serving, "monitor"), fail=_report),
        "relay": _ProcessKind(open=partial(_serving, "relay"), fail=_report),
        "run": _ProcessKind(open=partial(_serving, "run"), fail=_report),
        "ingest": _ProcessKind(open=partial(_appless, "ingest"), fail=_report),
        "reconcile": _ProcessKind(open=partial(_ending, "reconcile"), fail=_report),
        "cleanup": _ProcessKind(open=partial(_ending, "cleanup"), fail=_report),
        "upkeep": _ProcessKind(open=partial(_ending, "upkeep"), fail=_report),
        "lambda": _ProcessKind(open=_function, fail=_report),
    }
)

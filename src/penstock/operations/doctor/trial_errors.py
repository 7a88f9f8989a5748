"""Send test errors, to check that failures of this app reach the configured services and hooks.

One is sent for each kind of process, through telemetry opened as that process opens it. The one of an isolated child is
raised in a real child of a real worker, on an in-memory queue.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from penstock.app.app import App
from penstock.app.loading import load_app
from penstock.app.naming import worker_id
from penstock.app.replayer import with_sample
from penstock.app.serving import serve
from penstock.app.telemetry import Process, Telemetry, open_reports, open_telemetry
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings, load_settings
from penstock.dead_letters.sample import sample_settings
from penstock.errors import PenstockError
from penstock.events import ErrorHookFailed, Event, Listener, MessageFailed
from penstock.messaging.failure import failure_of
from penstock.operations.doctor.findings import Finding, FindingLevel
from penstock.worker.shutdown import StopSignal

RESPONSE_SECONDS = 15.0  # for all services together; each has a shorter timeout of its own
CHILD_SECONDS = 30.0
NO_HOOK_HINT = "Set sentry_dsn, rollbar_token or notify_urls in [alerts], or App(on_error=...). See docs/run/errors.md."
HOOK_FAILED_HINT = "Until this is fixed, failures of such a process are only in its log."


class TrialError(PenstockError):
    """A test error, to check that it arrives."""


def trial_errors(app_name: str | None) -> Iterator[Finding]:
    """Send one error per kind of process; yield the findings as they arrive.

    ``app_name`` names the app whose settings and hook apply; without one, the current settings apply.
    """
    try:
        app = None if app_name is None else load_app(app_name)
    except PenstockError as error:
        yield Finding(check="app", level=FindingLevel.FAILED, found=str(error))
        return
    any_hook = False
    for name, kind in _KINDS.items():
        findings = _try_hooks(name, kind, app)
        any_hook = any_hook or bool(findings)
        yield from findings
        if any(finding.check == "settings" for finding in findings):
            return  # the other kinds would report the same
    if not any_hook:
        yield Finding(
            check="errors",
            level=FindingLevel.WARNING,
            found="failures are reported nowhere: there is no hook, and the settings name no service",
            hint=NO_HOOK_HINT,
        )


def fail_in_child(_: object) -> None:
    """Fail, as the handler in a child: at module level, so that the child can import it."""
    _fail("child")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessKind:
    """The way in which one kind of process opens its telemetry and reports an error."""

    open: Callable[[App | None, Listener], Telemetry]
    fail: Callable[[Telemetry, str], None]


def _try_hooks(name: str, kind: _ProcessKind, app: App | None) -> Sequence[Finding]:
    """Return one finding for the hooks that accepted it, and one per hook that did not; empty without hooks."""
    failures: dict[str, str] = {}  # by hook; written by the hooks' threads

    def emit(event: Event) -> None:
        if isinstance(event, ErrorHookFailed):
            failures[event.hook] = event.error

    try:
        telemetry = kind.open(app, emit)
    except PenstockError as error:
        return [Finding(check="settings", level=FindingLevel.FAILED, found=str(error))]
    reporter = telemetry.reporter
    if reporter is None:
        return []
    try:
        kind.fail(telemetry, name)
    except PenstockError as error:
        return [Finding(check=name, level=FindingLevel.FAILED, found=str(error))]
    for hook in reporter.unfinished(RESPONSE_SECONDS):
        failures.setdefault(hook, f"no response within {RESPONSE_SECONDS:g} s")
    accepted = [hook for hook in reporter.hooks if hook not in failures]
    found = [Finding(check=name, level=FindingLevel.OK, found=f"accepted by {', '.join(accepted)}")] if accepted else []
    return found + [
        Finding(check=name, level=FindingLevel.FAILED, found=f"{hook}: {error}", hint=HOOK_FAILED_HINT)
        for hook, error in failures.items()
    ]


# How each kind of process opens its telemetry
def _open_as_server(process: Process, app: App | None, emit: Listener) -> Telemetry:
    """Open telemetry as a long-running process does, except for its metrics endpoint, which stays closed."""
    if app is None:
        return open_telemetry(load_settings(), worker=worker_id(), process=process, emit=emit)
    return open_telemetry(app.settings, worker=app.worker, process=process, on_error=app.on_error, emit=emit)


def _open_as_command(process: Process, app: App | None, emit: Listener) -> Telemetry:
    """Open telemetry as a command does."""
    if app is None:
        return open_reports(load_settings(), worker=worker_id(), process=process, emit=emit)
    return open_reports(app.settings, worker=app.worker, process=process, on_error=app.on_error, emit=emit)


def _open_without_app(process: Process, _: App | None, emit: Listener) -> Telemetry:
    """Open telemetry as a command without an app does."""
    return open_reports(load_settings(), worker=worker_id(), process=process, emit=emit)


def _open_as_function(_: App | None, emit: Listener) -> Telemetry:
    """Open telemetry as the Lambda function does.

    The user's own hook is unknown here, since it is in another module.
    """
    settings = with_sample(load_settings(), sample_settings(os.environ))
    return open_telemetry(settings, worker=worker_id(), process="lambda", emit=emit)


# How each kind of process fails
def _report(telemetry: Telemetry, name: str) -> None:
    try:
        _fail(name)
    except TrialError as error:
        telemetry.report(error, handler="doctor", subject="a test error")


def _fail(name: str) -> None:
    raise TrialError(
        f"A test error, sent by `penstock doctor --send-test-error` for the process {name}. Nothing is wrong."
    )


def _child(telemetry: Telemetry, _: str) -> None:
    """Run a worker with an in-memory queue, one message, and a handler in a child process."""
    failed = threading.Event()
    reporter = telemetry.reporter
    assert reporter is not None, "asked before"

    def listen(event: Event) -> None:
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
        serve(app, stop=stop, until=failed.is_set, listeners=(listen,), resident=False)
    except Exception as error:
        raise TrialError(f"The child process could not be tested: {failure_of(error).summary}.") from error
    finally:
        alarm.cancel()
        app.close()
    if not failed.is_set():
        raise TrialError(f"The child process did not fail within {CHILD_SECONDS:g} s.")


_KINDS: Mapping[str, _ProcessKind] = MappingProxyType(
    {
        "worker": _ProcessKind(open=partial(_open_as_server, "worker"), fail=_report),
        "child": _ProcessKind(open=partial(_open_as_server, "worker"), fail=_child),
        "supervisor": _ProcessKind(open=partial(_open_without_app, "supervisor"), fail=_report),
        "replayer": _ProcessKind(open=partial(_open_as_server, "replayer"), fail=_report),
        "monitor": _ProcessKind(open=partial(_open_as_server, "monitor"), fail=_report),
        "relay": _ProcessKind(open=partial(_open_as_server, "relay"), fail=_report),
        "run": _ProcessKind(open=partial(_open_as_server, "run"), fail=_report),
        "ingest": _ProcessKind(open=partial(_open_without_app, "ingest"), fail=_report),
        "reconcile": _ProcessKind(open=partial(_open_as_command, "reconcile"), fail=_report),
        "cleanup": _ProcessKind(open=partial(_open_as_command, "cleanup"), fail=_report),
        "upkeep": _ProcessKind(open=partial(_open_as_command, "upkeep"), fail=_report),
        "lambda": _ProcessKind(open=_open_as_function, fail=_report),
    }
)

"""The error hook: when it is called, its arguments, and that it cannot disturb the work."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import events
from penstock.errors import TransformError
from penstock.events import Event, MessageFailed
from penstock.monitoring.errors.hook import FINGERPRINTS_MAX, ErrorContext, ErrorReporter
from penstock.monitoring.errors.outlets import WAITING_MAX
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0


class Scene:
    """An error reporter, the calls of its hook, and the events that the reporter emitted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.calls: list[tuple[BaseException | None, ErrorContext]] = []  # written by the hook's thread
        self.emitted: list[Event] = []
        self.raising: BaseException | None = None
        self.open = threading.Event()  # the hook waits until it is set
        self.entered = threading.Event()
        self.open.set()
        self.reporter = ErrorReporter(self.hook, worker="w1", emit=self.emitted.append, clock=self.clock)

    def hook(self, exception: BaseException | None, context: ErrorContext) -> None:
        self.entered.set()
        assert self.open.wait(DEADLINE_SECONDS)
        self.calls.append((exception, context))
        if self.raising is not None:
            raise self.raising

    def flushed(self) -> list[ErrorContext]:
        assert self.reporter.flush(DEADLINE_SECONDS)
        return [context for _, context in self.calls]

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Keep the hook busy with one report."""
        self.open.clear()
        self.entered.clear()
        self.reporter(failed(error_type="Stuck", final=True))
        assert self.entered.wait(DEADLINE_SECONDS)
        try:
            yield
        finally:
            self.open.set()


def failed(*, final: bool = False, error_type: str = "ValueError", **changed: Any) -> MessageFailed:
    fields: dict[str, Any] = {
        "queue": "q",
        "handler": "make",
        "message_id": "m1",
        "attempt": 2,
        "enqueued_at": 0.0,
        "duration_seconds": 1.0,
        "error_type": error_type,
        "error": "no",
        "traceback": None,
        "exception": None,
        "final": final,
        "delay_seconds": None,
    }
    return MessageFailed(**{**fields, **changed})


def object_failed(outcome: str, **more: Any) -> Event:
    return events.ObjectFailed(
        pipeline="p", object_uri="o", attempt_id="a", outcome=outcome, reason="too large", **more
    )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_hook_gets_the_exception_and_its_context(scene: Scene) -> None:
    try:
        secret = "hunter" + "2"
        raise ValueError("no")
    except ValueError as caught:
        error = caught
    assert secret
    scene.reporter(failed(exception=error))
    [context] = scene.flushed()
    assert scene.calls[0][0] is error
    assert (context.queue, context.handler, context.message_id, context.attempt) == ("q", "make", "m1", 2)
    assert (context.worker, context.error, context.final, context.occurrences) == ("w1", "no", False, 1)
    assert context.fingerprint.endswith("test_errors.py:test_the_hook_gets_the_exception_and_its_context")
    assert context.traceback is not None
    assert "ValueError: no" in context.traceback
    assert "hunter2" not in context.traceback


def test_a_traceback_from_another_process_is_passed_on(scene: Scene) -> None:
    scene.reporter(failed(traceback="Traceback of a child"))
    assert [context.traceback for context in scene.flushed()] == ["Traceback of a child"]


def test_a_repeated_failure_is_reported_at_once_and_then_each_minute(scene: Scene) -> None:
    for _ in range(5):
        scene.reporter(failed())
    scene.clock.advance(59)
    scene.reporter(failed())
    assert len(scene.flushed()) == 1
    scene.clock.advance(1)
    scene.reporter(failed())
    assert [context.occurrences for context in scene.flushed()] == [1, 6]
    scene.reporter(failed())
    assert len(scene.flushed()) == 2


def test_every_final_failure_is_reported(scene: Scene) -> None:
    for message_id in ("m1", "m2", "m3"):
        scene.reporter(failed(final=True, message_id=message_id))
    assert [context.message_id for context in scene.flushed()] == ["m1", "m2", "m3"]


def test_a_failure_of_another_kind_is_reported_at_once(scene: Scene) -> None:
    for error_type in ("ValueError", "KeyError"):
        scene.reporter(failed(error_type=error_type))
    assert len({context.fingerprint for context in scene.flushed()}) == 2


@pytest.mark.parametrize(
    ("event", "handler", "error_type", "final"),
    [
        (object_failed("retry"), "p", "ObjectFailed", False),
        (object_failed("dead"), "p", "ObjectFailed", True),
        (object_failed("dead", error_type="KeyError", exception=KeyError("x")), "p", "KeyError", True),
        (
            events.RunFailed(pipeline="p", attempt_id="a", objects=3, error="PySparkError: no"),
            "p",
            "PySparkError",
            False,
        ),
        (events.RunFailed(pipeline="p", attempt_id="a", objects=3, error="unknown cause"), "p", "RunFailed", False),
        (events.ExecutionFailed(handler="h", message_ids=("m",), error="OSError: disk"), "h", "OSError", False),
        (events.ConsumerHalted(queue="q", handler="h", error="TableDenied: no"), "h", "TableDenied", True),
        (events.ProcessExited(process=7, exit_code=-9, restart_in_seconds=1.0), "", "ProcessExited", False),
        (events.ProcessExited(process=7, exit_code=-9, restart_in_seconds=None), "", "ProcessExited", True),
        (events.JobFailed(job="gc", error="OSError: disk"), "gc", "OSError", False),
        (
            events.MessageInvalid(queue="q", handler="h", message_id="m", attempt=1, reason="no JSON"),
            "h",
            "InvalidMessage",
            True,
        ),
    ],
)
def test_failure_events_are_reported(scene: Scene, event: Event, handler: str, error_type: str, final: bool) -> None:
    scene.reporter(event)
    [context] = scene.flushed()
    assert (context.handler, context.final) == (handler, final)
    assert context.fingerprint.split("|")[:2] == [handler, error_type]


@pytest.mark.parametrize(
    "event",
    [
        object_failed("gone"),
        object_failed("superseded"),
        events.MessageInterrupted(queue="q", handler="h", message_id="m", attempt=1, duration_seconds=0.5),
        events.ObjectInterrupted(pipeline="p", object_uri="o", attempt_id="a", reason="a stop"),
        events.HeartbeatFailed(queue="q", error="unavailable"),
    ],
)
def test_other_events_are_not_reported(scene: Scene, event: Event) -> None:
    scene.reporter(event)
    assert scene.flushed() == []


def test_an_exception_without_an_event_can_be_reported(scene: Scene) -> None:
    scene.reporter.report(TransformError("no DataFrame"), handler="clicks")
    [context] = scene.flushed()
    assert (context.fingerprint, context.final, context.error) == ("clicks|TransformError|", True, "no DataFrame")


@pytest.mark.parametrize("error", [RuntimeError("Sentry is down"), SystemExit(1)])
def test_a_hook_that_raises_is_logged_once_a_minute_and_called_again(scene: Scene, error: BaseException) -> None:
    scene.raising = error
    for _ in range(3):
        scene.reporter(failed(final=True))
    assert len(scene.flushed()) == 3
    scene.clock.advance(60)
    scene.reporter(failed(final=True))
    assert len(scene.flushed()) == 4
    emitted = [event for event in scene.emitted if isinstance(event, events.ErrorHookFailed)]
    assert [event.count for event in emitted] == [1, 3]
    assert str(error) in emitted[0].error


def test_a_slow_hook_delays_no_event_and_drops_the_oldest(scene: Scene) -> None:
    with scene.blocked():
        for number in range(WAITING_MAX + 3):
            scene.reporter(failed(final=True, message_id=str(number)))
        assert not scene.reporter.flush(0)
    reported = [context.message_id for context in scene.flushed()][1:]
    assert reported == [str(number) for number in range(3, WAITING_MAX + 3)]
    assert scene.emitted == [events.ErrorReportsDropped(hook="on_error", count=3)]


def test_dropped_reports_are_logged_once_a_minute(scene: Scene) -> None:
    for seconds in (0, 30, 60):
        scene.clock.advance(seconds)
        with scene.blocked():
            for _ in range(WAITING_MAX + 2):
                scene.reporter(failed(final=True))
        scene.flushed()
    assert scene.emitted == [
        events.ErrorReportsDropped(hook="on_error", count=2),
        events.ErrorReportsDropped(hook="on_error", count=4),
    ]


def test_a_flush_without_reports_returns_at_once(scene: Scene) -> None:
    assert scene.reporter.flush(0)


def test_the_number_of_known_fingerprints_is_bounded(scene: Scene) -> None:
    with scene.blocked():
        for number in range(FINGERPRINTS_MAX + 1):
            scene.reporter(failed(error_type=f"E{number}"))
            scene.reporter(failed(error_type="Frequent"))  # seen all the time, so never forgotten
        scene.reporter(failed(error_type=f"E{FINGERPRINTS_MAX}"))  # known: only counted
        scene.reporter(failed(error_type="Frequent"))
        scene.reporter(failed(error_type="E0"))  # forgotten: reported as the first of its kind
    reported = [context.fingerprint.split("|")[1] for context in scene.flushed()]
    assert reported[-3:] == [f"E{FINGERPRINTS_MAX - 1}", f"E{FINGERPRINTS_MAX}", "E0"]


def test_an_exception_whose_attributes_raise_does_not_disturb_the_work(scene: Scene) -> None:
    class Broken(Exception):
        @property
        def __traceback__(self) -> Any:  # type: ignore[override]  # no real exception does this
            raise RuntimeError("no traceback")

        def __str__(self) -> str:
            raise RuntimeError("no text")

    scene.reporter(failed(exception=Broken()))
    scene.reporter(failed(final=True, message_id="m2"))
    assert [context.message_id for context in scene.flushed()] == ["m2"]
    assert isinstance(scene.emitted[0], events.ErrorHookFailed)


@pytest.mark.parametrize(
    ("event", "subject", "error"),
    [
        (
            events.ObjectsOverdue(pipeline="clicks", overdue=1, oldest_age_seconds=7_200.0, after_seconds=3_600.0),
            "1 object overdue",
            "1 object waits to be processed for more than 3,600 s",
        ),
        (
            events.ObjectsOverdue(pipeline="clicks", overdue=2_000, oldest_age_seconds=7_200.0, after_seconds=3_600.0),
            "2,000 objects overdue",
            "2,000 objects wait",
        ),
        (
            events.ProcessExited(process=1, exit_code=-9, restart_in_seconds=1.0),
            "a worker process was ended by signal 9",
            "The worker process 1 was ended by signal 9",
        ),
        (failed(), None, ""),
    ],
)
def test_a_report_without_a_handler_failure_has_a_subject(event: Event, subject: str | None, error: str) -> None:
    scene = Scene()
    scene.reporter(event)
    [context] = scene.flushed()
    assert context.subject == subject
    assert context.error.startswith(error)

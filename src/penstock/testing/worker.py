"""A real worker over in-memory queues, in which retries and delays take no time."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from penstock.app.app import App, on_new_app
from penstock.app.serving import serve, worker_settings
from penstock.errors import PenstockError, Reject, UsageError
from penstock.events import Event, MessageFailed, MessageInterrupted
from penstock.ledger import Ledger
from penstock.messaging.broker import DEAD_LETTER_SUFFIX
from penstock.messaging.clock import SystemClock
from penstock.messaging.death import death_of
from penstock.messaging.message import Message
from penstock.messaging.schema import Queue
from penstock.testing.fake_clock import FakeClock
from penstock.testing.recorder import Recorder, Sent
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal

STEP_SECONDS = 0.001  # minimum advance of the queues' clock while only delayed messages remain
PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A dead-lettered message."""

    message: Message
    reason: str
    attempts: int
    exception: str | None

    @property
    def body(self) -> Any:
        """Return the JSON value of the body; its bytes if it is not JSON."""
        try:
            return json.loads(self.message.body)
        except ValueError:
            return self.message.body


class TestWorker:
    """The app's handlers on in-memory queues and an in-memory ledger: ``with TestWorker(app) as worker: ...``.

    Inside the block, `App.send` also sends to these queues, from the test and from handlers. The same holds for apps
    created inside the block, for example by a module that a handler imports. Retries and delays keep their order and
    take no time; waits inside handlers do take time. Pipelines are not served: use `run_pipeline`. No background job
    runs, so processed objects stay at their source.
    """

    __test__ = False  # prevents collection by pytest

    def __init__(self, app: App) -> None:
        self._app = app
        self.clock = FakeClock(SystemClock().now())  # the queues' clock
        self.broker = Recorder(clock=self.clock)
        self.events: list[Event] = []
        self._before: tuple[Any, Any] | None = None
        self._made = ExitStack()  # restores the brokers and ledgers of apps created inside

    def __enter__(self) -> Self:
        if self._before is not None:
            raise UsageError("This TestWorker is entered already; make one for each with.")
        ledger = Ledger.open("sqlite://")
        self._before = self._app.swap(broker=self.broker, ledger=ledger)
        self._made.enter_context(on_new_app(lambda app: self._stand_in_for(app, ledger)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            self._made.close()
            _, ledger = self._app.swap(broker=self._before[0], ledger=self._before[1])
            ledger.close()
            self._before = None

    def send(self, queue: Queue[Any] | str, body: Any, **options: Any) -> str:
        """Send a message, as `App.send`."""
        self._check_entered()
        return self._app.send(queue, body, **options)

    def send_many(self, queue: Queue[Any] | str, bodies: Iterable[Any], **options: Any) -> list[str]:
        """Send several messages, as `App.send_many`."""
        self._check_entered()
        return self._app.send_many(queue, bodies, **options)

    def run_until_empty(self, *, timeout_seconds: float = 30.0, raises: bool = True) -> None:
        """Process messages until all served queues are empty, including delayed messages.

        Args:
            timeout_seconds: Real time to wait for empty queues.
            raises: Raise the first exception for which a message was dead-lettered, except `Reject`, so that a test
                fails with the handler's own traceback.

        Raises:
            AssertionError: The queues were not empty after ``timeout_seconds``.
        """
        self._check_entered()
        watch = _Watch(self)
        with watch.for_at_most(timeout_seconds):
            serve(
                self._app,
                stop=watch.stop,
                queues=dict.fromkeys(self.queues(), 1),
                until=watch.empty,
                listeners=(self.events.append, watch),
                settings=_quick(worker_settings(self._app)),
                resident=False,
            )
        if not watch.was_empty:
            raise _TookTooLong(f"the queues were not empty after {timeout_seconds:g} s{watch.at_work()}")
        if raises and watch.fatal is not None:
            raise watch.fatal

    def dead(self, queue: Queue[Any] | str) -> list[DeadMessage]:
        """Return the dead letters of a queue, oldest first."""
        name = f"{queue if isinstance(queue, str) else queue.name}{DEAD_LETTER_SUFFIX}"
        return [_dead(message) for message in self.broker.browse(name, messages_max=PAGE)]

    def waiting(self, queue: Queue[Any] | str) -> list[Message]:
        """Return the messages of a queue, oldest first. The queue need not have a handler."""
        return list(self.broker.browse(queue if isinstance(queue, str) else queue.name, messages_max=PAGE))

    def sent(self, queue: Queue[Any] | str) -> list[Sent]:
        """Return every message sent to a queue by handlers and by the test, oldest first, including processed ones."""
        name = queue if isinstance(queue, str) else queue.name
        return [one for one in self.broker.sent if one.queue == name]

    def _stand_in_for(self, app: App, ledger: Any) -> None:
        broker, own_ledger = app.swap(broker=self.broker, ledger=ledger)
        self._made.callback(app.swap, broker=broker, ledger=own_ledger)

    def _check_entered(self) -> None:
        if self._before is None:  # otherwise the app uses its own queues, which may be real
            raise UsageError("This TestWorker is not entered; write: with TestWorker(app) as worker.")

    def queues(self) -> list[str]:
        """Return the names of the served queues."""
        pipelines = {pipeline.declaration.source.queue for pipeline in self._app.pipelines}
        return [service.queue_name for service in self._app.services if service.queue_name not in pipelines]


class _Watch:
    """Stops the worker when the queues are empty or the time is over, and advances the clock past remaining delays."""

    def __init__(self, worker: TestWorker) -> None:
        self.stop = StopSignal()
        self.fatal: BaseException | None = None  # this and the next field: written by the emitting thread
        self.interrupted: set[str] = set()  # handlers
        self.was_empty = False  # written by the thread that calls `empty`
        self._worker = worker

    @contextmanager
    def for_at_most(self, seconds: float) -> Iterator[None]:
        """Stop the worker, even in the middle of a handler, if the block takes longer."""
        alarm = threading.Timer(seconds, self._end)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def at_work(self) -> str:
        """Return the names of the handlers that did not end, for an error message."""
        return f"; at work were: {', '.join(sorted(self.interrupted))}" if self.interrupted else ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, MessageInterrupted):
            self.interrupted.add(event.handler)
        if isinstance(event, MessageFailed) and event.final and self.fatal is None:
            self.fatal = None if isinstance(event.exception, Reject) else event.exception

    def empty(self) -> bool:
        """Return True if the queues are empty. Called by the idle worker.

        Advances the clock if only delayed messages remain.
        """
        stats = [self._worker.broker.stats(queue) for queue in self._worker.queues()]
        if not any(one.visible or one.in_flight or one.delayed for one in stats):
            self.was_empty = True
            return True
        if not any(one.visible or one.in_flight for one in stats):
            self._worker.clock.advance(self._until_next())
        return False

    def _until_next(self) -> float:
        """Return the seconds until the next delay ends."""
        broker, now = self._worker.broker, self._worker.clock.now()
        ends = [end for queue in self._worker.queues() if (end := broker.next_change_at(queue)) is not None]
        return max(min(ends, default=now) - now, STEP_SECONDS)

    def _end(self) -> None:
        for _ in range(2):  # the second request releases running messages at once
            self.stop.request()


class _TookTooLong(PenstockError, AssertionError):
    """The queues were not empty in time."""


def _quick(settings: WorkerSettings) -> WorkerSettings:
    return replace(
        settings, idle_floor_seconds=0.001, idle_ceiling_seconds=0.002, start_jitter_seconds=0.0, upkeep_seconds=0.05
    )


def _dead(message: Message) -> DeadMessage:
    death = death_of(message.attributes)
    return DeadMessage(
        message=message,
        reason=death.reason if death else "",
        attempts=death.attempts if death else 0,
        exception=death.exception if death else None,
    )

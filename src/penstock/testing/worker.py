"""A real worker over queues in memory, in which no wait takes time."""

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
from penstock.events import Event, MessageFailed, MessageGivenBack
from penstock.messaging.broker import DEAD_LETTER_SUFFIX
from penstock.messaging.clock import SystemClock
from penstock.messaging.death import death_of
from penstock.messaging.message import Message
from penstock.messaging.schema import Queue
from penstock.testing.fake_clock import FakeClock
from penstock.testing.recorder import Recorder, Sent
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal

STEP_SECONDS = 0.001  # the least by which the queues' clock is moved while only delayed messages are left
PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message that was given up on."""

    message: Message
    reason: str
    attempts: int
    exception: str | None

    @property
    def body(self) -> Any:
        """The JSON value of the body; the bytes, where it is none."""
        try:
            return json.loads(self.message.body)
        except ValueError:
            return self.message.body


class TestWorker:
    """The app's handlers behind queues in memory, with a ledger in memory: ``with TestWorker(app) as worker: ...``.

    Inside the block `App.send` sends to these queues too, from the test and from handlers, and so does that of
    apps that are made inside, for example by a module that a handler imports. Retries and delays are honoured in their
    order and take no time; what handlers themselves wait for does. Pipelines are not served here: use `run_pipeline`.
    """

    __test__ = False  # pytest must not take it for a test

    def __init__(self, app: App) -> None:
        self._app = app
        self.clock = FakeClock(SystemClock().now())  # the queues' clock
        self.broker = Recorder(clock=self.clock)
        self.events: list[Event] = []
        self._before: tuple[Any, Any] | None = None
        self._made = ExitStack()  # restores the brokers and ledgers of apps that were made inside

    def __enter__(self) -> Self:
        from penstock.ledger import Ledger

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
        """As `App.send`."""
        self._check_entered()
        return self._app.send(queue, body, **options)

    def send_many(self, queue: Queue[Any] | str, bodies: Iterable[Any], **options: Any) -> list[str]:
        """As `App.send_many`."""
        self._check_entered()
        return self._app.send_many(queue, bodies, **options)

    def run_until_empty(self, *, timeout_seconds: float = 30.0, raises: bool = True) -> None:
        """Work until no served queue holds a message, delayed ones included.

        Where a message was given up because its handler raised, the first such exception is raised here, so that a
        test fails with the handler's own traceback; not for `Reject`, and not with ``raises=False``. Raises
        AssertionError when it takes longer than ``timeout_seconds``.
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
        """The dead letters of a queue, oldest first."""
        name = f"{queue if isinstance(queue, str) else queue.name}{DEAD_LETTER_SUFFIX}"
        return [_dead(message) for message in self.broker.browse(name, messages_max=PAGE)]

    def waiting(self, queue: Queue[Any] | str) -> list[Message]:
        """The messages of a queue, oldest first; of queues without a handler, too."""
        return list(self.broker.browse(queue if isinstance(queue, str) else queue.name, messages_max=PAGE))

    def sent(self, queue: Queue[Any] | str) -> list[Sent]:
        """Return everything that was sent to a queue, by handlers and by the test, oldest first; done or not."""
        name = queue if isinstance(queue, str) else queue.name
        return [one for one in self.broker.sent if one.queue == name]

    def _stand_in_for(self, app: App, ledger: Any) -> None:
        broker, own_ledger = app.swap(broker=self.broker, ledger=ledger)
        self._made.callback(app.swap, broker=broker, ledger=own_ledger)

    def _check_entered(self) -> None:
        if self._before is None:  # the app stands on its own queues then, and they may be real ones
            raise UsageError("This TestWorker is not entered; write: with TestWorker(app) as worker.")

    def queues(self) -> list[str]:
        """The names of the served queues."""
        pipelines = {pipeline.declaration.source.queue for pipeline in self._app.pipelines}
        return [service.queue_name for service in self._app.services if service.queue_name not in pipelines]


class _Watch:
    """Tells when all is done or took too long, and moves the queues' clock while nothing but delays is left."""

    def __init__(self, worker: TestWorker) -> None:
        self.stop = StopSignal()
        self.fatal: BaseException | None = None  # this and the next: written by the thread that emits
        self.given_back: set[str] = set()  # handlers
        self.was_empty = False  # written by the thread that asks
        self._worker = worker

    @contextmanager
    def for_at_most(self, seconds: float) -> Iterator[None]:
        """Stop the worker, whatever is at work, when the block takes longer."""
        alarm = threading.Timer(seconds, self._end)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def at_work(self) -> str:
        """Which handlers did not end, for a sentence."""
        return f"; at work were: {', '.join(sorted(self.given_back))}" if self.given_back else ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, MessageGivenBack):
            self.given_back.add(event.handler)
        if isinstance(event, MessageFailed) and event.final and self.fatal is None:
            self.fatal = None if isinstance(event.exception, Reject) else event.exception

    def empty(self) -> bool:
        """Asked by the idle worker."""
        stats = [self._worker.broker.stats(queue) for queue in self._worker.queues()]
        if not any(one.visible or one.in_flight or one.delayed for one in stats):
            self.was_empty = True
            return True
        if not any(one.visible or one.in_flight for one in stats):
            self._worker.clock.advance(self._until_next())
        return False

    def _until_next(self) -> float:
        """How long the next delay lasts."""
        broker, now = self._worker.broker, self._worker.clock.now()
        ends = [end for queue in self._worker.queues() if (end := broker.next_change_at(queue)) is not None]
        return max(min(ends, default=now) - now, STEP_SECONDS)

    def _end(self) -> None:
        for _ in range(2):  # the second request gives back at once
            self.stop.request()


class _TookTooLong(PenstockError, AssertionError):
    """The test's time is over."""


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

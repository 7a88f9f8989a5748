"""Detect outages of a service that queues need, by requests and by a watch thread that pings the service.

While the service is down, the worker pauses the queues that need it: a message received then could only be released,
and on brokers that count each receive (SQS) an outage would use up its attempts. The watch also pings while no message
arrives, so that every worker detects an outage before it receives. An outage ends when a request or a ping
succeeds.
"""

import random as system_random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import PartAway, TemporaryError
from penstock.events import Bus, Event, LedgerAvailable, LedgerUnavailable, StoreAvailable, StoreUnavailable
from penstock.messaging.backoff import Random, ceiling_seconds, upper_half
from penstock.messaging.clock import Clock
from penstock.messaging.threads import begin_thread, begin_thread_or_do

PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 5.0  # work resumes at most this long after the service is back
CLAIMS_PAUSE_SECONDS_MAX = 60.0  # longest pause while the service is up but work fails, as on a full disk
CHECK_SECONDS = 5.0  # between two pings of a ledger that is up
PING_SECONDS_MAX = 10.0  # a service that has not responded within this time counts as down
# Delay of a released message if each receive counts: by then all workers know of the outage.
COUNTED_RELEASE_SECONDS = 30.0
STORE_PATIENCE = 2.0  # object stores are pinged less often, since each ping costs money
GATE_CHECK_SECONDS = 0.25  # between two checks of a closed gate by a worker


class MakeUnavailable(Protocol):
    """A function that makes the event for a service that went down."""

    def __call__(self, *, error: str, queues: tuple[str, ...]) -> Event: ...


class MakeAvailable(Protocol):
    """A function that makes the event for a service that is back."""

    def __call__(self, *, outage_seconds: float, queues: tuple[str, ...]) -> Event: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedService:
    """A service that queues need, and the events of its outages.

    ``patience`` multiplies the time between two pings while the service is up, and the delay of released messages if
    a receive counts as an attempt.
    """

    name: str
    unavailable: MakeUnavailable
    available: MakeAvailable
    patience: float = 1.0


LEDGER = WatchedService(name="ledger", unavailable=LedgerUnavailable, available=LedgerAvailable)


def store_service(address: str) -> WatchedService:
    """Return the service for the object store or table at this address."""
    return WatchedService(
        name="store",
        unavailable=partial(StoreUnavailable, store=address),
        available=partial(StoreAvailable, store=address),
        patience=STORE_PATIENCE,
    )


class OutageWatch:
    """One worker's `penstock.messaging.handler.ServiceWatch` for one service, by default the ledger. Thread-safe.

    ``ping`` calls the service, and raises `TemporaryError` while it is down. Without a ping only requests detect an
    outage, and no queue is paused. ``releases_uncounted``: True if the broker can release a message without counting
    an attempt.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        clock: Clock,
        random: Random = system_random.random,
        ping: Callable[[], object] | None = None,
        releases_uncounted: bool = True,
        service: WatchedService = LEDGER,
    ) -> None:
        self._service = service
        self._bus = bus
        self._clock = clock
        self._random = random
        self._ping = ping
        self._releases_uncounted = releases_uncounted
        self._queues: frozenset[str] = frozenset()  # replaced as a whole, before the worker serves
        self._ended = False  # written by the closing thread; never unset
        self._changed = threading.Event()  # wakes the watch
        self._defect: BaseException | None = None  # the error that ended the watch; written by its thread
        self._lock = threading.Lock()
        # The rest is written under the lock; times are monotonic.
        self._since: float | None = None  # start of the outage; None: the service is up
        self._error = ""
        self._pings = 0  # failed pings in this outage
        self._cycles = 0  # outages since a request last did its work
        self._next_ping_at = 0.0
        self._answered_at = clock.monotonic()  # last successful request or ping
        self._trying = 0  # requests in progress

    # -- called by handlers ----------------------------------------------------------------------------------------

    def record_success(self) -> None:
        """Record that a request did its work: the ledger recorded a claim, or the store returned an object.

        A response alone does not prove that: a ledger on a full disk still responds.
        """
        with self._lock:
            self._cycles = 0

    @contextmanager
    def watch_request(self) -> Iterator[None]:
        """Wrap a request. A `TemporaryError` in it means that the service is down, a normal end that it is up.

        A `PartAway` does not show that the whole service is down.
        """
        with self._lock:
            self._trying += 1
        try:
            yield
        except PartAway:  # pausing the queue would also stop the work that needs the other parts
            raise
        except TemporaryError as error:
            self._record_unavailable(str(error), by_request=True)
            raise
        else:
            self._record_available()
        finally:
            with self._lock:
                self._trying -= 1

    @property
    def refusal(self) -> str | None:
        """The error because of which no request should be tried now; None if one may be."""
        with self._lock:
            return None if self._since is None or self._ping is None else self._error

    def pause_seconds(self, random: Random) -> float:
        """Return for how many seconds to hide a message after its request failed: with jitter, more in long outages."""
        since = self._since
        outage_seconds = 0.0 if since is None else self._clock.monotonic() - since
        ceiling = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, outage_seconds))
        if not self._releases_uncounted:
            ceiling = COUNTED_RELEASE_SECONDS * self._service.patience
        return upper_half(ceiling, random)

    # -- called by the worker --------------------------------------------------------------------------------------

    def gate(self, queue: str) -> "OutageGate":
        """Return the gate of a queue that needs the service. Call only before the worker serves."""
        self._queues |= {queue}
        return OutageGate(self)

    def admits(self) -> int | None:
        """Return how many messages may be held for the next execution; None for no limit.

        It is 0 while the service is down. If work failed again although the service was up, it is 1 until a request
        does its work. Raises the error that ended the watch.
        """
        if self._defect is not None:
            raise self._defect
        if self._ping is None or (self._since is None and self._cycles < 2):
            return None
        with self._lock:
            return 0 if self._since is not None or self._trying else 1

    def opens_at(self) -> float | None:
        """Return when to check again (monotonic); None while the gate is open."""
        return None if self.admits() is None else self._clock.monotonic() + GATE_CHECK_SECONDS

    def release_delay_seconds(self) -> float:
        """Return the seconds for which to hide messages that were received before the outage was detected."""
        return self.pause_seconds(self._random) if self._since is not None else 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ping the service in a thread until the block ends."""
        if self._ping is None:
            yield
            return
        name = f"penstock-{self._service.name}-watch"
        begin_thread(self._watch, self._ping, name=name)
        try:
            yield
        finally:
            self._ended = True
            self._changed.set()

    def check(self, ping: Callable[[], object]) -> None:
        """Ping the service once. While a ping takes too long the service counts as down, and no other ping begins."""
        ended = threading.Event()
        outcomes: list[TemporaryError | None] = []

        def run_ping() -> None:
            try:
                ping()
            except TemporaryError as error:
                outcomes.append(error)
            except Exception:  # the service is up; the next request reports the error
                outcomes.append(None)
            else:
                outcomes.append(None)
            ended.set()

        begin_thread_or_do(run_ping, name=f"penstock-{self._service.name}-ping")
        if not self._clock.wait(ended, PING_SECONDS_MAX):
            self._record_unavailable(
                f"the {self._service.name} has not responded for {PING_SECONDS_MAX:.0f} s", by_request=False
            )
            while not self._ended and not ended.is_set():
                self._clock.wait(ended, CHECK_SECONDS)
        for error in outcomes:
            if error is None:
                self._record_available()
            else:
                self._record_unavailable(str(error), by_request=False)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _watch(self, ping: Callable[[], object]) -> None:
        try:
            while not self._ended:
                self._changed.clear()
                rest_seconds = self._rest_seconds()
                if rest_seconds > 0:
                    self._clock.wait(self._changed, rest_seconds)
                else:
                    self.check(ping)
        except BaseException as defect:  # for example a listener that raises: no gate would ever open again
            self._defect = defect

    def _rest_seconds(self) -> float:
        with self._lock:
            if self._since is None:
                seconds = CHECK_SECONDS * self._service.patience
                at = self._answered_at + upper_half(seconds, self._random)
            else:
                at = self._next_ping_at
        return at - self._clock.monotonic()

    def _record_unavailable(self, error: str, *, by_request: bool) -> None:
        now = self._clock.monotonic()
        with self._lock:
            first = self._since is None
            if first:
                self._since, self._error, self._pings = now, error, 0
                self._cycles += 1
                tries, cap_seconds = self._cycles - 1, CLAIMS_PAUSE_SECONDS_MAX
            elif by_request:
                return
            else:
                self._pings += 1
                tries, cap_seconds = self._pings, PAUSE_SECONDS_MAX
            ceiling = ceiling_seconds(attempt=tries + 1, base_seconds=PAUSE_SECONDS_MIN, cap_seconds=cap_seconds)
            self._next_ping_at = now + upper_half(ceiling, self._random)
        self._changed.set()
        if first and not self._ended:
            self._bus.emit(self._service.unavailable(error=error, queues=tuple(sorted(self._queues))))

    def _record_available(self) -> None:
        with self._lock:
            since, self._since = self._since, None
            self._answered_at = self._clock.monotonic()
        if since is not None and not self._ended:
            outage_seconds = self._clock.monotonic() - since
            self._bus.emit(self._service.available(outage_seconds=outage_seconds, queues=tuple(sorted(self._queues))))


class OutageGate:
    """The `penstock.worker.consumer.Gate` of one queue that needs the service. A consumer owns it."""

    def __init__(self, outage: OutageWatch) -> None:
        self._outage = outage

    def admits(self) -> int | None:
        return self._outage.admits()

    def opens_at(self) -> float | None:
        return self._outage.opens_at()

    def release_delay_seconds(self) -> float:
        return self._outage.release_delay_seconds()

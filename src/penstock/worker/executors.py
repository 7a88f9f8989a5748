"""Batches at work: a thread for each, at most as many as the settings allow.

A batch ends exactly once: answered, failed, its claim lost, or given back. Whoever ends it first decides what becomes
of its deliveries; whatever the others come to say later is ignored.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError, PublishHalted, UserError
from penstock.events import Bus, ExecutionFailed, SettlementMissing
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import BatchHandler, Execution
from penstock.messaging.settlement import Release, Settlement
from penstock.messaging.waits import Random, backoff_seconds
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

CLAIM_LOST = "the claim was lost: somebody else works on it, or will"


class Flight:
    """One batch at work. Any thread may call it."""

    def __init__(
        self, *, execution: Execution, deliveries: Sequence[Delivery], lost: Callable[["Flight"], None]
    ) -> None:
        self.execution = execution
        self.deliveries = deliveries
        self._lost = lost
        self._lock = threading.Lock()
        self._ended = False  # under the lock; set once, by whoever ends it first

    @property
    def ended(self) -> bool:
        """Whether it is decided what becomes of the deliveries. The thread may be running still."""
        return self._ended

    @property
    def message_ids(self) -> tuple[str, ...]:
        """For events."""
        return tuple(delivery.message.id for delivery in self.deliveries)

    def end(self) -> bool:
        """True for the one caller that decides what becomes of the deliveries."""
        with self._lock:
            first, self._ended = not self._ended, True
        return first

    def extend(self) -> bool:
        """Extend the claim. Once the batch has ended there is nothing left to lose."""
        return self._ended or self.execution.extend() or self._ended

    def lose(self) -> None:
        """The claim is lost."""
        self._lost(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The run ended, with settlements by receipt."""

    settlements: Mapping[str, Settlement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The run raised; another try may go better."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The run raised what no further try can mend: the worker stops and a person has to look."""

    error: PenstockError


Result = Answered | Failed | Fatal


def result_of(execution: Execution) -> Result:
    """Run, and map every answer and exception to the closed type."""
    try:
        return Answered(settlements=execution.run())
    except (UserError, PublishHalted) as error:
        return Fatal(error=error)
    except BaseException as error:  # SystemExit too: user code may raise it, and the deliveries must not hang on it
        return Failed(error=error)


class Executors:
    """Begins batches and concludes them."""

    def __init__(
        self,
        *,
        handler: BatchHandler,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        freed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._handler = handler
        self._settler = settler
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._freed = freed
        self._fail = fail
        self._lock = threading.Lock()
        self._running: dict[Flight, str] = {}  # under the lock; thread names, until the thread is at its end
        self._stranded: list[Flight] = []  # under the lock; the thread ended and the end of the batch is open
        self._begun = 0  # written by the I/O thread
        self._concluded = 0  # under the lock; written by the flights' threads and the heartbeat
        self._failures_in_a_row = 0  # as above
        self._not_before = 0.0  # as above; monotonic

    @property
    def concluded(self) -> int:
        """How many batches were decided on so far."""
        return self._concluded

    @property
    def not_before(self) -> float:
        """When the next batch may begin (monotonic): failures in a row make the worker wait."""
        return self._not_before

    @property
    def free(self) -> bool:
        """Whether there is a place for one more."""
        return len(self._running) < self._settings.batches_in_flight_max

    def unended(self) -> Sequence[Flight]:
        """The batches whose end is open."""
        with self._lock:
            return [flight for flight in (*self._running, *self._stranded) if not flight.ended]

    def running(self) -> Sequence[str]:
        """The names of the threads at work; some may work on a batch that was ended from outside."""
        with self._lock:
            return list(self._running.values())

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        """Begin a batch in a thread of its own. Only the I/O thread calls it.

        Raises what the handler raises if that is fatal; anything else counts as a failed run.
        """
        try:
            execution = self._handler.begin(deliveries)
        except (UserError, PublishHalted):
            self._settler.submit((delivery, Release(refund=True)) for delivery in deliveries)
            raise
        except Exception as error:
            self._put_off(deliveries, error=error)
            return
        self._begun += 1
        flight = Flight(execution=execution, deliveries=deliveries, lost=self._lose)
        thread = threading.Thread(
            target=self._fly, args=(flight,), name=f"penstock-run-{self._handler.name}-{self._begun}", daemon=True
        )
        with self._lock:
            self._running[flight] = thread.name
        thread.start()

    def _fly(self, flight: Flight) -> None:
        try:
            self._conclude(flight, result_of(flight.execution))
        except BaseException as defect:  # a listener that raises, say: the worker has to hear of it
            self._fail(defect)
        finally:
            with self._lock:
                del self._running[flight]
                if not flight.ended:
                    self._stranded.append(flight)
            self._freed()

    def _conclude(self, flight: Flight, result: Result) -> None:
        """The one place that turns a result into settlements."""
        if isinstance(result, Fatal):
            self._fail(result.error)  # the batch stays unended: stopping gives it back with everything else
        elif not flight.end():
            return
        elif isinstance(result, Answered):
            self._settler.submit(self._settlements(flight, result.settlements))
            self._count(failed=False)
        else:
            self._free_claim(flight)
            self._put_off(flight.deliveries, error=result.error)

    def _settlements(self, flight: Flight, answer: Mapping[str, Settlement]) -> Sequence[tuple[Delivery, Settlement]]:
        settlements: list[tuple[Delivery, Settlement]] = []
        for delivery in flight.deliveries:
            settlement = answer.get(delivery.receipt)
            if settlement is None:
                self._bus.emit(SettlementMissing(queue=delivery.queue, message_id=delivery.message.id))
                settlement = self._delayed(delivery)
            settlements.append((delivery, settlement))
        return settlements

    def _free_claim(self, flight: Flight) -> None:
        # A run that failed should have freed its claim itself. One that could not would keep the objects of its batch
        # from everybody until the lease ends; to free them twice does no harm.
        try:
            flight.execution.give_back()
        except Exception as error:
            self._told(flight.deliveries, f"giving the claim back failed: {type(error).__name__}: {error}")

    def _lose(self, flight: Flight) -> None:
        """In the heartbeat's thread. Nothing is acked: what the run comes to is fenced off by now."""
        if not flight.end():
            return
        self._put_off(flight.deliveries, error=None)
        # Interrupting may block (it cancels a Spark run), and the heartbeat has other leases to keep.
        threading.Thread(target=self._interrupt, args=(flight,), name="penstock-interrupt", daemon=True).start()
        self._freed()

    def _interrupt(self, flight: Flight) -> None:
        try:
            flight.execution.interrupt()
        except Exception as error:
            self._told(flight.deliveries, f"interrupting failed: {type(error).__name__}: {error}")

    def _put_off(self, deliveries: Sequence[Delivery], *, error: BaseException | None) -> None:
        """No settlement came of these: back they go, each after a wait that grows with its attempts."""
        self._settler.submit([(delivery, self._delayed(delivery)) for delivery in deliveries])
        self._count(failed=error is not None)
        self._told(deliveries, CLAIM_LOST if error is None else f"{type(error).__name__}: {error}")

    def _told(self, deliveries: Sequence[Delivery], error: str) -> None:
        ids = tuple(delivery.message.id for delivery in deliveries)
        self._bus.emit(ExecutionFailed(handler=self._handler.name, message_ids=ids, error=error))

    def _delayed(self, delivery: Delivery) -> Release:
        return Release(delay_seconds=self._backoff_seconds(delivery.attempt))

    def _count(self, *, failed: bool) -> None:
        with self._lock:
            self._concluded += 1
            self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
            if failed:
                self._not_before = self._clock.monotonic() + self._backoff_seconds(self._failures_in_a_row)

    def _backoff_seconds(self, attempt: int) -> float:
        return backoff_seconds(
            attempt=attempt,
            base_seconds=self._settings.backoff_base_seconds,
            cap_seconds=self._settings.backoff_cap_seconds,
            random=self._random,
        )

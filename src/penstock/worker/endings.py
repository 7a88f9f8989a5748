"""What becomes of a batch that ended: its settlements, what is told of it, how long a line that keeps failing waits.

Each method is for the one caller that ended the flight (`Flight.end`), whatever thread that is. A method that asks the
ledger settles only if no stop has done so meanwhile (`Flight.settles`).
"""

import threading
from collections.abc import Sequence

from penstock.events import Bus, ExecutionFailed, SettlementMissing
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer
from penstock.messaging.settlement import Release, Settlement
from penstock.messaging.waits import Random, backoff_seconds
from penstock.worker.flight import Flight
from penstock.worker.line import Line
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

GIVEN_BACK = Release(refund=True)  # as an execution answers that ends itself because the worker stops
CLAIM_LOST = "the claim was lost: somebody else works on it, or will"


class Endings:
    """One line's."""

    def __init__(
        self,
        *,
        line: Line,
        lock: threading.Lock,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
    ) -> None:
        self._handler = line.handler.name
        self._timeout_seconds = line.handler.timeout_seconds
        self._waits_after_failures = not line.shares_slots  # few and long runs; many short ones wait each for itself
        self._lock = lock
        self._settler = settler
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._concluded = 0  # under the lock, as are the next two; written by whoever ends a flight
        self._failures_in_a_row = 0
        self._not_before = 0.0  # monotonic
        self.draining = False  # set under the lock, by the one who tells the executions
        self.gave_back: list[Delivery] = []  # appended to by whoever ends a flight

    @property
    def concluded(self) -> int:
        """How many batches were decided on so far."""
        return self._concluded

    @property
    def not_before(self) -> float:
        """When the next batch may begin (monotonic): failures in a row make a line of few and long runs wait."""
        return self._not_before

    def answered(self, answers: Sequence[tuple[Flight, Answer]]) -> None:
        """These runs answered."""
        self._settler.submit([pair for flight, answer in answers for pair in self._settlements(flight, answer)])
        self._count(failed=False, batches=len(answers))

    def failed(self, flight: Flight, error: BaseException) -> None:
        """The run raised. Frees what it held, which may block."""
        self._free_claim(flight)
        if flight.settles():
            self.put_off(flight.deliveries, f"{type(error).__name__}: {error}")

    def halted(self, flight: Flight, error: BaseException) -> None:
        """Nothing is wrong with these messages: back they go, uncharged, to whoever can work on them."""
        self._free_claim(flight)
        if not flight.settles():
            return
        self._settler.submit([(delivery, Release(refund=True)) for delivery in flight.deliveries])
        self._count(failed=False)
        self._tell(flight.deliveries, f"{type(error).__name__}: {error}")

    def claim_lost(self, flight: Flight) -> None:
        """Nothing is acked: what the run comes to is fenced off by now. The machinery failed, not the work, so it costs
        no attempt: one that was the message's last would kill it."""
        self._put_back(flight.deliveries, failed=False, why=CLAIM_LOST, refund=True)

    def timed_out(self, flight: Flight) -> None:
        """Records the end, which may block. Settling takes the deliveries out of the heartbeat's book: a hung run keeps
        no lease."""
        try:
            answer = flight.execution.time_out()
        except Exception as error:
            self.failed(flight, error)
            return
        if not flight.settles():
            return
        self._settler.submit(self._settlements(flight, answer))
        self._count(failed=True)
        if not self._waits_after_failures:
            return  # each message's own failure is told by its handler
        self._tell(
            flight.deliveries,
            f"no end within its timeout of {self._timeout_seconds:g} s; it is interrupted, and holds its place on "
            f"{flight.thread} until it ends",
        )

    def not_begun(self, flight: Flight, why: str) -> None:
        """There was no place for it after all: it costs no attempt."""
        self._put_back(flight.deliveries, failed=True, why=why, refund=True)

    def put_off(self, deliveries: Sequence[Delivery], why: str) -> None:
        """No settlement came of these: back they go, each after a wait that grows with its attempts."""
        self._put_back(deliveries, failed=True, why=why)

    def interrupt(self, flight: Flight) -> None:
        """May block: it cancels a Spark run, say."""
        try:
            flight.execution.interrupt()
        except Exception as error:
            self._tell(flight.deliveries, f"interrupting failed: {type(error).__name__}: {error}")

    def drain(self, flight: Flight) -> None:
        """The worker has begun to stop."""
        try:
            flight.execution.drain()
        except Exception as error:
            self._tell(flight.deliveries, f"telling it of the stop failed: {type(error).__name__}: {error}")

    def _settlements(self, flight: Flight, answer: Answer) -> Sequence[tuple[Delivery, Settlement]]:
        settlements: list[tuple[Delivery, Settlement]] = []
        for delivery in flight.deliveries:
            settlement = answer.get(delivery.receipt)
            if settlement is None:
                self._bus.emit(SettlementMissing(queue=delivery.queue, message_id=delivery.message.id))
                settlement = self._delayed(delivery)
            if self.draining and settlement == GIVEN_BACK:
                self.gave_back.append(delivery)
            settlements.append((delivery, settlement))
        return settlements

    def _free_claim(self, flight: Flight) -> None:
        # A run that failed should have freed its claim itself. One that could not would keep the objects of its batch
        # from everybody until the lease ends; to free them twice does no harm.
        try:
            flight.execution.give_back()
        except Exception as error:
            self._tell(flight.deliveries, f"giving the claim back failed: {type(error).__name__}: {error}")

    def _put_back(self, deliveries: Sequence[Delivery], *, failed: bool, why: str, refund: bool = False) -> None:
        self._settler.submit([(delivery, self._delayed(delivery, refund=refund)) for delivery in deliveries])
        self._count(failed=failed)
        self._tell(deliveries, why)

    def _tell(self, deliveries: Sequence[Delivery], error: str) -> None:
        ids = tuple(delivery.message.id for delivery in deliveries)
        self._bus.emit(ExecutionFailed(handler=self._handler, message_ids=ids, error=error))

    def _delayed(self, delivery: Delivery, *, refund: bool = False) -> Release:
        return Release(delay_seconds=self._backoff_seconds(delivery.attempt), refund=refund)

    def _count(self, *, failed: bool, batches: int = 1) -> None:
        with self._lock:
            self._concluded += batches
            self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
            if failed and self._waits_after_failures:
                self._not_before = self._clock.monotonic() + self._backoff_seconds(self._failures_in_a_row)

    def _backoff_seconds(self, attempt: int) -> float:
        return backoff_seconds(
            attempt=attempt,
            base_seconds=self._settings.backoff_base_seconds,
            cap_seconds=self._settings.backoff_cap_seconds,
            random=self._random,
        )

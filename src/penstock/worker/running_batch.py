"""A running batch and its outcome.

- `RunningBatch`: a batch ends exactly once: with settlements, failed, timed out, claim lost, or released. The first
  thread that ends it decides the outcome of its deliveries; later results are ignored.
- `result_of`: maps every return value and exception of a run to a closed type
- `Outcomes`: settles the deliveries of a batch that ended, emits its failure, and backs off a consumer that keeps
  failing
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError, PublishHalted, UserError
from penstock.events import Bus, ExecutionFailed, SettlementMissing
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer, Execution, HeldClaim
from penstock.messaging.settlement import Release, Settlement
from penstock.worker.line import Line
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRuntime:
    """The fields that all running batches of a consumer share.

    Consumers may share the ``lock``: it is held only briefly, and one lock per message would be a waste.
    """

    handler: str  # its name
    queue: str
    lock: threading.Lock
    lost: "Callable[[RunningBatch], None]"
    thread: str = ""  # the thread of all executions, if they have one in common


class RunningBatch:
    """One running batch. Thread-safe."""

    __slots__ = (
        "_course",
        "_ended",
        "_number",
        "_settled",
        "deliveries",
        "execution",
        "parted",
        "task",
        "thread",
    )

    def __init__(self, course: BatchRuntime, execution: Execution, deliveries: Sequence[Delivery], number: int) -> None:
        self.execution = execution
        self.deliveries = deliveries
        self.thread = course.thread  # the name of its thread; on the pool written by that thread when it begins
        self.task: asyncio.Task[None] | None = None  # on the loop: keeps the task alive; written by the loop's thread
        # Ended from outside and submitted, so the stop does not wait for the run; written by the thread that ended it.
        self.parted = False
        self._course = course
        self._number = number
        self._ended = False  # under the lock; set once, by the first thread that ends it
        self._settled = False  # under the lock; set once, by the thread that submits the settlements

    @property
    def handler(self) -> str:
        """The name of its handler."""
        return self._course.handler

    @property
    def queue(self) -> str:
        """The queue of its deliveries."""
        return self._course.queue

    @property
    def name(self) -> str:
        """The name of its task or of its own thread."""
        return f"penstock-run-{self._course.handler}-{self._number}"

    @property
    def ended(self) -> bool:
        """Return True if the outcome of the deliveries is decided. The run may still be going."""
        return self._ended

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The message ids, for events."""
        return tuple(delivery.message.id for delivery in self.deliveries)

    @property
    def settled(self) -> bool:
        """Return True if the settlements are submitted, or will be without another wait."""
        return self._settled

    def end(self, *, settles: bool = True) -> bool:
        """Return True to the one caller that decides the outcome of the deliveries.

        With ``settles=False`` the caller asks a ledger first, then calls `settles`. A stop does not wait for the ledger
        and may settle earlier.
        """
        with self._course.lock:
            first, self._ended = not self._ended, True
            if first and settles:
                self._settled = True
        return first

    def settles(self) -> bool:
        """Return True to the one caller that submits the settlements, after `end`."""
        with self._course.lock:
            first, self._settled = not self._settled, True
        return first

    def claim(self) -> HeldClaim | None:
        """Return the claim that the heartbeat extends; None once the batch has ended."""
        return None if self._ended else self.execution.claim()

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if the claim counts as lost when its keeper no longer knows it."""
        return not self._ended and self.execution.loses(claim)

    def lose(self) -> None:
        """Report that the claim is lost."""
        self._course.lost(self)


class RunReturned(NamedTuple):
    """The run returned its settlements, by receipt handle."""

    settlements: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRaised:
    """The run raised an exception; a retry may succeed."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFatal:
    """The run raised an error that no retry can fix: the consumer halts, and a person must act."""

    error: PenstockError


Result = RunReturned | RunRaised | RunFatal


def result_of(execution: Execution) -> Result:
    """Run an execution, and map every return value and exception to the closed type."""
    try:
        answer = execution.run()
    except BaseException as error:  # SystemExit too: user code may raise it, and the deliveries must still be settled
        return _failed_by(error)
    if inspect.iscoroutine(answer):
        answer.close()
        return RunRaised(error=TypeError("the execution answered a coroutine, which only the place LOOP awaits"))
    return RunReturned(settlements=answer)  # type: ignore[arg-type] # the protocol knows no other coroutines


async def awaited_result_of(execution: Execution) -> Result:
    """Do the same as `result_of` for an execution on the event loop."""
    try:
        answer = execution.run()
        if inspect.iscoroutine(answer):
            answer = await answer
        return RunReturned(settlements=answer)  # type: ignore[arg-type] # as above
    except BaseException as error:  # CancelledError too: the task ends here, and its slot is freed
        return _failed_by(error)


def _failed_by(error: BaseException) -> RunRaised | RunFatal:
    """Map an exception to a result."""
    return RunFatal(error=error) if isinstance(error, UserError | PublishHalted) else RunRaised(error=error)


GIVEN_BACK = Release(refund=True)  # returned by an execution that ends itself because the worker stops
CLAIM_LOST = "the claim was lost: somebody else works on it, or will"


class Outcomes:
    """The outcomes of one consumer's batches: settlements, failure events, and the backoff after failures.

    Only the caller that ended the batch (`RunningBatch.end`) calls these methods, in any thread. A method that first
    asks the ledger settles only if no stop has done so meanwhile (`RunningBatch.settles`).
    """

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
        # For few and long runs; many short ones back off per message.
        self._waits_after_failures = not line.shares_slots
        self._lock = lock
        self._settler = settler
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._concluded = 0  # under the lock, as are the next two; written by the thread that ends a batch
        self._failures_in_a_row = 0
        self._not_before = 0.0  # monotonic
        self.draining = False  # set under the lock, by `Executor.drain`
        self.gave_back: list[Delivery] = []  # appended to by the thread that ends a batch

    @property
    def concluded(self) -> int:
        """The number of batches with a decided outcome so far."""
        return self._concluded

    @property
    def not_before(self) -> float:
        """The earliest time of the next batch (monotonic): failures in a row delay a consumer of few, long runs."""
        return self._not_before

    def answered(self, answers: Sequence[tuple[RunningBatch, Answer]]) -> None:
        """Submit the settlements that these runs returned."""
        self._settler.submit([pair for flight, answer in answers for pair in self._settlements(flight, answer)])
        self._count(failed=False, batches=len(answers))

    def failed(self, flight: RunningBatch, error: BaseException) -> None:
        """Handle a run that raised: free its claim, which may block, and release its messages with backoff."""
        self._free_claim(flight)
        if flight.settles():
            self.put_off(flight.deliveries, f"{type(error).__name__}: {error}")

    def halted(self, flight: RunningBatch, error: BaseException) -> None:
        """Release the messages of a halted consumer, without counting an attempt: nothing is wrong with them."""
        self._free_claim(flight)
        if not flight.settles():
            return
        self._settler.submit([(delivery, Release(refund=True)) for delivery in flight.deliveries])
        self._count(failed=False)
        self._tell(flight.deliveries, f"{type(error).__name__}: {error}")

    def claim_lost(self, flight: RunningBatch) -> None:
        """Release the messages of a lost claim; the result of the run is already fenced off.

        The infrastructure failed, not the work, so no attempt is counted: a message on its last attempt would be
        dead-lettered.
        """
        self._put_back(flight.deliveries, failed=False, why=CLAIM_LOST, refund=True)

    def timed_out(self, flight: RunningBatch) -> None:
        """Record the timeout, which may block, and submit the settlements.

        That removes the deliveries from the lease book: a hung run keeps no lease.
        """
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
            return  # the handler reports the failure of each message
        self._tell(
            flight.deliveries,
            f"no end within its timeout of {self._timeout_seconds:g} s; it is interrupted, and holds its place on "
            f"{flight.thread} until it ends",
        )

    def put_back_unbegun(self, flight: RunningBatch, why: str) -> None:
        """Release an execution for which no thread could be started, without counting an attempt."""
        self._put_back(flight.deliveries, failed=True, why=why, refund=True)

    def put_off(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Release messages that got no settlement, each with a delay that grows with its attempts."""
        self._put_back(deliveries, failed=True, why=why)

    def interrupt(self, flight: RunningBatch) -> None:
        """Interrupt the run. May block, for example to cancel a Spark job."""
        try:
            flight.execution.interrupt()
        except Exception as error:
            self._tell(flight.deliveries, f"interrupting failed: {type(error).__name__}: {error}")

    def drain(self, flight: RunningBatch) -> None:
        """Notify the execution that the worker has begun to stop."""
        try:
            flight.execution.drain()
        except Exception as error:
            self._tell(flight.deliveries, f"telling it of the stop failed: {type(error).__name__}: {error}")

    def _settlements(self, flight: RunningBatch, answer: Answer) -> Sequence[tuple[Delivery, Settlement]]:
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

    def _free_claim(self, flight: RunningBatch) -> None:
        # A failed run should have freed its claim itself. If it could not, the claim would block the objects of its
        # batch until the lease ends. Freeing it twice does no harm.
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

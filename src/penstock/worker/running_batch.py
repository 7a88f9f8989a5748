"""One batch at work, and what its run can come to.

A batch ends exactly once: answered, failed, timed out, its claim lost, or given back. Whoever ends it first decides
what becomes of its deliveries; whatever the others come to say later is ignored.

What becomes of a batch that ended: its settlements, what is told of it, how long a line that keeps failing waits.

Each method is for the one caller that ended the batch (`RunningBatch.end`), whatever thread that is. A method that asks
the ledger settles only if no stop has done so meanwhile (`RunningBatch.settles`).
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
    """What all flights of a line share.

    ``lock`` may be that of other lines too: it is held for a moment, and a lock for each message would be waste.
    """

    handler: str  # its name
    queue: str
    lock: threading.Lock
    lost: "Callable[[RunningBatch], None]"
    thread: str = ""  # the name of the thread that all are on


class RunningBatch:
    """One batch at work. Any thread may call it."""

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
        self.thread = course.thread  # the name of the thread it is on; on the pool written by that when it begins
        self.task: asyncio.Task[None] | None = None  # on the loop: keeps it alive; written by the loop's thread
        self.parted = False  # ended from outside and submitted: nobody waits for the run; written by who ended it
        self._course = course
        self._number = number
        self._ended = False  # under the lock; set once, by whoever ends it first
        self._settled = False  # under the lock; set once, by whoever submits the settlements

    @property
    def handler(self) -> str:
        """Its handler's name."""
        return self._course.handler

    @property
    def queue(self) -> str:
        """Where its deliveries are from."""
        return self._course.queue

    @property
    def name(self) -> str:
        """Of its task, or of its own thread."""
        return f"penstock-run-{self._course.handler}-{self._number}"

    @property
    def ended(self) -> bool:
        """Whether it is decided what becomes of the deliveries. The run may be going still."""
        return self._ended

    @property
    def message_ids(self) -> tuple[str, ...]:
        """For events."""
        return tuple(delivery.message.id for delivery in self.deliveries)

    @property
    def settled(self) -> bool:
        """Whether the settlements were submitted, or are about to be without another wait."""
        return self._settled

    def end(self, *, settles: bool = True) -> bool:
        """True for the one caller that decides what becomes of the deliveries.

        ``settles`` False: it asks a ledger first, and calls `settles` when it has the answer. A stop does not wait for
        that and may settle before.
        """
        with self._course.lock:
            first, self._ended = not self._ended, True
            if first and settles:
                self._settled = True
        return first

    def settles(self) -> bool:
        """True for the one caller that submits the settlements, after `end`."""
        with self._course.lock:
            first, self._settled = not self._settled, True
        return first

    def claim(self) -> HeldClaim | None:
        """Return the claim that the heartbeat extends. Once the batch has ended there is nothing left to lose."""
        return None if self._ended else self.execution.claim()

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if a claim that its keeper does not know any more is a loss."""
        return not self._ended and self.execution.loses(claim)

    def lose(self) -> None:
        """The claim is lost."""
        self._course.lost(self)


class RunReturned(NamedTuple):
    """The run ended, with settlements by receipt."""

    settlements: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRaised:
    """The run raised; another try may go better."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFatal:
    """The run raised what no further try can mend: the worker stops and a person has to look."""

    error: PenstockError


Result = RunReturned | RunRaised | RunFatal


def result_of(execution: Execution) -> Result:
    """Run, and map every answer and exception to the closed type."""
    try:
        answer = execution.run()
    except BaseException as error:  # SystemExit too: user code may raise it, and the deliveries must not hang on it
        return _failed_by(error)
    if inspect.iscoroutine(answer):
        answer.close()
        return RunRaised(error=TypeError("the execution answered a coroutine, which only the place LOOP awaits"))
    return RunReturned(settlements=answer)  # type: ignore[arg-type] # the protocol knows no other coroutines


async def awaited_result_of(execution: Execution) -> Result:
    """As `result_of`, for an execution on the event loop."""
    try:
        answer = execution.run()
        if inspect.iscoroutine(answer):
            answer = await answer
        return RunReturned(settlements=answer)  # type: ignore[arg-type] # as above
    except BaseException as error:  # CancelledError too: the task ends here, and its slot is freed
        return _failed_by(error)


def _failed_by(error: BaseException) -> RunRaised | RunFatal:
    """What an exception means."""
    return RunFatal(error=error) if isinstance(error, UserError | PublishHalted) else RunRaised(error=error)


GIVEN_BACK = Release(refund=True)  # as an execution answers that ends itself because the worker stops
CLAIM_LOST = "the claim was lost: somebody else works on it, or will"


class Outcomes:
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

    def answered(self, answers: Sequence[tuple[RunningBatch, Answer]]) -> None:
        """These runs answered."""
        self._settler.submit([pair for flight, answer in answers for pair in self._settlements(flight, answer)])
        self._count(failed=False, batches=len(answers))

    def failed(self, flight: RunningBatch, error: BaseException) -> None:
        """The run raised. Frees what it held, which may block."""
        self._free_claim(flight)
        if flight.settles():
            self.put_off(flight.deliveries, f"{type(error).__name__}: {error}")

    def halted(self, flight: RunningBatch, error: BaseException) -> None:
        """Nothing is wrong with these messages: back they go, uncharged, to whoever can work on them."""
        self._free_claim(flight)
        if not flight.settles():
            return
        self._settler.submit([(delivery, Release(refund=True)) for delivery in flight.deliveries])
        self._count(failed=False)
        self._tell(flight.deliveries, f"{type(error).__name__}: {error}")

    def claim_lost(self, flight: RunningBatch) -> None:
        """Nothing is acked: what the run comes to is fenced off by now. The machinery failed, not the work, so it costs
        no attempt: one that was the message's last would kill it."""
        self._put_back(flight.deliveries, failed=False, why=CLAIM_LOST, refund=True)

    def timed_out(self, flight: RunningBatch) -> None:
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

    def put_back_unbegun(self, flight: RunningBatch, why: str) -> None:
        """Release an execution for which no thread could be started, without counting an attempt."""
        self._put_back(flight.deliveries, failed=True, why=why, refund=True)

    def put_off(self, deliveries: Sequence[Delivery], why: str) -> None:
        """No settlement came of these: back they go, each after a wait that grows with its attempts."""
        self._put_back(deliveries, failed=True, why=why)

    def interrupt(self, flight: RunningBatch) -> None:
        """May block: it cancels a Spark run, say."""
        try:
            flight.execution.interrupt()
        except Exception as error:
            self._tell(flight.deliveries, f"interrupting failed: {type(error).__name__}: {error}")

    def drain(self, flight: RunningBatch) -> None:
        """The worker has begun to stop."""
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

"""A running batch: how it ends exactly once, how its run is called, and when it exceeds its timeout.

- `RunningBatch`: a batch ends exactly once: with settlements, failed, timed out, claim lost, or released. The first
  thread that ends it decides the outcome of its deliveries; later results are ignored.
- `run_execution`: runs an execution, and maps every return value and exception to a closed type
- `ExecutionTimeouts`: finds the batches that exceeded the handler's timeout. Only the time of the user's code counts,
  so only a lower bound of the end is known, which moves while the execution waits for the ledger. Each execution is
  checked again when its bound is reached.
"""

import asyncio
import heapq
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError, PublishHalted, UserError
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Execution, HeldClaim, Settlements


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRuntime:
    """The fields that all running batches of a consumer share.

    Several consumers may share the ``lock``, which is held only briefly.
    """

    handler: str  # its name
    queue: str
    lock: threading.Lock
    lost: "Callable[[RunningBatch], None]"
    thread: str = ""  # the thread of all executions, if they have one in common


class RunningBatch:
    """One batch from its begin to the end of its run. Owned by the `Executor` of its consumer. Thread-safe."""

    __slots__ = (
        "_number",
        "_runtime",
        "deliveries",
        "ended",
        "execution",
        "parted",
        "settled",
        "task",
        "thread",
    )

    def __init__(
        self, runtime: BatchRuntime, execution: Execution, deliveries: Sequence[Delivery], number: int
    ) -> None:
        self.execution = execution
        self.deliveries = deliveries
        self.thread = runtime.thread  # the name of its thread; on the pool written by that thread when it begins
        self.task: asyncio.Task[None] | None = None  # on the loop: keeps the task alive; written by the loop's thread
        # Ended from outside and submitted, so the stop does not wait for the run; written by the thread that ended it.
        self.parted = False
        self._runtime = runtime
        self._number = number
        # The outcome of the deliveries is decided; the run may still be going. Set once, under the lock, by the first
        # thread that ends the batch.
        self.ended = False
        # The settlements are submitted, or will be without another wait. Set once, under the lock, by the thread that
        # submits them.
        self.settled = False

    @property
    def handler(self) -> str:
        """The name of its handler."""
        return self._runtime.handler

    @property
    def queue(self) -> str:
        """The queue of its deliveries."""
        return self._runtime.queue

    @property
    def name(self) -> str:
        """The name of its task or of its own thread."""
        return f"penstock-run-{self._runtime.handler}-{self._number}"

    def end(self, *, settles: bool = True) -> bool:
        """Return True to the one caller that decides the outcome of the deliveries.

        With ``settles=False`` the caller uses the ledger first, then calls `begin_settling`. A stop does not wait for
        the ledger and may settle earlier.
        """
        with self._runtime.lock:
            first, self.ended = not self.ended, True
            if first and settles:
                self.settled = True
        return first

    def begin_settling(self) -> bool:
        """Return True to the one caller that submits the settlements, after `end`."""
        with self._runtime.lock:
            first, self.settled = not self.settled, True
        return first

    def claim(self) -> HeldClaim | None:
        """Return the claim that the heartbeat extends; None once the batch has ended."""
        return None if self.ended else self.execution.claim()

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if the claim counts as lost when its extender no longer knows it."""
        return not self.ended and self.execution.loses(claim)

    def lose(self) -> None:
        """Report that the claim is lost."""
        self._runtime.lost(self)


class RunReturned(NamedTuple):
    """The run returned its settlements, by receipt handle."""

    settlements: Settlements


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRaised:
    """The run raised an exception; a retry may succeed."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFatal:
    """The run raised an error that no retry can fix: the consumer halts, and a person must act."""

    error: PenstockError


Result = RunReturned | RunRaised | RunFatal


def run_execution(execution: Execution) -> Result:
    """Run an execution, and map every return value and exception to the closed type."""
    try:
        returned = execution.run()
    except BaseException as error:  # SystemExit too: user code may raise it, and the deliveries must still be settled
        return _failed_by(error)
    if inspect.iscoroutine(returned):
        returned.close()
        return RunRaised(
            error=TypeError("the execution returned a coroutine, which only an execution on the event loop may do")
        )
    return RunReturned(settlements=returned)  # type: ignore[arg-type] # the protocol knows no other coroutines


async def run_execution_on_loop(execution: Execution) -> Result:
    """Work like `run_execution`, for an execution on the event loop."""
    try:
        returned = execution.run()
        if inspect.iscoroutine(returned):
            returned = await returned
        return RunReturned(settlements=returned)  # type: ignore[arg-type] # as above
    except BaseException as error:  # CancelledError too: the task ends here, and its slot is freed
        return _failed_by(error)


def _failed_by(error: BaseException) -> RunRaised | RunFatal:
    """Map an exception to a result."""
    return RunFatal(error=error) if isinstance(error, UserError | PublishHalted) else RunRaised(error=error)


class ExecutionTimeouts:
    """The running executions of one consumer, ordered by their next timeout check. Call under the lock of `Slots`.

    New executions all have the same timeout, so they stay in order of their begin. Only those that outlive their first
    bound move to the heap.
    """

    def __init__(self, timeout_seconds: float | None, *, clock: Clock) -> None:
        """If ``timeout_seconds`` is None, no execution is ever overdue."""
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._young: dict[RunningBatch, float] = {}
        self._old: list[tuple[float, int, RunningBatch]] = []
        self._pushed = 0  # tie-breaker for heap entries with equal times

    def add(self, batches: Sequence[RunningBatch]) -> None:
        """Watch executions that are about to begin."""
        if self._timeout_seconds is not None:
            self._young.update(dict.fromkeys(batches, self._clock.monotonic() + self._timeout_seconds))

    def remove(self, batches: Sequence[RunningBatch]) -> None:
        """Forget executions that have returned."""
        for batch in batches:
            self._young.pop(batch, None)

    def next_at(self) -> float | None:
        """Return when the next execution must be checked (monotonic)."""
        self._forget_ended()
        young = next(iter(self._young.values()), None)
        old = self._old[0][0] if self._old else None
        return min((at for at in (young, old) if at is not None), default=None)

    def take_overdue(self) -> Sequence[RunningBatch]:
        """Remove and return the executions that exceeded their timeout."""
        if self._timeout_seconds is None:
            return ()
        now, found = self._clock.monotonic(), []
        for batch in self._due(now):
            left_seconds = batch.execution.left_seconds(self._timeout_seconds)
            if left_seconds <= 0:
                found.append(batch)
            else:
                self._pushed += 1
                heapq.heappush(self._old, (now + left_seconds, self._pushed, batch))
        return found

    def _due(self, now: float) -> Sequence[RunningBatch]:
        due: list[RunningBatch] = []
        while (at := self.next_at()) is not None and at <= now:
            if self._old and self._old[0][0] == at:
                due.append(heapq.heappop(self._old)[2])
            else:
                batch = next(iter(self._young))
                del self._young[batch]
                due.append(batch)
        return due

    def _forget_ended(self) -> None:
        while self._young and (batch := next(iter(self._young))).ended:
            del self._young[batch]
        while self._old and self._old[0][2].ended:
            heapq.heappop(self._old)

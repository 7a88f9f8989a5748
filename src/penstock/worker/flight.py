"""One batch at work, and what its run can come to.

A batch ends exactly once: answered, failed, timed out, its claim lost, or given back. Whoever ends it first decides
what becomes of its deliveries; whatever the others come to say later is ignored.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError, PublishHalted, UserError
from penstock.messaging.claims import HeldClaim
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer, Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What all flights of a line share.

    ``lock`` may be that of other lines too: it is held for a moment, and a lock for each message would be waste.
    """

    handler: str  # its name
    queue: str
    lock: threading.Lock
    lost: "Callable[[Flight], None]"
    thread: str = ""  # the name of the thread that all are on


class Flight:
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

    def __init__(self, course: Course, execution: Execution, deliveries: Sequence[Delivery], number: int) -> None:
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


class Answered(NamedTuple):
    """The run ended, with settlements by receipt."""

    settlements: Answer


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
        answer = execution.run()
    except BaseException as error:  # SystemExit too: user code may raise it, and the deliveries must not hang on it
        return _failed_by(error)
    if inspect.iscoroutine(answer):
        answer.close()
        return Failed(error=TypeError("the execution answered a coroutine, which only the place LOOP awaits"))
    return Answered(settlements=answer)  # type: ignore[arg-type] # the protocol knows no other coroutines


async def awaited_result_of(execution: Execution) -> Result:
    """As `result_of`, for an execution on the event loop."""
    try:
        answer = execution.run()
        if inspect.iscoroutine(answer):
            answer = await answer
        return Answered(settlements=answer)  # type: ignore[arg-type] # as above
    except BaseException as error:  # CancelledError too: the task ends here, and its slot is freed
        return _failed_by(error)


def _failed_by(error: BaseException) -> Failed | Fatal:
    """What an exception means."""
    return Fatal(error=error) if isinstance(error, UserError | PublishHalted) else Failed(error=error)

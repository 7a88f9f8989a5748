"""What the worker runs: a handler whose unit of work is a batch of deliveries.

A pipeline is such a handler, and so is a plain function, whose batches hold one delivery each. The worker knows nothing
else of either.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from penstock.messaging.claims import HeldClaim
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Settlement

Answer = Mapping[str, Settlement]  # a settlement for every delivery, by receipt; what it says is recorded already


class Place(StrEnum):
    """Where executions run."""

    THREAD = "thread"  # each in a thread of its own, beside the shared slots: few and long (pipelines)
    POOL = "pool"  # on the worker's pool of threads, one of its slots each
    LOOP = "loop"  # on the worker's event loop, one of its slots each: `run` answers a coroutine


class Execution(Protocol):
    """One batch at work. `run` has its place; the other methods are called from other threads meanwhile."""

    def run(self) -> Answer | Coroutine[Any, Any, Answer]:
        """Do the work and answer the settlements; a coroutine of them where the handler's place is the loop."""
        ...

    def claim(self) -> HeldClaim | None:
        """Return the claim that a heartbeat has to extend; None if the batch holds none. Does not block.

        Raises `ClaimLost` if the work cannot go on, so that the deliveries must not be extended either.
        """
        ...

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if a claim that its keeper does not know any more is a loss. It is none if the batch itself ended
        the claim a moment ago. Does not block."""
        ...

    def drain(self) -> None:
        """The worker has begun to stop. Work may go on; what wants to give back early can. Told at most once."""
        ...

    def left_seconds(self, timeout_seconds: float) -> float:
        """For how long the handler's timeout cannot be over; 0 or less when it is. Only the user's code counts."""
        ...

    def time_out(self) -> Answer:
        """The handler's timeout is over: record that, free what is held, and answer the settlements. `interrupt`
        follows. `run` may still be going; its answer is then ignored."""
        ...

    def give_back(self) -> None:
        """Free what the batch holds, durably, so that another worker can go on at once. `run` may still be going."""
        ...

    def interrupt(self) -> None:
        """Make `run` end soon. Called after `give_back` or `time_out`, or when the claim is lost; its answer is then
        ignored."""
        ...


class BatchHandler(Protocol):
    """Begins batches, and has background jobs for when there is nothing else to do."""

    @property
    def name(self) -> str:
        """For logs and metrics."""
        ...

    @property
    def place(self) -> Place:
        """Where its executions run."""
        ...

    @property
    def timeout_seconds(self) -> float | None:
        """How long the user's code may take in an execution; None: as long as it likes."""
        ...

    def weigh(self, delivery: Delivery) -> int:
        """How many bytes of work the delivery announces; never raises, whatever the message holds."""
        ...

    def begin(self, deliveries: Sequence[Delivery]) -> Execution:
        """Make an execution of these deliveries; nothing is claimed before its `run`."""
        ...

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        """Return the background jobs by name: to publish what is committed, say, and to free what expired.

        Each is called at the start and now and then while the line is idle, in a thread of its own, one call at a time.
        """
        ...

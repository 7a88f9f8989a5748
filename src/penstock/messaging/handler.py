"""What the worker runs: a handler whose unit of work is a batch of deliveries.

A pipeline is such a handler, and so is a plain function, whose batches hold one delivery each. The worker knows nothing
else of either.
"""

from collections.abc import Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

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

    def extend(self) -> bool:
        """Extend what the batch itself holds (its claim), before its deliveries are; False when that is lost."""
        ...

    def drain(self) -> None:
        """The worker has begun to stop. Work may go on; what wants to give back early can. Told at most once."""
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
    """Begins batches, and does upkeep when there is nothing else to do."""

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
        """How long an execution may take, from its begin; None: as long as it likes."""
        ...

    def weigh(self, delivery: Delivery) -> int:
        """How many bytes of work the delivery announces; never raises, whatever the message holds."""
        ...

    def begin(self, deliveries: Sequence[Delivery]) -> Execution:
        """Make an execution of these deliveries; nothing is claimed before its `run`."""
        ...

    def upkeep(self) -> None:
        """Called at the start and while idle: publish what is committed, free what expired."""
        ...

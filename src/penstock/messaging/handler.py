"""What the worker runs: a handler whose unit of work is a batch of deliveries.

A pipeline is such a handler; so is, later, a plain function. The worker knows nothing else of either.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Settlement


class Execution(Protocol):
    """One batch at work. `run` has a thread of its own; the other methods are called from other threads meanwhile."""

    def run(self) -> Mapping[str, Settlement]:
        """Do the work and answer a settlement for every delivery, by receipt. What it answers is recorded already."""
        ...

    def extend(self) -> bool:
        """Extend what the batch itself holds (its claim), before its deliveries are; False when that is lost."""
        ...

    def give_back(self) -> None:
        """Free what the batch holds, durably, so that another worker can go on at once. `run` may still be going."""
        ...

    def interrupt(self) -> None:
        """Make `run` end soon. Called after `give_back`, or when the claim is lost; its answer is then ignored."""
        ...


class BatchHandler(Protocol):
    """Begins batches, and does upkeep when there is nothing else to do."""

    @property
    def name(self) -> str:
        """For logs and metrics."""
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

"""A consumer: one queue and the handler that serves it, with its limits and its gate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ConfigurationError
from penstock.messaging.broker import same_queue
from penstock.messaging.handler import BatchHandler, ExecutionPlace
from penstock.worker.batcher import EACH_ALONE, Limits
from penstock.worker.settings import WorkerSettings


class Gate(Protocol):
    """The limit on messages that a consumer may hold. The I/O thread calls it in every turn, so no method may block."""

    def admits(self) -> int | None:
        """Return the number of messages that may be held for the next batches; None for no limit.

        If fewer are admitted than are held and not begun, the worker releases those messages. If the number changes
        although no execution of the consumer ends, `opens_at` must return when.
        """
        ...

    def opens_at(self) -> float | None:
        """Return when the gate will admit more by the passing of time alone (monotonic); None if it never will."""
        ...

    def release_delay_seconds(self) -> float:
        """Return how long held messages stay invisible if the gate closes before they begin."""
        ...


class Gates:
    """Several gates as one: a consumer may hold as many messages as all of them admit."""

    def __init__(self, *gates: Gate) -> None:
        self._gates = gates

    def admits(self) -> int | None:
        return min((admitted for gate in self._gates if (admitted := gate.admits()) is not None), default=None)

    def opens_at(self) -> float | None:
        return min((at for gate in self._gates if (at := gate.opens_at()) is not None), default=None)

    def release_delay_seconds(self) -> float:
        return max((gate.release_delay_seconds() for gate in self._gates), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """A prerequisite of a consumer that must start before its first receive and takes long, such as Spark.

    The thread `penstock-start` calls ``run``. It raises `UserError` if a person must fix something, and
    `TemporaryError` for a transient fault, after which it is called again. ``awaits`` is its name in messages to
    people.
    """

    awaits: str
    run: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer: one queue with its handler. Raises `ConfigurationError` for numbers below 1.

    ``weight`` is the consumer's share of messages while several queues are full: 2 gets twice as many as 1. ``limits``
    bound a batch; by default each message runs alone. ``in_flight_max`` bounds concurrent executions; None means one
    for a handler with threads of its own, and all slots of the worker otherwise. ``fetch_max`` bounds the messages of
    one receive; None takes the worker's setting. ``gate`` limits receiving; None is always open. ``start`` is a
    prerequisite of the first receive, during which other consumers are served; None means there is none.
    """

    queue: str
    handler: BatchHandler
    weight: int = 1
    limits: Limits = EACH_ALONE
    in_flight_max: int | None = None
    fetch_max: int | None = None
    gate: Gate | None = None
    start: SlowStart | None = None

    def __post_init__(self) -> None:
        numbers = {
            "weight": self.weight,
            "limits.messages_max": self.limits.messages_max,
            "limits.bytes_max": self.limits.bytes_max,
            "in_flight_max": self.in_flight_max,
            "fetch_max": self.fetch_max,
        }
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ConfigurationError(
                    f"The consumer of the queue {self.queue} has {name}={number}; set it to at least 1."
                )

    @property
    def shares_slots(self) -> bool:
        """Return True if executions take slots of the worker; otherwise each has a thread of its own."""
        return self.handler.place is not ExecutionPlace.THREAD

    def executions_max(self, settings: WorkerSettings) -> int:
        """Return the maximum number of concurrent executions, regardless of other consumers."""
        if self.in_flight_max is not None:
            return self.in_flight_max
        return settings.concurrency if self.shares_slots else 1

    def receive_max(self, settings: WorkerSettings) -> int:
        """Return the maximum number of messages of one receive."""
        return settings.fetch_max if self.fetch_max is None else self.fetch_max


def check_consumers(consumers: tuple[Consumer, ...], *, jobs: Sequence[str] = ()) -> None:
    """Raise `ConfigurationError` for consumers that cannot be served together, or if there is no work at all."""
    if not consumers and not jobs:
        raise ConfigurationError("A worker needs at least one queue to serve; give it a handler.")
    queues = [consumer.queue for consumer in consumers]
    twice = sorted({queue for queue in queues if sum(same_queue(queue, other) for other in queues) > 1})
    if twice:
        raise ConfigurationError(
            f"The queue {twice[0]} has more than one handler, and they would take each other's messages; give each "
            "handler a queue of its own."
        )

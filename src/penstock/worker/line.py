"""A line: one queue, and the handler that serves it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ConfigurationError
from penstock.messaging.broker import same_queue
from penstock.messaging.handler import BatchHandler, ExecutionPlace
from penstock.worker.batcher import EACH_ALONE, Limits
from penstock.worker.settings import WorkerSettings


class Gate(Protocol):
    """Whether a line may receive and begin. The I/O thread asks in every turn, so both answer at once."""

    def admits(self) -> int | None:
        """How many messages may be at hand for what begins next; None: as many as there is room for. Once it admits
        fewer than are held and unbegun, those go back. Where it changes while nothing of the line ends, `opens_at` says
        when."""
        ...

    def opens_at(self) -> float | None:
        """When it admits more than now without anybody's doing (monotonic); None where that is not a matter of time."""
        ...

    def put_back_seconds(self) -> float:
        """How long messages that are held and unbegun stay invisible when it falls shut."""
        ...


class Gates:
    """Several gates as one: a line may receive and begin what all of them admit."""

    def __init__(self, *gates: Gate) -> None:
        self._gates = gates

    def admits(self) -> int | None:
        return min((admitted for gate in self._gates if (admitted := gate.admits()) is not None), default=None)

    def opens_at(self) -> float | None:
        return min((at for gate in self._gates if (at := gate.opens_at()) is not None), default=None)

    def put_back_seconds(self) -> float:
        return max((gate.put_back_seconds() for gate in self._gates), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """Something that a line needs before it can receive, and that takes long to start.

    ``run`` starts it, in the worker's thread `penstock-start`. It raises `UserError` if a person has to fix something,
    and `TemporaryError` for a fault that may pass: then it is called again. ``awaits`` names it for people.
    """

    awaits: str
    run: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One queue and what serves it. Raises `ConfigurationError` for numbers that cannot work.

    ``weight`` is the line's share of the messages while several lines are full: 2 gets twice as many as 1. ``limits``
    bound a batch; plain handlers keep the default, each message alone. ``in_flight_max`` bounds the executions at once;
    None: one in a thread of its own, and as many as the worker has slots for the others. ``fetch_max`` is how many
    messages one receive asks for, at most; None: what the worker's settings say. ``gate``: None is always open.
    ``start``: what the line waits for before its first receive, while others are served; None: nothing.
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
                    f"The line of the queue {self.queue} has {name} {number}: it has to be at least 1."
                )

    @property
    def shares_slots(self) -> bool:
        """Whether its executions take slots of the worker; the others have threads of their own."""
        return self.handler.place is not ExecutionPlace.THREAD

    def places(self, settings: WorkerSettings) -> int:
        """How many executions it may have at once, whatever the others do."""
        if self.in_flight_max is not None:
            return self.in_flight_max
        return settings.concurrency if self.shares_slots else 1

    def fetch(self, settings: WorkerSettings) -> int:
        """How many messages one receive asks for, at most."""
        return settings.fetch_max if self.fetch_max is None else self.fetch_max


def check_lines(lines: tuple[Line, ...]) -> None:
    """Raises `ConfigurationError` for lines that cannot be served together."""
    if not lines:
        raise ConfigurationError("A worker needs at least one queue to serve; give it a handler.")
    queues = [line.queue for line in lines]
    twice = sorted({one for one in queues if sum(same_queue(one, other) for other in queues) > 1})
    if twice:
        raise ConfigurationError(
            f"The queue {twice[0]} has more than one handler, and they would take each other's messages; give each "
            "handler a queue of its own."
        )

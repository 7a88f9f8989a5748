"""The Protocols between the worker and the code that it runs.

A `BatchHandler` begins executions of batches. Pipelines are batch handlers, and so are plain functions, with one
delivery per batch; the worker knows nothing else about them. A `ClaimExtender` extends the claims of several executions
in one call, for the heartbeat. A `ServiceWatch` records whether a service that work depends on is available: the
ledger, or the store of the objects.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The outcome of extending several claims. A claim in neither set was extended."""

    lost: Set[str] = field(default_factory=frozenset)
    locked: Set[str] = field(default_factory=frozenset)  # still held, but locked by another transaction: retry


class ClaimExtender(Protocol):
    """The service that holds claims. Extenders are equal if one call can extend the claims of both."""

    def __hash__(self) -> int: ...

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        """Make each lease end ``lease_seconds`` from now. Raises `TemporaryError`.

        ``response_seconds`` bounds the wait for a connection, and the wait for each response.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A claim that one execution holds now."""

    extender: ClaimExtender
    id: str


Settlements = Mapping[
    str, Settlement
]  # a settlement for every delivery, by receipt handle; its outcome is already recorded


class ExecutionPlace(StrEnum):
    """The kind of thread or loop that runs executions."""

    THREAD = "thread"  # a dedicated thread each, outside the shared slots, for few long executions (pipelines)
    POOL = "pool"  # on the worker's thread pool, one slot each
    LOOP = "loop"  # on the worker's event loop, one slot each; `run` returns a coroutine


class Execution(Protocol):
    """One running batch. `run` is called in the handler's `place`; other threads call the other methods meanwhile."""

    def run(self) -> Settlements | Coroutine[Any, Any, Settlements]:
        """Process the batch and return the settlements, or a coroutine of them if the place is the event loop."""
        ...

    def claim(self) -> HeldClaim | None:
        """Return the claim that a heartbeat has to extend; None if the batch holds none. Does not block.

        Raises `ClaimLost` if the work cannot continue, so that the deliveries must not be extended either.
        """
        ...

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if a claim that its extender no longer knows was lost. Does not block.

        It was not lost if the batch itself has just ended it.
        """
        ...

    def drain(self) -> None:
        """React to the start of a shutdown. Work may continue, or prepare an early release. Called at most once."""
        ...

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return the seconds before which the timeout cannot expire; 0 or less if it has expired.

        Only the user's code counts.
        """
        ...

    def time_out(self) -> Settlements:
        """Record that the timeout expired, free the claim, and return the settlements.

        `interrupt` follows. `run` may still be running; its result is then ignored.
        """
        ...

    def release(self) -> None:
        """Free the claim durably, so that another worker can start at once. `run` may still be running."""
        ...

    def interrupt(self) -> None:
        """Make `run` end soon; its result is ignored.

        Called after `release` or `time_out`, or when the claim is lost.
        """
        ...


class BatchHandler(Protocol):
    """A handler whose unit of work is a batch of deliveries. It also has background jobs for idle time."""

    @property
    def name(self) -> str:
        """Return the name for logs and metrics."""
        ...

    @property
    def place(self) -> ExecutionPlace:
        """Return where executions run."""
        ...

    @property
    def timeout_seconds(self) -> float | None:
        """Return the time limit of the user's code per execution; None: no limit."""
        ...

    def weigh(self, delivery: Delivery) -> int:
        """Return the bytes of work that the delivery refers to. Never raises, whatever the message contains."""
        ...

    def begin(self, deliveries: Sequence[Delivery]) -> Execution:
        """Create an execution of these deliveries; nothing is claimed before its `run`."""
        ...

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        """Return the background jobs by name, for example publishing committed batches and freeing expired claims.

        Each is called at the start and at intervals while the queue is idle, in its own thread, one call at a time.
        """
        ...


class ServiceWatch(Protocol):
    """A record of the availability of one service, one per worker and service. Any thread may call it."""

    def watch_request(self) -> AbstractContextManager[None]:
        """Return a context for one request: a `TemporaryError` inside it means that the service is unavailable.

        A normal exit means that it responded. A `PartAway` proves nothing about the service.
        """
        ...

    def record_success(self) -> None:
        """Record that a request did its work; a response alone is no proof: a ledger on a full disk responds."""
        ...

    def release_delay_seconds(self) -> float:
        """Return how long messages released now stay invisible; 0 while the service is available."""
        ...


class Unwatched:
    """A `ServiceWatch` that records nothing and pauses nothing."""

    def watch_request(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record_success(self) -> None:
        """Record nothing."""

    def release_delay_seconds(self) -> float:
        return 0.0

"""What the worker runs: a handler whose unit of work is a batch of deliveries.

A pipeline is such a handler, and so is a plain function, whose batches hold one delivery each. The worker knows nothing
else of either.

Claims as a heartbeat extends them: all claims of one keeper in one call.

The Protocol through which work reports how a service answers: the ledger, or the store of its objects.
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
    """The outcome of extending several claims; a claim that is in neither set was extended."""

    lost: Set[str] = field(default_factory=frozenset)
    late: Set[str] = field(default_factory=frozenset)  # still held; another transaction had a lock on them: try again


class ClaimKeeper(Protocol):
    """The service that holds claims. Keepers are equal if one call can extend the claims of both."""

    def __hash__(self) -> int: ...

    def extend(self, ids: Sequence[str], *, lease_seconds: float, answer_seconds: float) -> Extension:
        """Let each lease end ``lease_seconds`` from now. Raises `TemporaryError`.

        ``answer_seconds`` bounds the wait for a connection, and the wait for each answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A claim that one execution holds now."""

    keeper: ClaimKeeper
    id: str


Answer = Mapping[str, Settlement]  # a settlement for every delivery, by receipt; what it says is recorded already


class ExecutionPlace(StrEnum):
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
    def place(self) -> ExecutionPlace:
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


class ServiceWatch(Protocol):
    """Records how one service answers the work that needs it. Any thread may call it."""

    def asked(self) -> AbstractContextManager[None]:
        """Return a context for one request: a `TemporaryError` in it means that the service is away, a normal end that
        it answers. A `PartAway` says nothing about the service."""
        ...

    def succeeded(self) -> None:
        """Note that a request did its work. An answer alone does not prove that: a ledger on a full disk answers."""
        ...

    def put_back_seconds(self) -> float:
        """Return for how long messages that are released now stay invisible; 0 while the service answers."""
        ...


class Unwatched:
    """A `ServiceWatch` that records nothing and pauses nothing."""

    def asked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def succeeded(self) -> None:
        """Do nothing."""

    def put_back_seconds(self) -> float:
        return 0.0

"""The Protocols of tracing, and their implementation for processes that do not trace.

Tracing wraps whole brokers and handlers, so that the message path contains no tracing code and pays nothing without
it. `penstock.monitoring.traces` implements it with OpenTelemetry.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from penstock.messaging.broker import Broker
from penstock.messaging.handler import BatchHandler
from penstock.messaging.message import Outgoing

Carrier = Mapping[str, str]  # trace context as text attributes of a message
NO_CARRIER: Carrier = {}


class Continuing(Protocol):
    """Continue a trace in another process. Can be pickled."""

    def __call__(self, carrier: Carrier) -> AbstractContextManager[None]:
        """Return a context that attributes the block to the span in the carrier."""
        ...

    def close(self) -> None:
        """Send the remaining spans at the end of the process, within a bounded time."""
        ...


class Tracing(Protocol):
    """The tracing of a process. Any thread may call it; it never raises."""

    def broker(self, broker: Broker) -> Broker:
        """Wrap the broker: sends and receives create spans, and messages carry their sender's trace context."""
        ...

    def handler(self, handler: BatchHandler, *, queue: str, system: str) -> BatchHandler:
        """Wrap the handler: each execution is a span that links to the senders."""
        ...

    def stage(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """Return a context that records the block as a child span, including any exception it raises."""
        ...

    def carrier(self) -> Carrier:
        """Return the trace context of the calling thread's span; empty if there is none."""
        ...

    @property
    def continuing(self) -> Continuing | None:
        """Return the continuation for handlers' processes; None if they do not trace."""
        ...


class NoTracing:
    """A `Tracing` that records nothing."""

    def broker(self, broker: Broker) -> Broker:
        return broker

    def handler(self, handler: BatchHandler, *, queue: str, system: str) -> BatchHandler:  # noqa: ARG002 - Protocol
        return handler

    def stage(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        return nullcontext()

    def carrier(self) -> Carrier:
        return NO_CARRIER

    @property
    def continuing(self) -> Continuing | None:
        return None


NO_TRACING = NoTracing()  # stateless


@runtime_checkable
class Wrapped(Protocol):
    """A broker that wraps another one."""

    @property
    def inner(self) -> Broker:
        """Return the wrapped broker."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A broker that limits the size of a message including its attributes."""

    def takes(self, queue: str, message: Outgoing) -> bool:
        """Return True if the queue accepts a message of this size, as far as known without sending it.

        Queries the server occasionally. Raises errors of the queue.
        """
        ...


def unwrapped(broker: Broker) -> Broker:
    """Return the innermost broker, for code that depends on its type."""
    return broker.inner if isinstance(broker, Wrapped) else broker

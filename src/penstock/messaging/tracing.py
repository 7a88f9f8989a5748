"""Tracing, as the rooms see it: what goes through a process leaves spans behind, or nothing at all.

The seams are a broker and a handler, each wrapped as a whole, so that the ways of messages hold no word of tracing and
cost nothing where there is none. `penstock.monitoring.traces` is the one that traces; it speaks OpenTelemetry.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from penstock.messaging.broker import Broker
from penstock.messaging.handler import BatchHandler
from penstock.messaging.message import Outgoing

Carrier = Mapping[str, str]  # what a trace goes on by elsewhere; text attributes of a message
NO_CARRIER: Carrier = {}


class Continuing(Protocol):
    """A trace that goes on in another process; it can be pickled."""

    def __call__(self, carrier: Carrier) -> AbstractContextManager[None]:
        """What happens in the block belongs to the span whose carrier it is."""
        ...

    def close(self) -> None:
        """The process ends: send what is left, in a moment."""
        ...


class Tracing(Protocol):
    """What is told of a process in spans. Any thread may call it, and it raises nothing."""

    def broker(self, broker: Broker) -> Broker:
        """The same broker; what is sent and received leaves spans, and messages take their sender's trace along."""
        ...

    def handler(self, handler: BatchHandler, *, queue: str, system: str) -> BatchHandler:
        """The same handler; each of its executions is a span that links to the senders."""
        ...

    def stage(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """A span for the block, within the one that the thread is in. What the block raises is noted in it."""
        ...

    def carrier(self) -> Carrier:
        """Of the span that the calling thread is in; nothing where it is in none."""
        ...

    @property
    def continuing(self) -> Continuing | None:
        """For processes of handlers; None: nothing goes on there."""
        ...


class NoTracing:
    """A `Tracing` that tells nothing."""

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


NO_TRACING = NoTracing()  # holds no state


@runtime_checkable
class Wrapped(Protocol):
    """A broker around another one."""

    @property
    def inner(self) -> Broker:
        """The other one."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A broker that counts attributes as part of a message, and knows how large one may be."""

    def takes(self, queue: str, message: Outgoing) -> bool:
        """Whether the queue takes a message of that size, as far as can be told without sending it; asks the server now
        and then. Raises what is wrong with the queue."""
        ...


def unwrapped(broker: Broker) -> Broker:
    """The broker itself, for those that have to know which one it is."""
    return broker.inner if isinstance(broker, Wrapped) else broker

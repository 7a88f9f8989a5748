"""The base class of all events, and the bus that distributes them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base class of all events."""


Listener = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Ignore the event. The default listener."""


class SelectiveListener(ABC):
    """A listener that receives only some kinds of events."""

    @abstractmethod
    def wants(self, kind: type[Event]) -> bool:
        """Return True if the listener receives events of this kind. The result never changes."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Receive an event."""


class Bus(SelectiveListener):
    """Pass each event to every listener, in the emitting thread. Each process has at least one. Thread-safe.

    A listener must not raise. A bus can be a listener of another one; it wants the events that its own
    listeners want.
    """

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners  # fixed at construction, so no lock is needed
        self._receivers: dict[type[Event], tuple[Listener, ...]] = {}  # by kind; filled on first use by any thread

    def wants(self, kind: type[Event]) -> bool:
        """Return True if any listener receives this kind; otherwise the caller need not create the event."""
        receivers = self._receivers.get(kind)  # saves almost every caller a call of `_receivers_of`
        return bool(self._receivers_of(kind) if receivers is None else receivers)

    def __call__(self, event: Event) -> None:
        self.emit(event)

    def emit(self, event: Event) -> None:
        """Call the listeners that receive events of this kind, one after another."""
        for listener in self._receivers_of(type(event)):
            listener(event)

    def _receivers_of(self, kind: type[Event]) -> tuple[Listener, ...]:
        receivers = self._receivers.get(kind)
        if receivers is None:
            receivers = self._receivers[kind] = tuple(
                listener
                for listener in self._listeners
                if not isinstance(listener, SelectiveListener) or listener.wants(kind)
            )
        return receivers

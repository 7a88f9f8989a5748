"""The root of all facts, and the bus they travel on."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all facts."""


Listener = Callable[[Event], None]


def tell_nobody(_: Event) -> None:
    """The listener of those who were given none."""


class ChoosyListener(ABC):
    """A listener that has no use for some kinds of events."""

    @abstractmethod
    def hears(self, kind: type[Event]) -> bool:
        """Whether it is to be told of such events; always the same answer."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Hear one."""


class Bus:
    """Hands each event to every listener, in the emitting thread. A listener that raises is a defect of its own."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners  # fixed at construction, so no lock is needed
        self._hearers: dict[type[Event], tuple[Listener, ...]] = {}  # by kind; whoever meets one first writes it

    def hears(self, kind: type[Event]) -> bool:
        """Whether anybody does: what happens to every message need not be put into words for nobody."""
        return bool(self._hearers_of(kind))

    def emit(self, event: Event) -> None:
        for listener in self._hearers_of(type(event)):
            listener(event)

    def _hearers_of(self, kind: type[Event]) -> tuple[Listener, ...]:
        hearers = self._hearers.get(kind)
        if hearers is None:
            hearers = self._hearers[kind] = tuple(
                listener
                for listener in self._listeners
                if not isinstance(listener, ChoosyListener) or listener.hears(kind)
            )
        return hearers

"""From a broker, which is opened before there is a worker, to whoever hears of events once there is one."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.events import Event, Listener


class Incidents:
    """A listener that passes on to another. What comes while nobody hears is for nobody."""

    def __init__(self) -> None:
        self._listener: Listener | None = None  # written by the thread that serves

    def __call__(self, event: Event) -> None:
        listener = self._listener
        if listener is not None:
            listener(event)

    @contextmanager
    def passing_to(self, listener: Listener) -> Iterator[None]:
        """Until the block ends; then to whoever heard before."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

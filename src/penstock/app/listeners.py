"""The user's listeners: what they raise reaches nothing else."""

from collections.abc import Sequence

from penstock.events import Event, Listener, ListenerFailed
from penstock.messaging.failure import failure_of


class _Guarded:
    """One listener. Any thread may call it."""

    def __init__(self, listener: Listener, tell: Listener) -> None:
        self._listener = listener
        self._tell = tell
        self._told = False  # set once, by the thread in which it raised first; two at once may both tell

    def __call__(self, event: Event) -> None:
        try:
            self._listener(event)
        except (Exception, SystemExit) as error:
            if not self._told:
                self._told = True
                name = getattr(self._listener, "__qualname__", type(self._listener).__qualname__)
                self._tell(ListenerFailed(listener=name, error=failure_of(error).summary))


def guarded(listeners: Sequence[Listener], *, tell: Listener) -> Sequence[Listener]:
    """The same listeners, of which none can harm who emits; ``tell`` hears once of each that raises."""
    return [_Guarded(listener, tell) for listener in listeners]

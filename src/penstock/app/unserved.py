"""Why a worker does not serve a queue: a service that the queue needs is away, or the queue was halted."""

import threading
from collections.abc import Mapping, Sequence

from penstock.events import Event, LedgerAway, LedgerBack, LineHalted, StoreAway, StoreBack

HEARD = frozenset({LedgerAway, LedgerBack, LineHalted, StoreAway, StoreBack})


class UnservedQueues:
    """Of the worker in this process. A listener: any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lacks: dict[str, dict[str, str]] = {}  # under the lock: by queue what it lacks, and the sentence

    def __call__(self, event: Event) -> None:
        match event:
            case LedgerAway():
                self._note(event.queues, "ledger", f"the ledger is away: {event.error}")
            case LedgerBack():
                self._note(event.queues, "ledger", None)
            case StoreAway():
                self._note(event.queues, event.store, f"the store {event.store} is away: {event.error}")
            case StoreBack():
                self._note(event.queues, event.store, None)
            case LineHalted():
                self._note((event.queue,), "handler", f"it is halted until a restart: {event.error}")
            case _:
                pass

    @property
    def sentences(self) -> Mapping[str, str]:
        """Why, by queue."""
        with self._lock:
            return {queue: "; ".join(lacks.values()) for queue, lacks in self._lacks.items() if lacks}

    def _note(self, queues: Sequence[str], what: str, sentence: str | None) -> None:
        with self._lock:
            for queue in queues:
                lacks = self._lacks.setdefault(queue, {})
                lacks.pop(what, None)
                if sentence is not None:
                    lacks[what] = sentence

"""Why a worker does not serve a queue: a service that the queue needs is away, or the queue was halted."""

import threading
from collections.abc import Mapping, Sequence

from penstock.events import Event, LedgerAway, LedgerBack, LineHalted, StoreAway, StoreBack

HEARD = frozenset({LedgerAway, LedgerBack, LineHalted, StoreAway, StoreBack})


class UnservedQueues:
    """The reasons for the worker of this process, collected from its events. A listener; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, dict[str, str]] = {}  # under the lock: by queue and cause, as sentences

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
        """The reasons, by queue; queues that are served are left out."""
        with self._lock:
            return {queue: "; ".join(reasons.values()) for queue, reasons in self._reasons.items() if reasons}

    def _note(self, queues: Sequence[str], cause: str, sentence: str | None) -> None:
        with self._lock:
            for queue in queues:
                reasons = self._reasons.setdefault(queue, {})
                reasons.pop(cause, None)
                if sentence is not None:
                    reasons[cause] = sentence

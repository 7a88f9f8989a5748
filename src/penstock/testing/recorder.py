"""An in-memory broker that records every sent message."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.app.app import App, apps_of_process, on_new_app
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import UsageError
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Attributes, Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A sent message, as the broker received it."""

    queue: str
    id: str
    outgoing: Outgoing

    @property
    def body(self) -> Any:
        """Return the JSON value of the body; its bytes if it is not JSON."""
        try:
            return json.loads(self.outgoing.body)
        except ValueError:
            return bytes(self.outgoing.body)

    @property
    def attributes(self) -> Attributes:
        """Return the message's attributes."""
        return self.outgoing.attributes

    @property
    def group(self) -> str | None:
        """Return the message's group, which names a tenant."""
        return self.outgoing.group

    @property
    def deduplication_id(self) -> str | None:
        """Return the id by which the broker drops a second send."""
        return self.outgoing.deduplication_id

    @property
    def delay_seconds(self) -> float:
        """Return how long the message stays invisible after the send."""
        return self.outgoing.delay_seconds


class Recorder(MemoryBroker):
    """A `MemoryBroker` that records sends. Any thread may send."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock or SystemClock())
        self.sent: list[Sent] = []  # append-only

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        ids = super().send(queue, messages)
        self.sent.extend(
            Sent(queue=queue, id=id, outgoing=outgoing) for id, outgoing in zip(ids, messages, strict=True)
        )
        return ids


@contextmanager
def recorded() -> Iterator[list[Sent]]:
    """Record the messages that any app of this process sends until the block ends.

    During the block no app reaches its broker or ledger, including apps created inside it. An app in a `TestWorker`
    also sends to the queues of that worker, as before.
    """
    sent: list[Sent] = []
    here = Recorder()
    with ExitStack() as stack:

        def stand_in_for(app: App) -> None:
            stack.callback(_restore, app, app.swap(broker=here, ledger=_NO_LEDGER))

        stack.callback(_collect, here, 0, sent)
        stack.enter_context(on_new_app(stand_in_for))
        for app in apps_of_process():
            worker = app.stand_in
            if isinstance(worker, Recorder):
                stack.callback(_collect, worker, len(worker.sent), sent)
            else:
                stand_in_for(app)
        yield sent


def _collect(recorder: Recorder, start: int, sent: list[Sent]) -> None:
    sent.extend(recorder.sent[start:])


def _restore(app: App, before: tuple[Any, Any]) -> None:
    app.swap(broker=before[0], ledger=before[1])


class _NoLedger:
    """The ledger of apps inside `recorded`: every use raises."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError("`perform` has no ledger; use a TestWorker for what needs one.")

    def close(self) -> None:
        """Do nothing: there is no connection."""


_NO_LEDGER = _NoLedger()

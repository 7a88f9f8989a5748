"""Run an app's outbox relays, in threads or once, and do the work of the commands for outbox and inbox."""

import functools
import operator
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.events import Listener, ThreadLeftBehind
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.threads import WorkThread

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.transactions.relay import Relay, RelayResult
    from penstock.transactions.store import TransactionStore, WaitingRow

CLOSE_SECONDS = 2.0  # part of a worker's stop timeout: for a relay's last send


@contextmanager
def relaying(
    app: "App", *, emit: Listener, clock: Clock, random: Random, close_seconds: float = CLOSE_SECONDS
) -> Iterator[None]:
    """Run every relay of the app in its own thread inside the block.

    A relay that does not end in time is reported as an event and left behind: its rows become free when their lease
    expires.
    """
    if not app.relays:
        yield
        return
    relays = _opened(app, emit=emit, clock=clock, random=random)
    threads = [WorkThread(relay.run, name="penstock-relay") for relay in relays]
    for thread in threads:
        thread.start()
    app.wake_by([relay.wake for relay in relays])
    try:
        yield
    finally:
        app.wake_by(())
        for relay in relays:
            relay.end()
        ends_at = clock.monotonic() + close_seconds
        for thread in threads:
            thread.join(max(ends_at - clock.monotonic(), 0.0))
            if thread.is_alive():
                emit(ThreadLeftBehind(thread=thread.name))


def relay_once(app: "App", *, emit: Listener) -> "RelayResult":
    """Send the current rows of the app's outboxes, including refused ones. Raises `PenstockError` on an outage."""
    stores(app)
    relays = _opened(app, emit=emit, clock=SystemClock(), random=random.random)
    return functools.reduce(operator.add, [relay.once() for relay in relays])


def counts(app: "App") -> tuple[int, int]:
    """Return the number of rows in the app's outboxes, and the number of those that the broker refused."""
    found = [store.counts() for store in stores(app)]
    return sum(rows for rows, _ in found), sum(refused for _, refused in found)


def waiting_rows(app: "App", *, limit: int) -> "Sequence[WaitingRow]":
    """Return the oldest rows of the app's outboxes."""
    rows = [row for store in stores(app) for row in store.waiting(limit=limit)]
    return sorted(rows, key=lambda row: row.created_at)[:limit]


def forget_inbox(app: "App", *, older_than_seconds: float) -> int:
    """Delete inbox records older than this from the app's databases; return their number."""
    from penstock.transactions.relay import forget

    return sum(forget(store, older_than_seconds) for store in stores(app))


def stores(app: "App") -> "Sequence[TransactionStore]":
    """Return the databases of the app's relays. Raises `UsageError` if there are none."""
    if not app.relays:
        raise UsageError("The app has no database with an outbox: declare one with app.relay(engine).")
    return [relay.store for relay in app.relays]


def _opened(app: "App", *, emit: Listener, clock: Clock, random: Random) -> "Sequence[Relay]":
    from penstock.transactions.relay import Relay

    return [
        Relay(
            declared.store, broker=lambda: app.broker, settings=declared.settings, clock=clock, random=random, emit=emit
        )
        for declared in app.relays
    ]

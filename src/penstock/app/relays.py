"""Relays at work, in threads or once; and what verbs ask of an outbox and an inbox."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.events import Listener, ThreadLeftBehind
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.transactions.relay import Relay, RelayResult
    from penstock.transactions.store import TransactionStore, WaitingRow

CLOSE_SECONDS = 2.0  # of a worker's stop timeout: for what a relay is sending at the end


@contextmanager
def relaying(
    app: "App", *, tell: Listener, clock: Clock, random: Random, close_seconds: float = CLOSE_SECONDS
) -> Iterator[None]:
    """Every relay of the app works in a thread of its own until the block ends. One that does not end in time is told
    and left: its rows are free when their lease ends."""
    if not app.relays:
        yield
        return
    relays = _opened(app, tell=tell, clock=clock, random=random)
    threads = [threading.Thread(target=relay.run, name="penstock-relay", daemon=True) for relay in relays]
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
                tell(ThreadLeftBehind(thread=thread.name))


def relay_once(app: "App", *, tell: Listener) -> "RelayResult":
    """Send what the outboxes of the app hold now, refused rows too. Raises `PenstockError` where something is away."""
    from penstock.transactions.relay import RelayResult

    stores(app)
    total = RelayResult()
    for relay in _opened(app, tell=tell, clock=SystemClock(), random=random.random):
        total += relay.once()
    return total


def counts(app: "App") -> tuple[int, int]:
    """Of all rows in the app's outboxes, and of those that the broker refused."""
    found = [store.counts() for store in stores(app)]
    return sum(rows for rows, _ in found), sum(refused for _, refused in found)


def waiting_rows(app: "App", *, limit: int) -> "Sequence[WaitingRow]":
    """The oldest rows of the app's outboxes."""
    rows = [row for store in stores(app) for row in store.waiting(limit=limit)]
    return sorted(rows, key=lambda row: row.created_at)[:limit]


def forget_inbox(app: "App", *, older_than_seconds: float) -> int:
    """Delete what the inboxes of the app's databases have held for longer; return the number of messages."""
    from penstock.transactions.relay import forget

    return sum(forget(store, older_than_seconds) for store in stores(app))


def stores(app: "App") -> "Sequence[TransactionStore]":
    """The databases of the app's relays. Raises `UsageError` where there are none."""
    if not app.relays:
        raise UsageError("The app names no database with an outbox: declare it with app.relay(engine).")
    return [relay.store for relay in app.relays]


def _opened(app: "App", *, tell: Listener, clock: Clock, random: Random) -> "Sequence[Relay]":
    from penstock.transactions.relay import Relay

    return [
        Relay(each.store, broker=lambda: app.broker, settings=each.settings, clock=clock, random=random, tell=tell)
        for each in app.relays
    ]

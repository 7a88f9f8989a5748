"""A ledger that takes no claims for a while: told once when it goes and once when it is back, however many wait for it.

Claims alone are watched. Whoever could not make one comes again, so the end of an outage is noticed soon.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import TemporaryError
from penstock.events import Bus, LedgerAway, LedgerBack
from penstock.messaging.clock import Clock
from penstock.messaging.waits import Random

PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 5.0  # so much later than the ledger the work goes on, at most


class Outage:
    """Of one worker's ledger. Any thread may call it."""

    def __init__(self, *, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None  # monotonic; None: it answers. Written under the lock

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a claim. A `TemporaryError` in the block says that the ledger is away; its end, that it answers."""
        try:
            yield
        except TemporaryError as error:
            self._away(str(error))
            raise
        self._answers()

    def pause_seconds(self, random: Random) -> float:
        """Until the next claim is tried: longer the longer the outage lasts, and not the same for everybody."""
        since = self._since
        away_seconds = 0.0 if since is None else self._clock.monotonic() - since
        ceiling = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, away_seconds))
        return ceiling * (1.0 + random()) / 2.0

    def _away(self, error: str) -> None:
        with self._lock:
            first = self._since is None
            if first:
                self._since = self._clock.monotonic()
        if first:
            self._bus.emit(LedgerAway(error=error))

    def _answers(self) -> None:
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._bus.emit(LedgerBack(away_seconds=self._clock.monotonic() - since))

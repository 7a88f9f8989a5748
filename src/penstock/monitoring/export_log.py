"""What OpenTelemetry's exporters log of a collector that is away: kept out of the process's log, and told now and then.

They log every try of every batch. Where the application set up OpenTelemetry itself, that is its own affair.
"""

import logging
from collections.abc import Callable

from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.errors.outlets import Throttle

QUIET_SECONDS = 600.0  # between two words on a place that stays away


class ExportLog(logging.Filter):
    """On the logger of one exporter: passes nothing on. Any thread may log there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._tell: Callable[[str], None] | None = None
        self._words = Throttle(QUIET_SECONDS, clock)  # two threads at once may tell it twice, which harms nobody

    def told_to(self, tell: Callable[[str], None]) -> None:
        """From now on ``tell`` hears the first word, and one every ten minutes while there are more."""
        self._tell = tell
        self._words.begin_anew()

    def filter(self, record: logging.LogRecord) -> bool:
        if self._tell is not None and self._words.is_due():
            self._tell(record.getMessage())
        return False


def quieten(name: str, *, clock: Clock | None = None) -> None:
    """Have nothing of that logger reach the process's log."""
    if found(name) is None:
        logging.getLogger(name).addFilter(ExportLog(SystemClock() if clock is None else clock))


def found(name: str) -> ExportLog | None:
    """Of a logger that was quietened."""
    return next((one for one in logging.getLogger(name).filters if isinstance(one, ExportLog)), None)

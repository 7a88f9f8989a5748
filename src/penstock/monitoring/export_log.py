"""Filter the log of OpenTelemetry's exporters while a collector is unreachable.

The exporters log every retry of every batch. The filter keeps these records out of the process's log and reports one of
them now and then. If the application set up OpenTelemetry itself, nothing is filtered.
"""

import logging
from collections.abc import Callable

from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.errors.outlets import Throttle

QUIET_SECONDS = 600.0  # between two reports on a collector that stays unreachable


class ExportLog(logging.Filter):
    """Filter on an exporter's logger that passes no record on. Any thread may log there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._emit: Callable[[str], None] | None = None
        self._reports = Throttle(QUIET_SECONDS, clock)  # unlocked: two threads may both report, which is harmless

    def on_failure(self, emit: Callable[[str], None]) -> None:
        """Pass the first message from now on to ``emit``, then one every ten minutes while there are more."""
        self._emit = emit
        self._reports.begin_anew()

    def filter(self, record: logging.LogRecord) -> bool:
        if self._emit is not None and self._reports.begin_if_due():
            self._emit(record.getMessage())
        return False


def quieten(name: str, *, clock: Clock | None = None) -> None:
    """Keep all records of a logger out of the process's log."""
    if found(name) is None:
        logging.getLogger(name).addFilter(ExportLog(SystemClock() if clock is None else clock))


def found(name: str) -> ExportLog | None:
    """Return the filter of a quietened logger; None if there is none."""
    return next((one for one in logging.getLogger(name).filters if isinstance(one, ExportLog)), None)

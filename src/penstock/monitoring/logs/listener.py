"""Log events as lines.

`LogListener` is on the bus. An event that is not logged costs one dictionary look-up; one that is logged is written in
the emitting thread. It never raises, whatever an event or the stream contains.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from penstock.events import Event, SelectiveListener
from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.logs.lines import LineLogger, LineWriter, console_logger, json_logger, moment, plain
from penstock.monitoring.logs.plans import LinePlan, LinePlanChoice, LogSettings, make_plans

TraceIds = Callable[[], tuple[str, str] | None]  # returns the ids of the calling thread's trace and span


class LogListener(SelectiveListener):
    """The bus listener that writes the log of one process. Thread-safe.

    ``is_for_people``: it writes readable lines, not JSON.
    """

    def __init__(
        self,
        *,
        plans: Mapping[type[Event], LinePlan | LinePlanChoice],
        logger: LineLogger,
        writer: LineWriter,
        clock: Clock,
        trace_ids: TraceIds | None,
        is_for_people: bool = False,
    ) -> None:
        self.is_for_people = is_for_people
        self._plans = plans
        self._logger = logger
        self._writer = writer
        self._clock = clock
        self._trace_ids = trace_ids

    def wants(self, kind: type[Event]) -> bool:
        return kind in self._plans

    def __call__(self, event: Event) -> None:
        plan = self._plans.get(type(event))
        if plan is None:
            return
        try:
            self._log(plan, event)
        except Exception:  # an unforeseen value; the worker must not be affected
            self._writer.drop()

    @property
    def dropped(self) -> int:
        """Return the number of lines lost so far."""
        return self._writer.dropped

    def _log(self, plan: LinePlan | LinePlanChoice | None, event: Event) -> None:
        while isinstance(plan, LinePlanChoice):
            plan = plan.plans.get(plan.by(event), plan.otherwise)
        if plan is None:
            return
        for line in plan.lines(event):
            line["ts"] = moment(self._clock.now())
            if self._trace_ids is not None and (ids := self._trace_ids()) is not None:
                line["trace_id"], line["span_id"] = ids
            self._logger.line(line)


def configure_logs(
    settings: LogSettings,
    stream: TextIO | None = None,
    *,
    clock: Clock | None = None,
    trace_ids: TraceIds | None = None,
) -> LogListener:
    """Return a listener that logs to the stream (default: stderr as it is now) according to the settings.

    Raises `ConfigurationError` for invalid settings.
    """
    plans = make_plans(settings)
    stream = sys.stderr if stream is None else stream
    writer = LineWriter(stream)
    terminal = _is_terminal(stream)
    is_for_people = settings.format == "console" or (settings.format == "auto" and terminal)
    if is_for_people:
        logger = console_logger(writer, _context(settings), colors=terminal)
    else:
        logger = json_logger(writer, _context(settings))
    return LogListener(
        plans=plans,
        logger=logger,
        writer=writer,
        clock=SystemClock() if clock is None else clock,
        trace_ids=trace_ids,
        is_for_people=is_for_people,
    )


def _context(settings: LogSettings) -> Mapping[str, object]:
    """Return the fields that every line has."""
    context = {
        "service": settings.service,
        "version": settings.version,
        "worker": settings.worker,
        "pid": os.getpid(),
        "environment": settings.environment,
    }
    return {name: plain(value) for name, value in context.items() if value is not None}


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except Exception:  # closed, or without isatty
        return False

"""Events become lines of the log.

`LogListener` sits on the bus: what is not wanted costs one look into a dictionary, what is wanted one line, written in
the emitting thread. Nothing that an event or the stream holds can make it raise.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from penstock.events import ChoosyListener, Event
from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.logs.lines import LineLogger, LineWriter, console_logger, json_logger, moment, plain
from penstock.monitoring.logs.plans import LinePlan, LinePlanChoice, LogSettings, make_plans

TraceIds = Callable[[], tuple[str, str] | None]  # the ids of trace and span that the calling thread is in


class LogListener(ChoosyListener):
    """A listener for the bus. Any thread may call it."""

    def __init__(
        self,
        *,
        plans: Mapping[type[Event], LinePlan | LinePlanChoice],
        logger: LineLogger,
        writer: LineWriter,
        clock: Clock,
        trace_ids: TraceIds | None,
    ) -> None:
        self._plans = plans
        self._logger = logger
        self._writer = writer
        self._clock = clock
        self._trace_ids = trace_ids

    def hears(self, kind: type[Event]) -> bool:
        return kind in self._plans

    def __call__(self, event: Event) -> None:
        plan = self._plans.get(type(event))
        if plan is None:
            return
        try:
            self._log(plan, event)
        except Exception:  # a value that nobody thought of; the worker must not suffer for it
            self._writer.drop()

    @property
    def dropped(self) -> int:
        """How many lines were lost because the stream did not take them."""
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
    """A listener that logs as the settings say, to the stream, or to stderr as it is now.

    Raises `ConfigurationError` for settings that make no sense.
    """
    plans = make_plans(settings)
    stream = sys.stderr if stream is None else stream
    writer = LineWriter(stream)
    terminal = _is_terminal(stream)
    if settings.format == "json" or (settings.format == "auto" and not terminal):
        logger = json_logger(writer, _context(settings))
    else:
        logger = console_logger(writer, _context(settings), colors=terminal)
    return LogListener(
        plans=plans, logger=logger, writer=writer, clock=SystemClock() if clock is None else clock, trace_ids=trace_ids
    )


def _context(settings: LogSettings) -> Mapping[str, object]:
    """What every line has."""
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
    except Exception:  # closed, or a stream that does not know
        return False

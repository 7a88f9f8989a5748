"""The whole log table, and the plans made from it and the settings: only events that are logged have a plan.

Event names and fields are an interface; `docs/fix/logs.md` lists them, and a test compares it with this table. An event
missing here is a defect, unless it is listed as not logged. Unknown names, levels and shares in the settings are
reported at start, in one sentence.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, get_args

from penstock import events
from penstock.errors import ConfigurationError
from penstock.events import Event
from penstock.monitoring.logs.lines import block, moment, plain
from penstock.monitoring.logs.message_rows import MESSAGE_ROWS, REPLAY_ROWS
from penstock.monitoring.logs.object_rows import BATCH_ROWS, OBJECT_ROWS, RECONCILE_ROWS
from penstock.monitoring.logs.rows import Level, LogRow, LogRowCases, Rows, Source, rows_of
from penstock.monitoring.logs.worker_rows import MONITOR_ROWS, WORKER_ROWS

ROWS: Rows = MappingProxyType(
    {**WORKER_ROWS, **MESSAGE_ROWS, **REPLAY_ROWS, **OBJECT_ROWS, **BATCH_ROWS, **RECONCILE_ROWS, **MONITOR_ROWS}
)

# For listeners that count; other events report each settlement and are logged.
COUNTED_ONLY: frozenset[type[events.Event]] = frozenset({events.SettlementsApplied})

# Base classes, which are never emitted.
NOT_LOGGED: frozenset[type[events.Event]] = frozenset({events.Event, events.MessageEvent, events.ObjectEvent})


LEVELS: tuple[Level, ...] = get_args(Level)
Format = Literal["auto", "json", "console"]

_KEYS = ("message_id", "object", "attempt_id")
_TIMES = ("enqueued_at", "scheduled_at", "as_of")
_BLOCKS = ("exception", "stacks")
_BUCKETS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log's content and format.

    ``level`` is the lowest level written. ``levels`` overrides the level of an event in `docs/fix/logs.md`, and
    ``sampling`` keeps a share of an event's lines (0.01: of one message in a hundred). Events that are warnings or
    errors in the table are never sampled.
    """

    format: Format = "auto"  # JSON, unless the stream is a terminal
    level: Level = "info"
    levels: Mapping[str, Level] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    service: str = "penstock"
    version: str | None = None  # of the service
    worker: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlan:
    """How to make the lines of an event."""

    line: Mapping[str, object]  # level, event, msg
    names: tuple[str, ...]
    values: Callable[[Any], Iterable[object]]  # in the order of names
    shapes: tuple[Callable[[Any], object], ...]
    each: Callable[[Any], Iterable[str]] | None
    key: Callable[[Any], str] | None  # returns the key for sampling
    keep_below: int | None  # hash limit for sampling; None: all lines are kept

    def lines(self, event: Event) -> Iterable[dict[str, object]]:
        """Return the lines, without the fields that every line has."""
        if self.each is not None:
            fields = self._fields(event)
            kept = [message_id for message_id in self.each(event) if self._keeps(message_id)]
            return [{**fields, "message_id": plain(message_id)} for message_id in kept]
        if self.key is not None and not self._keeps(self.key(event)):
            return ()
        return (self._fields(event),)

    def _fields(self, event: Event) -> dict[str, object]:
        fields: dict[str, object] = {**self.line}
        for name, shape, value in zip(self.names, self.shapes, self.values(event), strict=True):
            if value is not None and (shaped := shape(value)) is not None:
                fields[name] = shaped
        return fields

    def _keeps(self, key: str) -> bool:
        """Return True if lines with this key are kept; the same for one key in every process."""
        return self.keep_below is None or zlib.crc32(key.encode("utf-8", "backslashreplace")) < self.keep_below


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlanChoice:
    """The plans of a `LogRowCases`; None: that row is not logged."""

    by: Callable[[Any], object]
    plans: Mapping[object, "LinePlan | LinePlanChoice | None"]
    otherwise: "LinePlan | LinePlanChoice | None"


def make_plans(settings: LogSettings) -> Mapping[type[Event], LinePlan | LinePlanChoice]:
    """Return the plans of the events to log. Raises `ConfigurationError` for invalid settings."""
    _check(settings)
    planned = {event: _plan(entry, settings) for event, entry in ROWS.items()}
    return MappingProxyType({event: plan for event, plan in planned.items() if plan is not None})


def _plan(entry: LogRow | LogRowCases, settings: LogSettings) -> LinePlan | LinePlanChoice | None:
    if isinstance(entry, LogRow):
        return _plan_of_row(entry, settings)
    plans = {value: _plan(case, settings) for value, case in entry.rows.items()}
    otherwise = _plan(entry.otherwise, settings)
    if otherwise is None and not any(plans.values()):
        return None
    return LinePlanChoice(by=entry.by, plans=plans, otherwise=otherwise)


def _plan_of_row(row: LogRow, settings: LogSettings) -> LinePlan | None:
    level = settings.levels.get(row.name, row.level)
    if LEVELS.index(level) < LEVELS.index(settings.level):
        return None
    share = settings.sampling.get(row.name)
    key = None if share is None else _key(row)
    return LinePlan(
        line={"level": level, "event": row.name, "msg": row.msg},
        names=tuple(row.fields),
        values=_getter(tuple(row.fields.values())),
        shapes=tuple(_shape(name) for name in row.fields),
        each=None if row.each is None else attrgetter(row.each),
        key=None if key is None else attrgetter(key),
        keep_below=None if share is None else int(share * _BUCKETS),
    )


def _getter(sources: tuple[Source, ...]) -> Callable[[Any], Iterable[object]]:
    paths = [source for source in sources if isinstance(source, str)]
    if len(paths) == len(sources) > 1:
        together: Callable[[Any], Iterable[object]] = attrgetter(*paths)  # a single call in C for all of them
        return together
    getters = [attrgetter(source) if isinstance(source, str) else source for source in sources]
    return lambda event: [get(event) for get in getters]


def _shape(name: str) -> Callable[[Any], object]:
    if name in _TIMES:
        return moment
    return block if name in _BLOCKS else plain


def _key(row: LogRow) -> str | None:
    """Return the attribute with the line's subject: lines of one subject are kept or left out together."""
    if row.each is not None:
        return row.each
    sources = (row.fields.get(name) for name in _KEYS)
    return next((source for source in sources if isinstance(source, str)), None)


def _check(settings: LogSettings) -> None:
    known: dict[str, list[LogRow]] = {}
    for entry in ROWS.values():
        for row in rows_of(entry):
            known.setdefault(row.name, []).append(row)
    if settings.format not in get_args(Format):
        raise ConfigurationError(f"There is no log format {settings.format!r}; use one of {_listed(get_args(Format))}.")
    for level in (settings.level, *settings.levels.values()):
        if level not in LEVELS:
            raise ConfigurationError(f"There is no log level {level!r}; use one of {_listed(LEVELS)}.")
    for name in (*settings.levels, *settings.sampling):
        if name not in known:
            raise ConfigurationError(f"There is no log event {name!r}; docs/fix/logs.md lists all events.")
    for name, share in settings.sampling.items():
        _check_share(name, share, known[name])


def _check_share(name: str, share: float, rows: Iterable[LogRow]) -> None:
    if not 0 <= share <= 1:
        raise ConfigurationError(f"The sampling of {name} is a share from 0 to 1, not {share!r}.")
    if any(row.level in ("warning", "error") for row in rows):
        raise ConfigurationError(f"{name} is a warning or a failure and is never sampled; take it out of the sampling.")
    if any(_key(row) is None for row in rows):
        raise ConfigurationError(f"{name} is about no single message or object; set its level instead of sampling it.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)

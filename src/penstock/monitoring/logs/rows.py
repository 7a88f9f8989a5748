"""The row type of the log table: name, level, sentence and fields of one kind of line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from penstock import events

Level = Literal["debug", "info", "warning", "error"]
# an attribute of the event, with dots for a nested one, or a function that computes the value
Source = str | Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One kind of log line. If ``each`` names an attribute with message ids, each of them gets a line."""

    name: str
    level: Level
    msg: str
    fields: Mapping[str, Source]
    each: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRowCases:
    """The rows of an event with several names or levels; ``by`` selects one of ``rows``, else ``otherwise``."""

    by: Callable[[Any], object]
    rows: Mapping[object, "LogRow | LogRowCases"]
    otherwise: "LogRow | LogRowCases"


Rows = Mapping[type[events.Event], LogRow | LogRowCases]


def rows_of(entry: LogRow | LogRowCases) -> tuple[LogRow, ...]:
    """Return all rows that an event may use."""
    if isinstance(entry, LogRow):
        return (entry,)
    inner = [row for case in entry.rows.values() for row in rows_of(case)]
    return (*inner, *rows_of(entry.otherwise))


def same(*names: str) -> Mapping[str, Source]:
    """Return fields named like the event's attributes."""
    return MappingProxyType({name: name for name in names})


def with_error(*names: str) -> Mapping[str, Source]:
    """Return the fields of `same`, plus the error message."""
    return MappingProxyType({**same(*names), "error.message": "error"})


IDS: Mapping[str, Source] = {"count": lambda event: len(event.message_ids), "ids": "message_ids"}
ERROR: Mapping[str, Source] = {"error.type": "error_type", **with_error()}
HANDLER_ERROR = with_error("handler")

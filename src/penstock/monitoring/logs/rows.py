"""What a row of the log's table is: the name, level, sentence and fields of one kind of line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from penstock import events

Level = Literal["debug", "info", "warning", "error"]
Source = str | Callable[[Any], object]  # an attribute of the event, with dots for one of its own, or what computes it


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One line of the log. ``each`` names an attribute that holds message ids: then each of them gets a line."""

    name: str
    level: Level
    msg: str
    fields: Mapping[str, Source]
    each: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRowCases:
    """An event that has several names or levels: ``by`` chooses one of the rows, or else the last."""

    by: Callable[[Any], object]
    rows: Mapping[object, "LogRow | LogRowCases"]
    otherwise: "LogRow | LogRowCases"


Rows = Mapping[type[events.Event], LogRow | LogRowCases]


def rows_of(entry: LogRow | LogRowCases) -> tuple[LogRow, ...]:
    """Every row that an event may get."""
    if isinstance(entry, LogRow):
        return (entry,)
    inner = [row for case in entry.rows.values() for row in rows_of(case)]
    return (*inner, *rows_of(entry.otherwise))


def same(*names: str) -> Mapping[str, Source]:
    """Fields that are called what the event calls them."""
    return MappingProxyType({name: name for name in names})


def with_error(*names: str) -> Mapping[str, Source]:
    """As `same`, and what went wrong, in words."""
    return MappingProxyType({**same(*names), "error.message": "error"})


IDS: Mapping[str, Source] = {"count": lambda event: len(event.message_ids), "ids": "message_ids"}
ERROR: Mapping[str, Source] = {"error.type": "error_type", **with_error()}
HANDLER_ERROR = with_error("handler")

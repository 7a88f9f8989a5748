"""Find the periods in which workers could not use a service: an open breaker, an unreachable ledger or store.

Several workers notice one outage; periods that overlap are merged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.monitoring.diagnoses.findings import OutageFinding
from penstock.monitoring.diagnoses.lines import LogLine

# The event that begins an outage -> its kind, and the field with its name. The ending event has the same field.
_BEGINS: Mapping[str, tuple[str, str]] = {
    "breaker.opened": ("breaker", "queue"),
    "ledger.unavailable": ("ledger", ""),
    "store.unavailable": ("store", "store"),
    "monitor_poll.failed": ("monitor_poll", "source"),
}
_ENDS: Mapping[str, tuple[str, str]] = {
    "breaker.closed": ("breaker", "queue"),
    "ledger.available": ("ledger", ""),
    "store.available": ("store", "store"),
    "monitor_poll.recovered": ("monitor_poll", "source"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    ts: str
    begins: bool
    seconds: float | None  # only for an end: how long the outage lasted
    error: str | None


class Outages:
    """The outages in a set of logs: takes lines in any order, then returns the outages once.

    Memory grows with the outages that each worker noticed.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str, str], list[_Mark]] = {}  # by kind, name and worker

    def take(self, line: LogLine) -> None:
        """Note a line that begins or ends an outage."""
        begins = line.event in _BEGINS
        found = _BEGINS.get(line.event) or _ENDS.get(line.event)
        if found is None:
            return
        what, field = found
        name, error, seconds = line.fields.get(field), line.fields.get("error.message"), line.fields.get("duration_s")
        mark = _Mark(
            ts=line.ts,
            begins=begins,
            seconds=float(seconds) if isinstance(seconds, int | float) and not begins else None,
            error=error if isinstance(error, str) else None,
        )
        key = (what, name if isinstance(name, str) else "", line.name("worker") or "")
        self._marks.setdefault(key, []).append(mark)

    def found(self) -> Sequence[OutageFinding]:
        """Return all outages, ordered by their beginnings."""
        noticed: dict[tuple[str, str], list[OutageFinding]] = {}
        for (what, name, _), marks in self._marks.items():
            noticed.setdefault((what, name), []).extend(_worker_outages(what, name, marks))
        merged = [outage for noticed_outages in noticed.values() for outage in _merged(noticed_outages)]
        return sorted(merged, key=lambda one: (one.began_ts, one.what, one.name))


def _worker_outages(what: str, name: str, marks: Sequence[_Mark]) -> Iterator[OutageFinding]:
    """Yield the outages of one service that one worker noticed."""
    open_: _Mark | None = None
    for mark in sorted(marks, key=lambda one: one.ts):
        if mark.begins:
            open_ = open_ or mark
            continue
        began_ts = _earlier(mark.ts, mark.seconds) if open_ is None else open_.ts
        yield OutageFinding(
            what=what,
            name=name,
            began_ts=began_ts,
            ended_ts=mark.ts,
            workers=1,
            error=None if open_ is None else open_.error,
        )
        open_ = None
    if open_ is not None:
        yield OutageFinding(what=what, name=name, began_ts=open_.ts, ended_ts=None, workers=1, error=open_.error)


def _merged(noticed: Sequence[OutageFinding]) -> Sequence[OutageFinding]:
    """Merge the overlapping outages of one service; one without an end lasts until the next begins."""
    merged: list[OutageFinding] = []
    for one in sorted(noticed, key=lambda each: each.began_ts):
        last = merged[-1] if merged else None
        if last is not None and last.ended_ts is not None and one.began_ts <= last.ended_ts:
            ended = None if one.ended_ts is None else max(last.ended_ts, one.ended_ts)
            error = last.error or one.error
            merged[-1] = replace(last, ended_ts=ended, workers=last.workers + one.workers, error=error)
        else:
            merged.append(one)
    return merged


def _earlier(ts: str, seconds: float | None) -> str:
    """Return the time ``seconds`` earlier, in the log's format."""
    try:
        at = datetime.fromisoformat(ts) - timedelta(seconds=seconds or 0.0)
    except (ValueError, OverflowError):  # digits that are not a valid time
        return ts
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

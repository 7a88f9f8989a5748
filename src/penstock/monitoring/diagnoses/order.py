"""From lines to findings, and which of two came first."""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.monitoring.diagnoses.findings import Found, Later
from penstock.monitoring.diagnoses.lines import Line

SKEW = timedelta(seconds=5)  # between the clocks of two hosts; and a finish is told a moment after it is on record


def found_in(kind: str, name: str, place: str | None, line: Line) -> Found:
    """The line as a finding."""
    attempt, reason = line.fields.get("attempt"), line.fields.get("reason")
    attempt_id, worker = line.name("attempt_id"), line.name("worker")
    return Found(
        kind=kind,
        name=name,
        place=None if place is None else sys.intern(place),
        ts=line.ts,
        worker=None if worker is None else sys.intern(worker),
        attempt_id=None if attempt_id is None else sys.intern(attempt_id),
        attempt=attempt if isinstance(attempt, int) else None,
        reason=reason if isinstance(reason, str) else None,
        from_worker=_text(line.fields.get("from_worker")),
        from_attempt=_text(line.fields.get("from_attempt_id")) or _number(line.fields.get("from_attempt")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def before(ts: str, other: str) -> bool:
    """Whether it may have been earlier, by the clocks of two hosts."""
    try:
        return ts < other or datetime.fromisoformat(ts) < datetime.fromisoformat(other) + SKEW
    except (ValueError, OverflowError):  # digits that are no time
        return False


def after(one: Found, finished: Sequence[Found]) -> Later | None:
    """The first finish after that."""
    first = min((each for each in finished if each.ts > one.ts), key=lambda each: each.ts, default=None)
    if first is None:
        return None
    return Later(ts=first.ts, worker=first.worker, attempt_id=first.attempt_id, attempt=first.attempt)


def in_time(found: tuple[Found, ...]) -> tuple[Found, ...]:
    """In the order of time."""
    return found if len(found) < 2 else tuple(sorted(found, key=lambda each: each.ts))

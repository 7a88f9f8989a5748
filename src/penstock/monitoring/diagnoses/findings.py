"""The findings of a diagnosis, and their order in time.

`Story` collects every line about one object, over attempts and workers.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.monitoring.diagnoses.lines import LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterAttempt:
    """The later attempt that finished the object or message after all."""

    ts: str
    worker: str | None
    attempt_id: str | None
    attempt: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One object or message with one event in its history."""

    kind: str  # "object" or "message"
    name: str  # the object's address or the message's id
    place: str | None  # its pipeline or its queue
    ts: str
    worker: str | None
    attempt_id: str | None = None
    attempt: int | None = None
    reason: str | None = None
    times: int = 1
    later: LaterAttempt | None = None
    worker_last_ts: str | None = None  # time of the last line that the worker wrote
    from_worker: str | None = None  # the worker that the work was taken over from
    from_attempt: str | int | None = None  # the number of that worker's attempt; for an object the attempt's id


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageFinding:
    """A period in which workers could not use a service that they need."""

    what: str  # breaker, ledger, store or monitor_poll (the family of the events)
    name: str  # of the queue, store or source; empty for the ledger
    began_ts: str
    ended_ts: str | None  # None: these logs do not show an end
    workers: int  # number of workers that noticed
    error: str | None  # the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnoses:
    """All diagnoses, each in order of time."""

    wrongly_processed: Sequence[Found]  # skipped as already processed, but never finished before
    failed: Sequence[Found]  # given up on; ``later``: finished nevertheless
    # the first finish and its worker, to trace errors in the table; ``times``: number of finishes
    finished: Sequence[Found]
    died: Sequence[Found]  # attempts without an end, with no attempt after them
    # work of a worker that died or hung, with the worker that took over; ``later``: the finish
    taken_over: Sequence[Found]
    outages: Sequence[OutageFinding]
    interrupted: Sequence[Found]  # by a stop; ``later``: the attempt that finished it
    remarks: Sequence[str]  # limits of these logs

    @property
    def is_wrong(self) -> bool:
        """Return True if a person should investigate."""
        return bool(self.wrongly_processed or self.died)


_OF_ATTEMPTS = frozenset(
    {"batch.claimed", "batch.written", "batch.committed", "run.failed", "attempt.abandoned"}
)  # an event of an attempt concerns all its objects


class Story:
    """The history of one object in a set of logs, from lines in any order.

    Memory grows with the object's lines and with the attempts of all objects.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._own: list[LogLine] = []
        self._lines_by_attempt: dict[str, list[LogLine]] = {}

    def take(self, line: LogLine) -> bool:
        """Take a line. Return True if it names the object."""
        objects = line.fields.get("objects")
        if line.name("object") == self._uri or (isinstance(objects, list) and self._uri in objects):
            self._own.append(line)
            return True
        attempt_id = line.name("attempt_id")
        if line.event in _OF_ATTEMPTS and attempt_id is not None:
            self._lines_by_attempt.setdefault(attempt_id, []).append(line)
        return False

    def lines(self) -> Sequence[LogLine]:
        """Return the lines about the object and its attempts, in order of time."""
        attempts = {line.name("attempt_id") for line in self._own} - {None}
        others = [line for attempt in attempts for line in self._lines_by_attempt.get(attempt or "", ())]
        return sorted([*self._own, *others], key=lambda line: line.ts)


SKEW = timedelta(seconds=5)  # between the clocks of two hosts; also, a finish is logged a moment after it is recorded


def found_in(kind: str, name: str, place: str | None, line: LogLine) -> Found:
    """Return the line as a finding."""
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
    """Return True if ``ts`` may be earlier than ``other``, given the clock skew between two hosts."""
    try:
        return ts < other or datetime.fromisoformat(ts) < datetime.fromisoformat(other) + SKEW
    except (ValueError, OverflowError):  # digits that are not a valid time
        return False


def after(one: Found, finished: Sequence[Found]) -> LaterAttempt | None:
    """Return the first finish after ``one``; None if there is none."""
    first = min((each for each in finished if each.ts > one.ts), key=lambda each: each.ts, default=None)
    if first is None:
        return None
    return LaterAttempt(ts=first.ts, worker=first.worker, attempt_id=first.attempt_id, attempt=first.attempt)


def in_time(found: tuple[Found, ...]) -> tuple[Found, ...]:
    """Sort by time."""
    return found if len(found) < 2 else tuple(sorted(found, key=lambda each: each.ts))

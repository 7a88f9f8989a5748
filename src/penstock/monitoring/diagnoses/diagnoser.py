"""Collect log lines in any order and diagnose from them.

Memory grows with the objects, their attempts and the messages that had a problem; not with the number of lines.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TextIO

from penstock.monitoring.diagnoses.findings import Diagnoses, Found, after, before, found_in, in_time
from penstock.monitoring.diagnoses.lines import LogLine
from penstock.monitoring.diagnoses.messages import Messages
from penstock.monitoring.diagnoses.outages import Outages

Key = tuple[str | None, str]  # pipeline and object

_ENDS = frozenset(f"object.{end}" for end in ("finished", "failed", "retrying", "interrupted", "deleted", "superseded"))


class _ObjectHistory:
    """The history of one object in one pipeline."""

    __slots__ = ("ended", "failed", "finished", "interrupted", "open", "skipped", "started_last", "taken_over")

    def __init__(self) -> None:
        self.open: dict[str, Found] = {}  # started attempts without a known end
        self.ended: tuple[str, ...] = ()  # ids of attempts; an end may be read before its start, from another file
        self.started_last = ""
        self.skipped: Found | None = None  # the first skip as already processed
        self.finished: tuple[Found, ...] = ()
        self.failed: tuple[Found, ...] = ()
        self.interrupted: tuple[Found, ...] = ()
        self.taken_over: tuple[Found, ...] = ()


class Diagnoser:
    """The diagnosis of a set of logs: takes all lines, then returns the diagnoses once. Used by one thread."""

    def __init__(self, spool: TextIO) -> None:
        """``spool`` is an empty file that can be written and read again."""
        self._objects: dict[Key, _ObjectHistory] = {}
        self._messages = Messages(spool)
        self._outages = Outages()
        self._last_of: dict[str, str] = {}  # by worker: time of its last line
        self._seen: set[str] = set()  # event names
        self.first_ts: str | None = None
        self.last_ts: str | None = None
        self._takes: Mapping[str, Callable[[_ObjectHistory, Found], None]] = {
            "object.started": _started,
            "object.finished": _finished,
            "object.failed": _failed,
            "object.interrupted": _interrupted,
            "object.skipped": _skipped,
            "object.taken_over": _taken_over,
        }

    def take(self, line: LogLine) -> None:
        """Take one line of Penstock's log."""
        ts = line.ts
        self.first_ts = ts if self.first_ts is None or ts < self.first_ts else self.first_ts
        self.last_ts = ts if self.last_ts is None or ts > self.last_ts else self.last_ts
        worker = line.name("worker")
        if worker is not None and ts > self._last_of.get(worker, ""):
            self._last_of[sys.intern(worker)] = ts
        if line.event.startswith("object."):
            self._seen.add(line.event)
            self._take_object(line)
        else:
            self._messages.take(line)
            self._outages.take(line)

    def diagnoses(self) -> Diagnoses:
        """Return the diagnoses from all the lines."""
        found: dict[str, list[Found]] = {name: [] for name in ("wrong", "failed", "finished", "died", "back", "over")}
        for history in self._objects.values():
            found["wrong"] += _wrong(history)
            found["failed"] += (replace(failure, later=after(failure, history.finished)) for failure in history.failed)
            found["finished"] += (
                (replace(history.finished[0], times=len(history.finished)),) if history.finished else ()
            )
            found["died"] += self._died(history)
            found["back"] += (replace(each, later=after(each, history.finished)) for each in history.interrupted)
            found["over"] += (replace(each, later=after(each, history.finished)) for each in history.taken_over)
        for name, messages in self._messages.diagnoses(self._last_of).items():
            found[name] += messages
        for each in found.values():
            each.sort(key=lambda one: (one.ts, one.name))
        return Diagnoses(
            wrongly_processed=found["wrong"],
            failed=found["failed"],
            finished=found["finished"],
            died=found["died"],
            interrupted=found["back"],
            taken_over=found["over"],
            outages=self._outages.found(),
            remarks=tuple(self._remarks()),
        )

    def _take_object(self, line: LogLine) -> None:
        uri, attempt_id = line.name("object"), line.name("attempt_id")
        if uri is None:
            return
        key = (line.name("pipeline"), uri)
        history = self._objects.get(key)
        if history is None:
            history = self._objects[key] = _ObjectHistory()
        take = self._takes.get(line.event)
        if take is not None:
            take(history, found_in("object", uri, line.name("pipeline"), line))
        if line.event in _ENDS and attempt_id is not None and attempt_id not in history.ended:
            history.ended += (sys.intern(attempt_id),)
            history.open.pop(attempt_id, None)

    def _died(self, history: _ObjectHistory) -> Iterator[Found]:
        for attempt in history.open.values():
            if attempt.ts >= history.started_last:
                yield replace(attempt, worker_last_ts=self._last_of.get(attempt.worker or ""))

    def _remarks(self) -> Iterator[str]:
        yield from self._messages.remarks()
        if "object.started" in self._seen and not self._seen & _ENDS:
            yield (
                "These logs have starts of attempts but no end. If the settings log_level, log_levels or log_sampling "
                "exclude object.finished, objects that died with their worker cannot be found."
            )
        if "object.finished" in self._seen and "object.started" not in self._seen:
            yield (
                "These logs have ends of attempts but no start. If the settings log_level, log_levels or log_sampling "
                "exclude object.started, objects that died with their worker cannot be found."
            )


def _started(history: _ObjectHistory, found: Found) -> None:
    history.started_last = max(history.started_last, found.ts)
    if found.attempt_id is not None and found.attempt_id not in history.ended:
        history.open[found.attempt_id] = found


def _finished(history: _ObjectHistory, found: Found) -> None:
    history.finished = in_time((*history.finished, found))


def _failed(history: _ObjectHistory, found: Found) -> None:
    history.failed = in_time((*history.failed, found))


def _interrupted(history: _ObjectHistory, found: Found) -> None:
    history.interrupted = in_time((*history.interrupted, found))


def _taken_over(history: _ObjectHistory, found: Found) -> None:
    history.taken_over = in_time((*history.taken_over, found))


def _skipped(history: _ObjectHistory, found: Found) -> None:
    if found.reason == "already_processed" and (history.skipped is None or found.ts < history.skipped.ts):
        history.skipped = found


def _wrong(history: _ObjectHistory) -> Iterator[Found]:
    if history.skipped is not None and not (history.finished and before(history.finished[0].ts, history.skipped.ts)):
        yield history.skipped

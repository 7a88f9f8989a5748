"""Diagnose plain messages from lines in any order: interrupted by a stop, failed for good, or lost with their worker.

Memory grows with the problems and with the messages in flight at the same time. The starts and ends of all messages are
written to a spool, since most are never needed: messages still open at the end are looked up there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TextIO

from penstock.monitoring.diagnoses.findings import Found, after, found_in
from penstock.monitoring.diagnoses.lines import LogLine

MessageKey = tuple[str | None, str]  # queue and message

START = "message.started"
TAKEN_OVER = "message.taken_over"
ENDS = frozenset(
    f"message.{end}" for end in ("finished", "failed", "interrupted", "released", "acked", "dead_lettered", "invalid")
)
_LEAVES = frozenset({"message.acked", "message.dead_lettered"})  # the queue, whichever worker logged it
_FEW = 20  # starts without an end that are normal: messages in flight


class Messages:
    """The diagnosis of messages: takes all lines, then returns the diagnoses once. Used by one thread."""

    def __init__(self, spool: TextIO) -> None:
        """``spool`` is an empty file that can be written and read again."""
        self._spool = spool
        # by message, worker and attempt: the last start
        self._open: dict[tuple[MessageKey, str | None, int | None], Found] = {}
        self._dead: dict[tuple[MessageKey, int | None], Found] = {}
        self._backs: dict[MessageKey, list[Found]] = {}
        self._overs: dict[MessageKey, list[Found]] = {}  # taken over from another worker
        self._starts = 0
        self._ends = 0

    def take(self, line: LogLine) -> None:
        """Take one line of Penstock's log; most are not about a message."""
        message_id = line.name("message_id")
        if message_id is None or (line.event not in (START, TAKEN_OVER) and line.event not in ENDS):
            return
        message = (line.name("queue"), message_id)
        found = found_in("message", message_id, message[0], line)
        if line.event == TAKEN_OVER:
            self._overs.setdefault(message, []).append(found)
            return
        self._spool.write(json.dumps([*message, line.event, found.ts, found.worker, found.attempt]) + "\n")
        self._take_course(message, found, line.event)
        if line.event == "message.interrupted":
            self._backs.setdefault(message, []).append(found)
        elif line.event in ("message.invalid", "message.dead_lettered") or line.fields.get("final") is True:
            self._take_death(message, found, line)

    def diagnoses(self, last_of: Mapping[str, str]) -> Mapping[str, list[Found]]:
        """Return the messages that failed, died, were interrupted or taken over.

        ``last_of``: the time of each worker's last line.
        """
        by_message: dict[MessageKey, list[Found]] = {}
        for (message, _, _), found in self._open.items():
            by_message.setdefault(message, []).append(found)
        finished: dict[MessageKey, list[Found]] = {}
        wanted = {*self._backs, *self._overs, *(message for message, _ in self._dead)}
        for message, event, finish in self._spooled() if by_message or wanted else ():
            if message in by_message:
                by_message[message] = [one for one in by_message[message] if not _ended(one, event, finish)]
            if event == "message.finished" and message in wanted:
                finished.setdefault(message, []).append(finish)
        died = [one for left in by_message.values() for one in left]
        dead = [replace(one, later=after(one, finished.get(message, ()))) for (message, _), one in self._dead.items()]
        return {
            "failed": dead,
            "died": [replace(finding, worker_last_ts=last_of.get(finding.worker or "")) for finding in died],
            "back": _with_finishes(self._backs, finished),
            "over": _with_finishes(self._overs, finished),
        }

    def remarks(self) -> Iterator[str]:
        """Yield the limits of these logs."""
        if self._starts > _FEW + 2 * self._ends:
            yield (
                "These logs have far more starts of messages than ends. If the settings log_level, log_levels or "
                "log_sampling exclude message.finished and message.released but not message.started, messages that "
                "seem to have died with their worker did not."
            )
        if self._ends and not self._starts:
            yield (
                "These logs have ends of messages but no message.started, which is written at level debug. Messages "
                "that died with their worker are found only if another worker took them over. To find all, set "
                "log_level to debug, or the levels of message.started and message.released to info in log_levels."
            )

    def _take_course(self, message: MessageKey, found: Found, event: str) -> None:
        key = (message, found.worker, found.attempt)
        known = self._open.get(key)
        if event == START:
            self._starts += 1
            if known is None or known.ts < found.ts:
                self._open[key] = found
            return
        self._ends += event != "message.acked"
        if known is not None and known.ts <= found.ts:
            del self._open[key]

    def _take_death(self, message: MessageKey, found: Found, line: LogLine) -> None:
        """Keep one death per attempt. Handler and settlement both log it; the handler's line has more detail."""
        key, known = (message, found.attempt), self._dead.get((message, found.attempt))
        error = ": ".join(str(line.fields[name]) for name in ("error.type", "error.message") if name in line.fields)
        death = replace(
            found, reason=error if line.event == "message.failed" and error else found.reason or error or None
        )
        if known is None or line.event != "message.dead_lettered":
            self._dead[key] = death

    def _spooled(self) -> Iterator[tuple[MessageKey, str, Found]]:
        self._spool.seek(0)
        for text in self._spool:
            queue, message_id, event, ts, worker, attempt = json.loads(text)
            found = Found(kind="message", name=message_id, place=queue, ts=ts, worker=worker, attempt=attempt)
            yield (queue, message_id), event, found


def _with_finishes(found: Mapping[MessageKey, list[Found]], finished: Mapping[MessageKey, list[Found]]) -> list[Found]:
    return [
        replace(finding, later=after(finding, finished.get(message, ())))
        for message, findings in found.items()
        for finding in findings
    ]


def _ended(finding: Found, event: str, finish: Found) -> bool:
    """Return True if this event ends the attempt, or starts another attempt after it."""
    if event == START or event in _LEAVES:
        return finish.ts > finding.ts
    return (finish.worker, finish.attempt) == (finding.worker, finding.attempt) and finish.ts >= finding.ts

"""Extract Penstock's log lines from files as found on hosts and in archives.

A Penstock line is a JSON object with a time, an event of the table and the fields of that event. It may follow a prefix
(CloudWatch's export, `aws logs tail`, `kubectl logs --prefix`, `docker compose logs`, a container runtime's own files)
or be text inside another JSON object (Docker's json-file, `journalctl -o json`, `logcli -o jsonl`). Container runtimes
split long lines; the parts are joined again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.monitoring.logs.plans import ROWS
from penstock.monitoring.logs.rows import rows_of

EVENTS = frozenset(row.name for entry in ROWS.values() for row in rows_of(entry))
FORMER_EVENTS: Mapping[str, str] = {  # names in the logs of earlier versions -> names of today
    "message.given_back": "message.interrupted",
    "message.vanished": "message.deleted",
    "object.given_back": "object.interrupted",
    "object.gone": "object.deleted",
    "worker.given_back": "worker.interrupted",
    "queue.halted": "consumer.halted",
    "queue.seen_empty": "receive.empty",
    "look.failed": "monitor_poll.failed",
    "look.recovered": "monitor_poll.recovered",
    "upkeep.failed": "job.failed",
    "give_back.failed": "release.failed",
    "ledger.away": "ledger.unavailable",
    "ledger.back": "ledger.available",
    "ledger.repair_began": "ledger.repair_started",
    "ledger.repaired": "ledger.repair_finished",
    "store.away": "store.unavailable",
    "store.back": "store.available",
    "settle.failed": "settlement.failed",
    "lease.endangered": "lease.expiring",
    "dead.replayed": "dead_letter.replayed",
    "dead.held": "dead_letter.waiting",
    "dead.put_back": "dead_letter.released",
    "dead.set_aside": "dead_letter.set_aside",
    "dead.ageing": "dead_letter.expiring",
    "dead.archived": "dead_letter.archived",
    "replay.unmarked": "replay.unrecorded",
    "tick.sent": "scheduled_message.sent",
    "tick.failed": "scheduled_message.failed",
    "outbox.refused": "outbox.rejected",
    "inbox.forgotten": "inbox.cleaned",
    "watch.began": "watch.started",
    "watch.disturbed": "watch.degraded",
    "reconcile.missing": "objects.missing",
    "process.ended": "process.exited",
}
LINE_BYTES_MAX = 4 * 1024 * 1024  # far beyond the longest line that the log writes
DEPTH_MAX = 3  # of nested wrappings

_TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_RUNTIME = re.compile(rb"\S+ (?:stdout|stderr) ([FP])(?:\S*) (.*)", re.DOTALL)
_TEXTS = ("log", "MESSAGE", "message", "line", "@message")  # fields in which other programs wrap the text of a line
_NAMES = ("object", "attempt_id", "message_id", "pipeline", "queue", "worker", "handler")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of Penstock's log. Its field values are untrusted input: escape them before showing them."""

    ts: str  # in UTC to the microsecond, so that texts sort like times
    event: str
    fields: Mapping[str, Any]

    def name(self, field: str) -> str | None:
        """Return a field that holds a name; None if the line lacks it."""
        value: str | None = self.fields.get(field)
        return value


class Unwrapping:
    """Unwrap the lines of one file. The beginning of a split line is kept until its end arrives."""

    def __init__(self) -> None:
        self.metrics = 0  # number of Penstock's metrics so far, in CloudWatch's embedded format
        self._cut = b""

    def lines(self, raw: bytes) -> Iterator[LogLine | None]:
        """Yield the Penstock lines in a line of the file, and None for each line of other programs.

        Yields nothing for a line that continues on the next one, and for Penstock's metrics, which are counted.
        """
        runtime = _RUNTIME.fullmatch(raw.rstrip(b"\r\n"))
        if runtime is not None:
            whole = self._whole(runtime[2], ends=runtime[1] == b"F")
            if whole is not None:
                yield from self._line_of(_document(whole))
            return
        document = _document(raw)
        text = _text(document)
        if document is not None and isinstance(document.get("log"), str) and "stream" in document:  # Docker's json-file
            whole = self._whole(document["log"].encode("utf-8", "replace"), ends=document["log"].endswith("\n"))
            if whole is not None:
                yield from self._line_of(_document(whole))
        elif document is not None and isinstance(document.get("logEvents"), list):  # a CloudWatch Logs subscription
            for event in document["logEvents"]:
                yield from self._line_of(
                    _document(str(event.get("message")).encode()) if isinstance(event, dict) else None
                )
        else:
            yield from self._line_of(document if text is None else _unwrapped(document))

    def _line_of(self, document: Mapping[str, Any] | None) -> Iterator[LogLine | None]:
        if _is_metrics(document):
            self.metrics += 1
        else:
            yield _ours(document)

    def _whole(self, part: bytes, *, ends: bool) -> bytes | None:
        self._cut += part
        if not ends and len(self._cut) <= LINE_BYTES_MAX:
            return None
        whole, self._cut = self._cut, b""
        return whole


def _document(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, after any prefix; None if there is none."""
    begin = raw.find(b"{")
    if begin < 0:
        return None
    try:
        document = json.loads(raw[begin:])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _text(document: Mapping[str, Any] | None) -> str | None:
    """Return the text that the document wraps; None if it wraps none."""
    if document is None or "ts" in document:
        return None
    for name in _TEXTS:
        value = document.get(name)
        if isinstance(value, str):
            return value
        if name == "MESSAGE" and isinstance(value, list):  # the journal's encoding of text that is not plain
            return bytes(one for one in value if isinstance(one, int) and 0 <= one < 256).decode("utf-8", "replace")
    return None


def _unwrapped(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    inner: dict[str, Any] | None = None
    for _ in range(DEPTH_MAX):
        text = _text(document)
        if text is None:
            return inner
        document = inner = _document(text.encode("utf-8", "replace"))
    return inner


def _is_metrics(document: Mapping[str, Any] | None) -> bool:
    return document is not None and "_aws" in document and any(name.startswith("penstock_") for name in document)


def _ours(document: Mapping[str, Any] | None) -> LogLine | None:
    if document is None:
        return None
    ts, event = document.get("ts"), document.get("event")
    if not isinstance(ts, str) or not isinstance(event, str):
        return None
    event = FORMER_EVENTS.get(event, event)
    if event not in EVENTS or not _TS.fullmatch(ts):
        return None
    if any(not isinstance(document[name], str) for name in _NAMES if name in document):
        return None
    return LogLine(ts=ts, event=event, fields=document)

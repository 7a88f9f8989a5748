"""Write log lines to a stream with structlog.

The logger is private: the application's settings of structlog and `logging` are neither used nor changed. JSON is
always one line. On a UTF-8 stream text is written as it is; only control characters, line separators and marks that
change the direction of text are escaped. The console format is for people: times have milliseconds, the worker's id is
short, control characters are made visible, and tracebacks follow the line, indented. Neither format contains local
variables.

`plain`, `block` and `moment` convert values to a loggable form: bounded, of plain types, in characters that all log
tools accept.
"""

import json
import math
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, LogLevelColumnFormatter, plain_traceback
from structlog.typing import EventDict, Processor

from penstock.messaging.failure import TRACEBACK_CHARS_MAX

_FIRST = ("ts", "level", "event", "msg")  # bound first, so that every line begins with them
_NOT_FOR_PEOPLE = ("service", "version", "pid", "environment")  # the same on every line
_TIMES = ("ts", "enqueued_at", "scheduled_at", "as_of")
_WORKER_CHARS = 6  # the end of a worker's id is random; its beginning is the same for all workers of a host
_EVENT_WIDTH = 22
_ascii_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
_text_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False, ensure_ascii=False).encode
# The encoder escapes U+0000 to U+001F. These characters too break lines, disturb terminals or cannot be encoded. Format
# characters that words need, such as joiners, are not included.
_UNFIT = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")


class LineLogger(structlog.BoundLoggerBase):
    """Logger that takes a line as a dictionary."""

    def line(self, fields: dict[str, Any]) -> None:
        """Render the fields as a line and write it."""
        self._proxy_to_logger("write", **fields)


class LineWriter:
    """A writer of whole lines to a stream. If the stream fails, only that line is lost. Thread-safe."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._lock = threading.Lock()
        self._dropped = 0  # guarded by _lock

    @property
    def takes_utf8(self) -> bool:
        """Return True if the stream encodes text as UTF-8."""
        return self._encoding.lower().replace("-", "").replace("_", "") == "utf8"

    @property
    def dropped(self) -> int:
        """Return the number of lines lost so far."""
        return self._dropped

    def write(self, line: str) -> None:
        """Write a line, with its traceback if it has one, in one piece. Never raises."""
        with self._lock:
            try:
                self._write(line)
            except Exception:  # closed pipe, full disk, closed file, or any error of the user's stream
                self._dropped += 1

    def drop(self) -> None:
        """Count a line that could not be made."""
        with self._lock:
            self._dropped += 1

    def _write(self, line: str) -> None:
        if self._stream is None:  # a process without a console has no stderr
            self._dropped += 1
            return
        if not line.isascii():
            line = line.encode(self._encoding, "backslashreplace").decode(self._encoding)
        self._stream.write(line + "\n")
        self._stream.flush()


def json_logger(writer: LineWriter, context: Mapping[str, object]) -> LineLogger:
    """Return a logger that writes JSON."""
    return _logger(writer, [_render_text_json if writer.takes_utf8 else _render_ascii_json], context)


def console_logger(writer: LineWriter, context: Mapping[str, object], *, colors: bool) -> LineLogger:
    """Return a logger that writes for people."""
    return _logger(writer, [_shape_for_people, _console(colors=colors and sys.platform != "win32")], context)


def _logger(writer: LineWriter, processors: list[Processor], context: Mapping[str, object]) -> LineLogger:
    # structlog would take anything omitted here from its settings for the whole process.
    proxy = structlog.wrap_logger(
        writer,
        processors=processors,
        wrapper_class=LineLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    bound: LineLogger = proxy.bind(**dict.fromkeys(_FIRST), **context)
    return bound


def _render_ascii_json(_logger: object, _method: str, line: EventDict) -> str:
    return _ascii_json(line)


def _render_text_json(_logger: object, _method: str, line: EventDict) -> str:
    text = _text_json(line)
    return text if text.isascii() and "\x7f" not in text else _UNFIT.sub(_escaped, text)


def _escaped(unfit: re.Match[str]) -> str:
    return f"\\u{ord(unfit.group()):04x}"


def _shape_for_people(_logger: object, _method: str, line: EventDict) -> EventDict:
    for name in _NOT_FOR_PEOPLE:
        line.pop(name, None)
    if isinstance(worker := line.get("worker"), str):
        line["worker"] = worker[-_WORKER_CHARS:]
    for name in _TIMES:
        if isinstance(time := line.get(name), str):
            line[name] = _to_milliseconds(time)
    if line["event"] == "message.finished":
        _finish_sentence(line)
    for name, index in (("exception", "exception"), ("stacks", "stack")):  # fields that structlog prints below the line
        if name in line:
            line[index] = _indented(line.pop(name))
    return line


def _to_milliseconds(time: str) -> str:
    """Shorten a time as `moment` returns it."""
    return f"{time[:-4]}Z"


def _finish_sentence(line: EventDict) -> None:
    """Replace the fields of a finished message by a sentence, as in "orders 01J... finished in 45 ms"."""
    handler, message_id, attempt, seconds = (
        line.pop(name, None) for name in ("handler", "message_id", "attempt", "duration_s")
    )
    line.pop("enqueued_at", None)
    if line.get("queue") == handler:
        del line["queue"]
    again = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
    line["msg"] = f"{_shown(handler)} {_shown(message_id)} finished in {_duration(seconds)}{again}"


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "an unknown time"
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _console(*, colors: bool) -> ConsoleRenderer:
    styles = ConsoleRenderer.get_default_column_styles(colors)
    levels = ConsoleRenderer.get_default_level_styles(colors)

    def bare(style: str, width: int = 0) -> KeyValueColumnFormatter:
        return KeyValueColumnFormatter(None, style, styles.reset, value_repr=str, width=width)

    return ConsoleRenderer(
        sort_keys=False,
        exception_formatter=plain_traceback,
        columns=[
            Column("ts", bare(styles.timestamp)),
            Column("level", LogLevelColumnFormatter(levels, styles.reset)),
            Column("worker", bare(styles.timestamp)),
            Column("event", bare(styles.bright, _EVENT_WIDTH)),
            Column("msg", bare("")),
            Column("", KeyValueColumnFormatter(styles.kv_key, styles.kv_value, styles.reset, value_repr=_shown)),
        ],
    )


def _shown(value: object) -> str:
    """Return simple words as they are, other values as Python's repr, which makes control characters visible."""
    if isinstance(value, str):
        simple = value.isprintable() and value and not set(value) & set(" '\"=\\")
        return value if simple else repr(value)
    return str(value)  # for a list this is the repr of each item


def _indented(text: str) -> str:
    """Begin each line with a mark, so that no text can look like a log line."""
    return "\n".join(f"    | {_printable(line)}" for line in text.rstrip("\n").split("\n"))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


TEXT_CHARS_MAX = 8_000
ITEMS_MAX = 1_000
TRIMMED = "[... trimmed ...]"


def plain(value: object) -> object:
    """Convert a value to text without lone surrogates, JSON numbers, and lists and mappings of those.

    Returns None if the value has no such form.
    """
    if isinstance(value, str):
        return value if value.isascii() and len(value) <= TEXT_CHARS_MAX else _cut(value)
    if value is None or isinstance(value, int):  # includes bool
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = islice(value.items(), ITEMS_MAX)
        found = {_cut(str(name)): plain(inner) for name, inner in pairs}
        return found | {TRIMMED: len(value) - ITEMS_MAX} if len(value) > ITEMS_MAX else found
    if isinstance(value, Iterable):
        items = list(value)
        return [plain(item) for item in items[:ITEMS_MAX]] + [TRIMMED] * (len(items) > ITEMS_MAX)
    return plain(str(value))


def block(value: object) -> str:
    """Return a long text such as a traceback, bounded; its end is kept, because the error is there."""
    text = clean(str(value))
    return text if len(text) <= TRACEBACK_CHARS_MAX else TRIMMED + "\n" + text[-TRACEBACK_CHARS_MAX:]


def moment(epoch_seconds: float) -> str | None:
    """Return a time in UTC, to the microsecond; None if it is not a valid time."""
    try:
        whole, part = divmod(epoch_seconds, 1)
        return f"{_second(int(whole))}.{int(part * 1_000_000):06d}Z"
    except (OverflowError, ValueError, OSError):
        return None


@lru_cache(maxsize=256)  # thousands of lines share a busy second
def _second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def clean(text: str) -> str:
    """Escape lone surrogates (from file names): strict JSON readers reject the whole line for one."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    return clean(text) if len(text) <= TEXT_CHARS_MAX else clean(text[:TEXT_CHARS_MAX]) + TRIMMED

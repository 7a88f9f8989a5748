"""Access logs as a web service would write them, good and bad, for the demo. Seeded: the same files every time."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

SCHEMA = (
    "ts TIMESTAMP, host STRING, method STRING, path STRING, status INT, bytes BIGINT, duration_ms DOUBLE, agent STRING"
)
OBJECTS = 300
LINES = range(40, 160)
GZIPPED_EVERY = 5
BAD_EVERY = 7  # objects with bad lines
TRUNCATED = 250  # the object whose upload broke off
_START = datetime(2026, 1, 1, tzinfo=UTC)
_PATHS = ("/", "/search", "/cart", "/checkout", "/login", "/api/items", "/api/orders", "/static/app.js", "/まとめ")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12", "Googlebot/2.1", "日本語ブラウザ/1.0")
_BAD_LINES = (
    b'{"ts": "2026-01-01T00:00:00Z", "host": "10.0.0.9", "status": 20',  # cut off
    b"--- log rotated ---",
    b'{"host": "\xff\xfe", "status": 200}',  # not UTF-8
    b'{"host": "10.0.0.9", "status": "two hundred"}',  # wrong type
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoData:
    """What was written, and so what must come of it."""

    objects: int
    good_lines: int  # of the objects that can be read
    bad_lines: int
    dead: Path


def write_logs(folder: Path, *, seed: int = 20260101) -> DemoData:
    """Write the objects into a folder a day; answers what they hold."""
    chance = random.Random(seed)
    good_lines = bad_lines = 0
    dead = folder
    for number in range(OBJECTS):
        path = _place(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        good = list(_lines(chance, number))
        bad = chance.sample(_BAD_LINES, 2) if number % BAD_EVERY == 0 else []
        content = b"".join(line + b"\n" for line in _mixed(chance, good, bad))
        if number == TRUNCATED:
            dead = path
            path.write_bytes(gzip.compress(content, mtime=0)[: len(content) // 20])
            continue
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        good_lines += len(good)
        bad_lines += len(bad)
    return DemoData(objects=OBJECTS, good_lines=good_lines, bad_lines=bad_lines, dead=dead)


def _place(folder: Path, number: int) -> Path:
    day = _START + timedelta(days=number // 100)
    gzipped = number % GZIPPED_EVERY == 0 or number == TRUNCATED
    return folder / f"{day:%Y-%m-%d}" / f"access-{number:04}.jsonl{'.gz' if gzipped else ''}"


def _lines(chance: random.Random, number: int) -> Iterator[bytes]:
    at = _START + timedelta(minutes=14 * number)
    for _ in range(chance.choice(LINES)):
        at += timedelta(milliseconds=chance.randint(1, 9_000))
        line = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "host": f"10.0.{chance.randint(0, 255)}.{chance.randint(1, 254)}",
            "method": chance.choice(("GET", "GET", "GET", "POST", "PUT")),
            "path": chance.choice(_PATHS),
            "status": chance.choice((200, 200, 200, 200, 301, 404, 500)),
            "bytes": chance.randint(120, 250_000),
            "duration_ms": round(chance.expovariate(1 / 40), 3),
            "agent": chance.choice(_AGENTS),
        }
        yield json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()


def _mixed(chance: random.Random, good: list[bytes], bad: list[bytes]) -> list[bytes]:
    lines = list(good)
    for line in bad:
        lines.insert(chance.randint(0, len(lines)), line)
    return lines

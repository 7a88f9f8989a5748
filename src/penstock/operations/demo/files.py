"""The file half of the demo: an ingest of generated access logs, killed once halfway, and a proof of the result.

The logs contain good and bad lines and are seeded: every run gets the same files.
"""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.app.paths import TablePaths, table_paths
from penstock.app.state import open_state
from penstock.errors import PenstockError, TableError, UsageError
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Step
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce
from penstock.objects.scanner import Scanner
from penstock.operations.demo import environment_without_settings
from penstock.sinks.registry import open_sink
from penstock.storage.files import Files

SCHEMA = (
    "ts TIMESTAMP, host STRING, method STRING, path STRING, status INT, bytes BIGINT, duration_ms DOUBLE, agent STRING"
)
OBJECTS = 300
LINES = range(40, 160)
GZIPPED_EVERY = 5
BAD_EVERY = 7  # every n-th object has bad lines
TRUNCATED = 250  # the object whose upload was cut off
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
    """The content of the generated files, and so the expected result."""

    objects: int
    good_lines: int  # in readable objects
    bad_lines: int
    dead: Path


def write_logs(folder: Path, *, seed: int = 20260101) -> DemoData:
    """Write the objects, one folder per day; return their content."""
    chance = random.Random(seed)
    good_lines = bad_lines = 0
    dead = folder
    for number in range(OBJECTS):
        path = _location(folder, number)
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


def _location(folder: Path, number: int) -> Path:
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


DUPLICATED = 50  # objects with two notifications before the ingest sends another
BATCH_OBJECTS = 100
KILL_AT = f"{Step.WRITTEN.value}:2"  # the second batch is written by Spark but not recorded
RUN_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlaces:
    """The demo's files and tables, in one folder of its own."""

    logs: Path
    tables: TablePaths

    @staticmethod
    def under(folder: Path) -> "DemoPlaces":
        """Return the places below an empty folder. Raises `UsageError` if it is not empty."""
        check_empty(folder)
        return DemoPlaces(logs=folder / "logs", tables=table_paths(folder / "access_log"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCounts:
    """The state of the table at one moment."""

    files: int  # Parquet files on disk, below the table's folder
    files_named: int  # of these, the files that the table's current version names
    rows: int  # visible to readers


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProof:
    """The content of the table, counted by reading it, and the expected content."""

    rows: int
    rows_expected: int
    rows_twice: int  # duplicates of one line of one object
    quarantined: int
    quarantined_expected: int
    dead: int
    dead_expected: int
    at_kill: FileCounts
    at_end: FileCounts

    @property
    def holds(self) -> bool:
        """True if every good line is there once, every bad one is quarantined, and only the truncated object failed."""
        return (
            self.rows == self.rows_expected
            and self.rows_twice == 0
            and self.quarantined == self.quarantined_expected
            and self.dead == self.dead_expected
        )


def check_empty(folder: Path) -> None:
    """Raise `UsageError` if there is something in the folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; give another folder with --dir, or remove it.")


def prepare(where: DemoPlaces) -> DemoData:
    """Write the files, and send duplicate notifications for some, as S3 may."""
    data = write_logs(where.logs)
    scanner = Scanner(where.logs, store=LocalStore(where.logs))
    refs = [ref for chunk in scanner.chunks() for ref in chunk][:DUPLICATED]
    with open_state(where.tables.state) as state:
        queue = where.tables.queue(where.logs.resolve())
        state.broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs for _ in range(2)])
    return data


def run_ingest(where: DemoPlaces, *, killed: bool = False) -> Mapping[str, Any] | None:
    """Run `penstock ingest` in its own process; return its report, or None if it was killed as requested."""
    command = [sys.executable, "-m", "penstock", "ingest", str(where.logs), str(where.tables.table)]
    command += ["--schema", SCHEMA, "--max-batch-objects", str(BATCH_OBJECTS), "--json"]
    environment = environment_without_settings() | ({"PENSTOCK_KILL_AT": KILL_AT} if killed else {})
    done = subprocess.run(
        command,
        cwd=where.logs.parent,  # without a penstock.toml
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if killed and done.returncode < 0:
        return None
    if done.returncode not in (0, 3):
        raise PenstockError(f"the ingest of the demo ended with exit code {done.returncode}; see its output above")
    report: Mapping[str, Any] = json.loads(done.stdout)
    return report


def count(where: DemoPlaces) -> FileCounts:
    """Count files and rows through the file system and deltalake, without ledger or manifests."""
    table = Path(str(where.tables.table))
    on_disk = sum(not path.relative_to(table).parts[0].startswith("_") for path in table.rglob("*.parquet"))
    dataset = _dataset(where, where.tables.table)
    return FileCounts(files=on_disk, files_named=len(dataset.files), rows=dataset.count_rows())


def prove(where: DemoPlaces, data: DemoData, report: Mapping[str, Any], *, at_kill: FileCounts) -> FileProof:
    """Count the tables' rows through deltalake, without ledger or manifests."""
    lines = _dataset(where, where.tables.table).to_table(columns=["_object", "_offset"])
    distinct = lines.group_by(["_object", "_offset"]).aggregate([]).num_rows
    quarantined = _dataset(where, where.tables.quarantine).count_rows()
    return FileProof(
        rows=lines.num_rows,
        rows_expected=data.good_lines,
        rows_twice=lines.num_rows - distinct,
        quarantined=quarantined,
        quarantined_expected=data.bad_lines,
        dead=report["objects_dead"],
        dead_expected=1,
        at_kill=at_kill,
        at_end=count(where),
    )


def _dataset(where: DemoPlaces, root: Files) -> Any:
    """Return the rows of a table as a `pyarrow.dataset.Dataset`."""
    table = open_sink(root, scheme=where.tables.scheme, pipeline=where.tables.pipeline, partition_by=None).load()
    if table is None:
        raise TableError(f"There is no table in {root}.")
    return table.dataset()

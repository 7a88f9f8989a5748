"""Check a table and its state without using any code of the product.

It reads the files with plain Python, the tables' logs as plain JSON and Avro, without the library that wrote them,
their rows with pyarrow, ledger and queue with sqlite3.
If the ledger is on a server, ``ledger`` is its URL, and the oracle reads it with that server's driver.
A good line is identified by its place (file URI, byte offset). Each must be in the table once, with its values.
"""

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow.parquet as pq
from tests.services.sql_asking import ask

Place = tuple[str, int]  # the file's URI, the byte offset of the line in the decompressed file
Values = Mapping[str, object]

COLUMNS: Mapping[str, type] = {"id": int, "v": float, "s": str}
ICEBERG_GONE = 2  # the status of a manifest's entry for a file that left the table
SHOWN = 5  # how many places a failure names


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The lines in the files of a folder, or the rows of a format without lines."""

    good: Mapping[Place, Values]
    bad: Mapping[Place, bytes]
    unreadable: Sequence[str]  # URIs
    columns: Collection[str] = tuple(COLUMNS)  # of the table's rows
    position: str = "_offset"  # the column with a row's place in its object

    def objects(self) -> int:
        return len({uri for uri, _ in [*self.good, *self.bad]})

    def plus(self, older: "Truth") -> "Truth":
        """Add the earlier content of the folder, for files that were deleted or changed after they were read."""
        return Truth(
            good={**older.good, **self.good},
            bad={**older.bad, **self.bad},
            unreadable=[*older.unreadable, *self.unreadable],
            columns=self.columns,
            position=self.position,
        )


def truth(folder: Path, *, without: Sequence[Path] = (), at: str | None = None) -> Truth:
    """Read every file; ``without`` are files that no ingest could read. ``at``: see `uri_of`."""
    good: dict[Place, Values] = {}
    bad: dict[Place, bytes] = {}
    unreadable: list[str] = []
    left_out = set(without)
    for path in sorted(folder.rglob("*.jsonl*")):
        uri = uri_of(path, folder, at=at)
        content = None if path in left_out else _content(path)
        if content is None:
            unreadable.append(uri)
            continue
        for offset, line in _lines(content):
            values = _values(line)
            if values is None:
                bad[uri, offset] = line
            else:
                good[uri, offset] = values
    return Truth(good=good, bad=bad, unreadable=unreadable)


def uri_of(path: Path, folder: Path, *, at: str | None = None) -> str:
    """Return the URI of a file in a folder; ``at``: the address to which the folder was uploaded."""
    return path.resolve().as_uri() if at is None else f"{at}/{path.relative_to(folder).as_posix()}"


def _content(path: Path) -> bytes | None:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError):
        return None


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in content.split(b"\n"):
        if line.strip():
            yield offset, line
        offset += len(line) + 1


def _values(line: bytes) -> Values | None:
    try:
        document = json.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    if any(document.get(name) is not None and type(document[name]) is not kind for name, kind in COLUMNS.items()):
        return None
    return {name: document.get(name) for name in COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The rows that readers of a table see."""

    rows: Sequence[tuple[Place, Values]]
    files: Sequence[str]  # paths below the table's root


def read_table(table: Path, *, columns: Collection[str] = tuple(COLUMNS), position: str = "_offset") -> Seen:
    """Return the place and values of each row, without columns of a transform. Empty if there is no table."""
    return _read(table, ("_object", position), columns)


def read_quarantine(table: Path) -> Seen:
    return _read(table.with_name(f"{table.name}_quarantine"), ("object", "offset"), ("raw",))


def _read(table: Path, place: tuple[str, str], columns: Collection[str]) -> Seen:
    rows: list[tuple[Place, Values]] = []
    files = files_in_log(table)
    for file in files:
        found = pq.ParquetFile(table / file).read().to_pylist()
        rows += [((row[place[0]], row[place[1]]), {name: row[name] for name in columns}) for row in found]
    return Seen(rows=rows, files=files)


def files_in_log(table: Path) -> Sequence[str]:
    """Return the files of the newest version of a Delta or Iceberg table."""
    return _iceberg_files(table) if (table / "metadata").exists() else _delta_files(table)


def _iceberg_files(table: Path) -> Sequence[str]:
    """Return the files in the manifests of the newest snapshot."""
    versions = sorted((int(path.name.split(".")[0][1:]), path) for path in table.glob("metadata/v*.metadata.json"))
    metadata = json.loads(versions[-1][1].read_text())
    root = f"{metadata['location']}/"
    current = [one for one in metadata["snapshots"] if one["snapshot-id"] == metadata.get("current-snapshot-id")]
    manifests = [_avro(table, root, snapshot["manifest-list"]) for snapshot in current]
    entries = [
        entry for each in manifests for manifest in each for entry in _avro(table, root, manifest["manifest_path"])
    ]
    return [entry["data_file"]["file_path"].removeprefix(root) for entry in entries if entry["status"] != ICEBERG_GONE]


def _avro(table: Path, root: str, location: str) -> list[Any]:
    with (table / location.removeprefix(root)).open("rb") as file:
        return list(fastavro.reader(file))


def _delta_files(table: Path) -> Sequence[str]:
    """Return the files that the commits of the log added and did not remove.

    Begins with the newest checkpoint, if there is one. Fails if a commit is missing.
    """
    log = table / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    begins_at = _version(checkpoints[-1]) + 1 if checkpoints else 0
    commits = sorted(path for path in log.glob("*.json") if path.stem.isdigit() and _version(path) >= begins_at)
    assert [_version(path) for path in commits] == [*range(begins_at, begins_at + len(commits))], "a commit is missing"
    actions: list[Mapping[str, Any]] = pq.read_table(checkpoints[-1]).to_pylist() if checkpoints else []
    actions += [json.loads(line) for path in commits for line in path.read_text().splitlines()]
    files: list[str] = []
    for action in actions:
        if added := action.get("add"):
            files.append(unquote(added["path"]))
        elif removed := action.get("remove"):
            files = [file for file in files if file != unquote(removed["path"])]
    return files


def _version(path: Path) -> int:
    return int(path.name.partition(".")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The progress of a table: rows, good lines that are still missing, quarantined lines."""

    rows: int
    missing: int
    quarantined: int


def check_meanwhile(truth: Truth, table: Path, *, ledger: str | None = None) -> Found:
    """Check the state after any kill: no row twice, none invented, none uncommitted."""
    seen, quarantine = _seen(truth, table), read_quarantine(table)
    _check_rows(truth.good, seen.rows)
    _check_rows({place: {"raw": raw} for place, raw in truth.bad.items()}, quarantine.rows)
    committed = {attempt_id for attempt_id, state in _attempts(table, ledger) if state == "committed"}
    _check_files(committed, seen.files)
    _check_files(committed, quarantine.files)
    return Found(rows=len(seen.rows), missing=len(truth.good) - len(seen.rows), quarantined=len(quarantine.rows))


def check_done(truth: Truth, table: Path, *, ledger: str | None = None) -> None:
    """Check the state after a successful ingest: every line once, nothing open, no leftovers."""
    found = check_meanwhile(truth, table, ledger=ledger)
    seen = {place for place, _ in _seen(truth, table).rows}
    missing = sorted(set(truth.good) - seen)
    assert not missing, f"{len(missing)} good lines are lost: {missing[:SHOWN]}"
    assert found.quarantined == len(truth.bad), "bad lines are missing in the quarantine table"
    left_open = attempts(table, ledger=ledger)["open"]
    assert left_open == 0, f"{left_open} attempts are open"
    waiting = messages(table)
    assert waiting == 0, f"{waiting} messages are left in the queue"
    orphans = abandoned_folders(table, ledger=ledger)
    assert not orphans, f"files of abandoned attempts are left: {orphans[:SHOWN]}"


def _seen(truth: Truth, table: Path) -> Seen:
    return read_table(table, columns=truth.columns, position=truth.position)


def _check_rows(expected: Mapping[Place, Values], rows: Sequence[tuple[Place, Values]]) -> None:
    twice = [place for place, number in Counter(place for place, _ in rows).items() if number > 1]
    assert not twice, f"{len(twice)} lines are in the table twice: {sorted(twice)[:SHOWN]}"
    strange = [place for place, values in rows if expected.get(place) != values]
    assert not strange, f"{len(strange)} rows are not what the files hold: {sorted(strange)[:SHOWN]}"


def _check_files(committed: Collection[str], files: Sequence[str]) -> None:
    """Check that every file of a table belongs to an attempt that the ledger committed."""
    foreign = [file for file in files if file.split("/")[1] not in committed]
    assert not foreign, f"the table names files of attempts that were not committed: {foreign[:SHOWN]}"
    assert len(set(files)) == len(files), "a table names a file twice"


def abandoned_folders(table: Path, *, ledger: str | None = None) -> list[Path]:
    """Return the folders of abandoned attempts in the table, its quarantine and its work folder."""
    abandoned = {attempt_id for attempt_id, state in _attempts(table, ledger) if state == "abandoned"}
    roots = (table / "data", table.with_name(f"{table.name}_quarantine") / "data", table / "_penstock" / "work")
    return [folder for root in roots if root.is_dir() for folder in root.iterdir() if folder.name in abandoned]


def attempts(table: Path, *, ledger: str | None = None) -> Counter[str]:
    """Return the number of attempts in each state."""
    return Counter(word for _, word in _attempts(table, ledger))


def _attempts(table: Path, ledger: str | None) -> Sequence[tuple[str, str]]:
    sql = "SELECT id, state FROM attempts"
    rows = query(table, sql) if ledger is None else ask(ledger, sql)
    return [(str(id), str(state)) for id, state in rows]


def objects(table: Path) -> Mapping[str, tuple[str, int, str | None]]:
    """Return the state, counted attempts and reason of each URI, for the version that was seen last."""
    sql = "SELECT uri, state, charged - refunds, reason FROM objects ORDER BY first_seen_at"
    return {str(uri): (str(word), int(count), reason) for uri, word, count, reason in query(table, sql)}


def claims(table: Path) -> Mapping[str, int]:
    """Return the number of attempts that ever held each URI."""
    sql = """SELECT uri, count(*) FROM objects JOIN object_attempts USING (pipeline, object_id) GROUP BY uri"""
    return {str(uri): int(count) for uri, count in query(table, sql)}


def messages(table: Path, *, dead: bool = False) -> int:
    """Return the number of messages in the queue, or in the DLQ."""
    sql = "SELECT count(*) FROM messages JOIN queues ON queues.id = queue_id WHERE (queues.name LIKE '%-dlq') = ?"
    return int(query(table, sql, int(dead), file="queue.db")[0][0])


def messages_held(table: Path) -> int:
    """Return the number of leased messages."""
    return int(query(table, "SELECT count(*) FROM messages WHERE state = 2", file="queue.db")[0][0])


def query(table: Path, sql: str, *parameters: object, file: str = "ledger.db") -> Sequence[Sequence[Any]]:
    """Query a database file directly. Empty if the file or its tables do not exist yet."""
    path = table / "_penstock" / file
    if not path.exists():
        return ()
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10.0)) as connection:
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return ()
            raise

"""What a Delta table's log tells of its past: which commit brought which files, and moved which position.

Read from the log's own JSON files, newest first, so that what is asked of the last few commits reads the last few. Old
ones are deleted by whoever keeps the table (after 30 days by default); then there is a checkpoint, and no history.

Replacing files of a Delta table by others with the same rows, as the next version of a snapshot or not at all.

deltalake's own `optimize.compact` cannot be used beside others: of two that run at once both go through, also with no
retries at all, and every row is there twice (measured with 1.6). And it writes bounds for some columns, with which the
library's own filtered reads lose rows (see `penstock.sinks.delta.sink`). So the one commit that is needed is
written here.
The tables that we write to (`penstock.sinks.delta.features`) have no feature that asks more of it than Delta's protocol
of version 1 does: a file of JSON lines, made only if there is none of its number.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.sinks.delta.folder import LOG_FOLDER
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One version of a table."""

    version: int
    committed_at: float | None  # epoch seconds, by the clock of who committed
    transactions: Mapping[str, int]  # the positions it moved, by application
    added: Sequence[DataFile]
    removed: Sequence[str] = ()  # files that were removed with their rows
    merged: Sequence[str] = ()  # files that were removed, and whose rows are in the added files
    operation: str = ""  # as who committed it calls it, in capitals


def versions(root: Files) -> Sequence[int]:
    """The versions whose commits are still in the log, newest first; without a hole."""
    found = sorted(
        (int(match[1]) for name in root.names(LOG_FOLDER) if (match := _COMMIT.fullmatch(name))), reverse=True
    )
    return [version for place, version in enumerate(found) if version == found[0] - place]


def commits(root: Files) -> Iterator[LogCommit]:
    """Newest first, each read when it is asked for. Raises `TableError` for one that cannot be read."""
    for version in versions(root):
        commit = commit_at(root, version)
        if commit is None:  # cleaned up meanwhile, and so are all before it
            return
        yield commit


def commit_at(root: Files, version: int) -> LogCommit | None:
    """Return the commit of a version; None if it is no longer in the log. Raises as `commits`."""
    path = f"{LOG_FOLDER}/{version:020}.json"
    try:
        return _commit(version, root.read(path))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"The commit {root}/{path} of a Delta table cannot be read ({error}).") from error


def added_below(root: Files, folder: str) -> set[str]:
    """Return the paths of all files below a folder that a commit in the log added. Raises as `commits`."""
    return {file.path for commit in commits(root) for file in commit.added if file.path.startswith(f"{folder}/")}


def _commit(version: int, text: bytes) -> LogCommit:
    transactions: dict[str, int] = {}
    added: list[DataFile] = []
    removed: list[str] = []
    merged: list[str] = []
    committed_at: float | None = None
    operation = ""
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "add" in action:
            added.append(_data_file(action["add"]))
        elif "remove" in action:
            remove = action["remove"]
            (removed if remove.get("dataChange", True) else merged).append(unquote(remove["path"]))
        elif "commitInfo" in action:
            info = action["commitInfo"]
            committed_at = info["timestamp"] / 1000 if "timestamp" in info else None
            operation = str(info.get("operation", "")).upper()
    return LogCommit(
        version=version,
        committed_at=committed_at,
        transactions=transactions,
        added=added,
        removed=removed,
        merged=merged,
        operation=operation,
    )


def _data_file(add: Mapping[str, Any]) -> DataFile:
    stats = json.loads(add.get("stats") or "{}")
    return DataFile(
        path=unquote(add["path"]),
        size_bytes=add["size"],
        rows=stats.get("numRecords", 0),
        modified_at=add["modificationTime"] / 1000,
        partition_values=dict(add.get("partitionValues") or {}),
        statistics={"nullCount": stats["nullCount"]} if "nullCount" in stats else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFile:
    """A file as a snapshot's log names it."""

    logged_path: str  # as it is in the log, with its escapes
    path: str  # relative to the table's root
    size_bytes: int
    rows: int
    modified_at: float  # epoch seconds
    partition_values: Mapping[str, str | None]  # as the log has them


def replace_files(
    root: Files, *, version: int, removed: Sequence[LoggedFile], added: Sequence[DataFile], now: float, engine: str
) -> int:
    """Commit as the version after this one, which is answered. ``engine`` names this very commit.

    Raises `PublishConflict` where that version is somebody else's, or the outcome is unknown.
    """
    path = f"{LOG_FOLDER}/{version + 1:020}.json"
    text = _text(removed=removed, added=added, now=now, engine=engine, read_version=version)
    try:
        if root.write_new(path, text) or root.read(path) == text:  # ours, where a lost answer was asked for again
            return version + 1
    except (TemporaryError, FileNotFoundError) as error:
        if _is_ours(root, path, text):
            return version + 1
        raise PublishConflict(f"{root.uri}: {error}") from error
    raise PublishConflict(f"{root.uri}: somebody else committed version {version + 1}")


def _is_ours(root: Files, path: str, text: bytes) -> bool:
    try:
        return root.read(path) == text
    except (TemporaryError, FileNotFoundError):
        return False


def _text(
    *, removed: Sequence[LoggedFile], added: Sequence[DataFile], now: float, engine: str, read_version: int
) -> bytes:
    time_ms = int(now * 1000)
    actions: list[Mapping[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": time_ms,
                "operation": "OPTIMIZE",
                "operationParameters": {},
                "readVersion": read_version,
                "isBlindAppend": False,
                "engineInfo": engine,
            }
        }
    ]
    actions += [{"remove": _remove(file, time_ms)} for file in removed]
    actions += [{"add": _add(file)} for file in added]
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def _remove(file: LoggedFile, time_ms: int) -> Mapping[str, Any]:
    return {
        "path": file.logged_path,
        "deletionTimestamp": time_ms,
        "dataChange": False,  # the same rows are elsewhere: neither a change feed nor a stream hears of it
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
    }


def _add(file: DataFile) -> Mapping[str, Any]:
    stats = {"numRecords": file.rows, "nullCount": file.statistics.get("nullCount", {})}
    return {
        "path": quote(file.path),
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
        "modificationTime": int(file.modified_at * 1000),
        "dataChange": False,
        "stats": json.dumps(stats, separators=(",", ":")),
    }

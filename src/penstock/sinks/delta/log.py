"""Read a Delta table's history from its log, and replace files in one commit.

History: which commit added which files and moved which position. It is read from the log's JSON files, newest first, so
that queries about the last few commits read only these. Old ones are deleted by the table's maintenance (after 30 days
by default), which leaves a checkpoint and no history.

Replacement: swap files for others with the same rows, as the next version of a snapshot or not at all. deltalake's
`optimize.compact` is unsafe beside other writers: of two concurrent ones both succeed, even without retries, and every
row is duplicated (measured with 1.6). It also writes bounds for some columns only, with which the library's filtered
reads lose rows (see `penstock.sinks.delta.statistics`). The tables that Penstock writes to
(`penstock.sinks.delta.features`) need no more than Delta's protocol version 1: a file of JSON lines, created only if
its number is free.

Restating: a commit may add a file again that the table has, with other statistics. It has ``dataChange`` false and
removes nothing, as Databricks' ``ANALYZE TABLE ... COMPUTE DELTA STATISTICS`` does. It is no addition in the history.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.sinks.delta import statistics
from penstock.sinks.delta.folder import LOG_FOLDER
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import LoggedFile
from penstock.storage.files import Files

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One version of a table, as its commit describes it."""

    version: int
    committed_at: float | None  # epoch seconds by the committer's clock
    transactions: Mapping[str, int]  # positions that it moved, by application
    added: Sequence[DataFile]
    removed: Sequence[str] = ()  # files removed together with their rows
    merged: Sequence[str] = ()  # files removed whose rows are in the added files
    operation: str = ""  # the committer's name for it, in capitals


def versions(root: Files) -> Sequence[int]:
    """Return the versions whose commits are still in the log, newest first, up to the first gap."""
    found = sorted(
        (int(match[1]) for name in root.names(LOG_FOLDER) if (match := _COMMIT.fullmatch(name))), reverse=True
    )
    return [version for offset, version in enumerate(found) if version == found[0] - offset]


def commits(root: Files) -> Iterator[LogCommit]:
    """Yield commits newest first, each read on demand. Raises `TableError` for an unreadable one."""
    for version in versions(root):
        commit = commit_at(root, version)
        if commit is None:  # deleted meanwhile, together with all before it
            return
        yield commit


def commit_at(root: Files, version: int) -> LogCommit | None:
    """Return the commit of a version; None if it is no longer in the log. Raises like `commits`."""
    path = f"{LOG_FOLDER}/{version:020}.json"
    try:
        return _commit(version, root.read(path))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"The commit {root}/{path} of a Delta table cannot be read ({error}).") from error


def replace_files(
    root: Files,
    *,
    version: int,
    removed: Sequence[LoggedFile],
    added: Sequence[DataFile],
    indexed: Sequence[pa.Field],
    now: float,
    engine: str,
) -> int:
    """Commit the next version after ``version`` and return its number. ``engine`` must be unique to this commit.

    ``indexed`` are the `indexed_columns` of that version. Raises `PublishConflict` if another writer committed that
    version, or the outcome is unknown.
    """
    time_ms = int(now * 1000)
    actions = [
        *({"remove": _remove(file, time_ms)} for file in removed),
        *({"add": _add(quote(file.path), file, indexed)} for file in added),
    ]
    return _write(root, version, actions, operation="OPTIMIZE", time_ms=time_ms, engine=engine)


def restate_files(
    root: Files, *, version: int, files: Sequence[LoggedFile], indexed: Sequence[pa.Field], now: float, engine: str
) -> int:
    """Commit other statistics of files that ``version`` has, as `replace_files` does."""
    actions = [{"add": _add(file.logged_path, file, indexed)} for file in files]
    return _write(root, version, actions, operation="COMPUTE STATS", time_ms=int(now * 1000), engine=engine)


def _write(
    root: Files, version: int, actions: Sequence[Mapping[str, Any]], *, operation: str, time_ms: int, engine: str
) -> int:
    """Create the commit after ``version``."""
    path = f"{LOG_FOLDER}/{version + 1:020}.json"
    text = _text(_commit_info(operation, version, time_ms=time_ms, engine=engine), *actions)
    try:
        # equal text: our own write succeeded, its reply was lost, and it was retried
        if root.write_new(path, text) or root.read(path) == text:
            return version + 1
    except (TemporaryError, FileNotFoundError) as error:
        if _is_ours(root, path, text):
            return version + 1
        raise PublishConflict(f"{root.uri}: {error}") from error
    raise PublishConflict(f"{root.uri}: another writer committed version {version + 1}")


def _commit(version: int, text: bytes) -> LogCommit:
    transactions: dict[str, int] = {}
    added: list[DataFile] = []
    moved: list[DataFile] = []  # without a change of data
    removed: list[str] = []
    merged: list[str] = []
    committed_at: float | None = None
    operation = ""
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "add" in action:
            add = action["add"]
            (added if add.get("dataChange", True) else moved).append(_data_file(add))
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
        added=[*added, *moved] if removed or merged else added,
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


def _is_ours(root: Files, path: str, text: bytes) -> bool:
    try:
        return root.read(path) == text
    except (TemporaryError, FileNotFoundError):
        return False


def _text(*actions: Mapping[str, Any]) -> bytes:
    """Return the lines of a commit. Characters are not escaped: see `penstock.sinks.delta.statistics`."""
    lines = (json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def _commit_info(operation: str, version: int, *, time_ms: int, engine: str) -> Mapping[str, Any]:
    return {
        "commitInfo": {
            "timestamp": time_ms,
            "operation": operation,
            "operationParameters": {},
            "readVersion": version,
            "isBlindAppend": False,
            "engineInfo": engine,
        }
    }


def _remove(file: LoggedFile, time_ms: int) -> Mapping[str, Any]:
    return {
        "path": file.logged_path,
        "deletionTimestamp": time_ms,
        "dataChange": False,  # the same rows are in other files: no event for change feeds or streams
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
    }


def _add(logged_path: str, file: DataFile | LoggedFile, indexed: Sequence[pa.Field]) -> Mapping[str, Any]:
    return {
        "path": logged_path,
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
        "modificationTime": int(file.modified_at * 1000),
        "dataChange": False,
        "stats": statistics.encode(file.rows, file.statistics, indexed),
    }

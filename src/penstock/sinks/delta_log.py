"""What a Delta table's log tells of its past: which commit brought which files, and moved which position.

Read from the log's own JSON files, newest first, so that what is asked of the last few commits reads the last few. Old
ones are deleted by whoever keeps the table (after 30 days by default); then there is a checkpoint, and no history.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from penstock.errors import TableError
from penstock.sinks.delta_folder import LOG_FOLDER
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

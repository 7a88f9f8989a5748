"""Replacing files of a Delta table by others with the same rows, as the next version of a snapshot or not at all.

deltalake's own `optimize.compact` cannot be used beside others: of two that run at once both go through, also with no
retries at all, and every row is there twice (measured with 1.6). And it writes bounds for some columns, with which the
library's own filtered reads lose rows (see `penstock.sinks.delta`). So the one commit that is needed is written here.
The tables that we write to (`penstock.sinks.delta_features`) have no feature that asks more of it than Delta's protocol
of version 1 does: a file of JSON lines, made only if there is none of its number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from penstock.errors import PublishConflict, TemporaryError
from penstock.sinks.delta_folder import LOG_FOLDER
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files


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

"""Read a Delta table's history from its log, and replace files in one commit.

History: which commit added which files and moved which position. It is read from the log's JSON files, newest first, so
that queries about the last few commits read only these. Old ones are deleted by the table's maintenance (after 30 days
by default), which leaves a checkpoint and no history.

A commit of another writer may replace one: `listing` returns the tags of many versions in one request, by which
`penstock.pipeline.overwritten` notices that.

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
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from penstock.errors import PublishConflict, TableError
from penstock.sinks.delta import statistics
from penstock.sinks.delta.folder import LOG_FOLDER
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import (
    REPLACES_ROWS,
    Append,
    LogEntry,
    LoggedCommit,
    LoggedFile,
    LogListing,
    Position,
    TableCommit,
)
from penstock.sinks.version_file import create_version
from penstock.storage.files import FileInfo, Files

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")  # half-written ones of deltalake end in #1
_PATH_CHARS = "/!$&'()+,:;=@"
"""Characters of a path that are not escaped, as in deltalake, which finds the file of an action by this spelling."""
MARK = "penstock"  # the field of a commit's info that Penstock adds
_REPUBLISHED_AFTER = "republishedAfter"
_REPLACING = "replacing"
_REWRITTEN_IN = "rewrittenIn"
APPLICATIONS = "penstock:"  # begins the application ids of positions
ATTEMPT = ":attempt"  # suffix of the application whose version is the token of the last batch's attempt
_ENGINE = "penstock "  # begins the engine of a replacement
_NAME_CHARS_MAX = 200  # of names that other writers choose


def versions(root: Files) -> Sequence[int]:
    """Return the versions whose commits are still in the log, newest first, up to the first gap."""
    found = sorted(
        (int(match[1]) for name in root.names(LOG_FOLDER) if (match := _COMMIT.fullmatch(name))), reverse=True
    )
    return [version for offset, version in enumerate(found) if version == found[0] - offset]


def commits(root: Files, *, app: str) -> Iterator[TableCommit]:
    """Yield commits newest first, each read on demand. Raises `TableError` for an unreadable one.

    ``app`` is the application id of the pipeline's positions.
    """
    for version in versions(root):
        logged = read(root, version, app=app)
        if logged is None:  # deleted meanwhile, together with all before it
            return
        yield logged.commit


def read(root: Files, version: int, *, app: str) -> LoggedCommit | None:
    """Return the commit of a version; None if it is no longer in the log. Raises like `commits`."""
    path = _path(version)
    try:
        text, info = root.read_tagged(path)
        return LoggedCommit(entry=_entry(version, info), commit=_commit(version, text, app))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"The commit {root}/{path} of a Delta table cannot be read ({error}).") from error


def listing(root: Files, *, after: int) -> LogListing:
    """Return the versions after this one, which is one request for up to 1,000 files."""
    found: dict[int, LogEntry] = {}
    checkpoints: list[int] = []
    name = f"{after:020}.json" if after >= 0 else ""
    for info in root.list_after(LOG_FOLDER, name):
        file = info.path.rpartition("/")[2]
        if match := _COMMIT.fullmatch(file):
            found[int(match[1])] = _entry(int(match[1]), info)
        elif match := _CHECKPOINT.fullmatch(file):
            checkpoints.append(int(match[1]))
    return LogListing(commits=found, checkpoints=checkpoints)


def apply_again(root: Files, *, version: int, of_version: int, paths: Collection[str], now: float) -> int:
    """Commit the changes that an earlier commit made to these files; see `penstock.sinks.sink.CommitLog`."""
    time_ms = int(now * 1000)
    info = _info(time_ms, operation="WRITE", engine=f"{_ENGINE}again {of_version}", read_version=version)
    actions: list[Mapping[str, Any]] = [{"commitInfo": {**info, MARK: {"again": of_version}}}]
    try:
        text = root.read(_path(of_version))
    except FileNotFoundError as error:
        raise PublishConflict(f"{root.uri}: version {of_version} was cleaned up") from error
    actions += [
        {kind: {**action[kind], "dataChange": False}}  # other readers have seen its data
        for action in _actions(text)
        for kind in ("add", "remove")
        if kind in action and unquote(action[kind]["path"]) in paths
    ]
    return _put(root, version + 1, _encoded(actions))


def _mark_of(append: Append) -> Mapping[str, Any]:
    """Return what the info of a commit says of an append, besides that Penstock made it."""
    found = {
        _REPUBLISHED_AFTER: append.republished_after,
        _REPLACING: append.replacing,
        _REWRITTEN_IN: append.rewritten_in or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def append(
    root: Files,
    append: Append,
    *,
    version: int,
    transactions: Mapping[str, int],
    indexed: Sequence[pa.Field],
    now: float,
) -> int:
    """Commit files, the files that they replace, and positions by application as the version after ``version``.

    Returns and raises as `replace_files` does.
    """
    time_ms = int(now * 1000)
    operation = REPLACES_ROWS if append.replaced else "WRITE"
    info = _info(time_ms, operation=operation, engine=f"{_ENGINE}{uuid.uuid4()}", read_version=version)
    actions: list[Mapping[str, Any]] = [{"commitInfo": {**info, MARK: _mark_of(append)}}]
    actions += [
        {"txn": {"appId": app, "version": number, "lastUpdated": time_ms}} for app, number in transactions.items()
    ]
    actions += [{"remove": _remove(file, time_ms, changes_data=True)} for file in append.replaced]
    actions += [{"add": _add(file, indexed, changes_data=True)} for file in append.files]
    return _put(root, version + 1, _encoded(actions))


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
    return _replace(root, version, "OPTIMIZE", removed=removed, added=added, indexed=indexed, now=now, engine=engine)


def restate_files(
    root: Files, *, version: int, files: Sequence[LoggedFile], indexed: Sequence[pa.Field], now: float, engine: str
) -> int:
    """Commit other statistics of files that ``version`` has, as `replace_files` does."""
    return _replace(root, version, "COMPUTE STATS", added=files, indexed=indexed, now=now, engine=engine)


def _replace(
    root: Files,
    version: int,
    operation: str,
    *,
    removed: Sequence[LoggedFile] = (),
    added: Sequence[DataFile | LoggedFile],
    indexed: Sequence[pa.Field],
    now: float,
    engine: str,
) -> int:
    time_ms = int(now * 1000)
    info = _info(time_ms, operation=operation, engine=engine, read_version=version)
    actions: list[Mapping[str, Any]] = [{"commitInfo": info}]
    actions += [{"remove": _remove(file, time_ms)} for file in removed]
    actions += [{"add": _add(file, indexed)} for file in added]
    return _put(root, version + 1, _encoded(actions))


def _put(root: Files, version: int, text: bytes) -> int:
    if not _is_newest(root, version - 1):
        raise PublishConflict(f"{root.uri}: another writer committed version {version}, which was cleaned up since")
    create_version(root, _path(version), text, version=version)
    return version


def _is_newest(root: Files, version: int) -> bool:
    """Return True if the log has nothing after this version.

    Without this check, the number of a later commit that was cleaned up would be free again. Only commits before a
    checkpoint are cleaned up, and the checkpoint is still listed.
    """
    later = listing(root, after=version)
    return all(one <= version for one in (*later.commits, *later.checkpoints))


def _path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020}.json"


def _entry(version: int, info: FileInfo) -> LogEntry:
    return LogEntry(version=version, tag=info.tag, size_bytes=info.size_bytes)


def _actions(text: bytes) -> Iterator[Mapping[str, Any]]:
    return (json.loads(line) for line in text.splitlines() if line.strip())


def _commit(version: int, text: bytes, app: str) -> TableCommit:
    transactions: dict[str, int] = {}
    added: list[DataFile] = []
    unchanged: list[DataFile] = []  # their data is not new
    removed: list[str] = []
    merged: list[str] = []
    info: Mapping[str, Any] = {}
    sets_columns = False
    for action in _actions(text):
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "add" in action:
            add = action["add"]
            (added if add.get("dataChange", True) else unchanged).append(_data_file(add))
        elif "remove" in action:
            remove = action["remove"]
            (removed if remove.get("dataChange", True) else merged).append(unquote(remove["path"]))
        elif "commitInfo" in action:
            info = action["commitInfo"]
        elif "metaData" in action or "protocol" in action:
            sets_columns = True
    noted, engine, seq = info.get(MARK), str(info.get("engineInfo") or ""), transactions.get(app)
    mark = noted if seq is not None and isinstance(noted, dict) else {}
    return TableCommit(
        version=version,
        committed_at=info["timestamp"] / 1000 if "timestamp" in info else None,
        position=None if seq is None else Position(seq=seq, attempt_token=transactions.get(f"{app}{ATTEMPT}")),
        added=[*added, *unchanged] if removed or merged else added,
        restated=() if removed or merged else unchanged,
        removed=removed,
        merged=merged,
        operation=str(info.get("operation", "")).upper()[:_NAME_CHARS_MAX],
        engine=engine[:_NAME_CHARS_MAX],
        is_ours=noted is not None
        or engine.startswith(_ENGINE)
        or any(a.startswith(APPLICATIONS) for a in transactions),
        republished_after=mark.get(_REPUBLISHED_AFTER),
        replacing=mark.get(_REPLACING),
        rewritten_in=mark.get(_REWRITTEN_IN, ""),
        sets_columns=sets_columns,
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


def _info(time_ms: int, *, operation: str, engine: str, read_version: int) -> Mapping[str, Any]:
    return {
        "timestamp": time_ms,
        "operation": operation,
        "operationParameters": {},
        "readVersion": read_version,
        "isBlindAppend": False,
        "engineInfo": engine,
    }


def _encoded(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the lines of a commit. Characters are not escaped: see `penstock.sinks.delta.statistics`."""
    lines = (json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def _remove(file: LoggedFile, time_ms: int, *, changes_data: bool = False) -> Mapping[str, Any]:
    return {
        "path": file.logged_path,
        "deletionTimestamp": time_ms,
        "dataChange": changes_data,  # False: the same rows are in other files, no event for change feeds or streams
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
    }


def _add(file: DataFile | LoggedFile, indexed: Sequence[pa.Field], *, changes_data: bool = False) -> Mapping[str, Any]:
    return {
        "path": file.logged_path if isinstance(file, LoggedFile) else quote(file.path, safe=_PATH_CHARS),
        "partitionValues": dict(file.partition_values),
        "size": file.size_bytes,
        "modificationTime": int(file.modified_at * 1000),
        "dataChange": changes_data,
        "stats": statistics.encode(file.rows, file.statistics, indexed),
    }

"""The state of a Delta table apart from its files: version, protocol, columns, properties and positions.

A publish needs only this. deltalake reads every file of a snapshot when it opens a table, and again after each commit,
so its cost grows with the table (90 ms of CPU for 10,000 files). Here a checkpoint's file columns are not read, and the
commits since then are as many as the checkpoint interval allows.

The log is always listed: the hint ``_last_checkpoint``, which other writers need not keep current, only lets S3 begin
the listing there.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from deltalake import Schema

from penstock.sinks.delta.folder import LOG_FOLDER
from penstock.storage.files import Files

NO_CHECKPOINT = -1
_HINT = f"{LOG_FOLDER}/_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.parquet")
_ACTIONS = ("protocol", "metaData", "txn")
_OF_A_FILE = (b'{"add":', b'{"remove":')  # begins the line of such an action
_OTHER = re.compile(rb'"(?:protocol|metaData|txn)"')  # an action, if a writer puts several into one line
_READS_AT_ONCE = 16  # of commits in S3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProtocol:
    """The versions and features that the table requires of its readers and writers."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None
    writer_features: list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of one version."""

    version: int
    checkpoint: int  # the version of the checkpoint that it was read from, or `NO_CHECKPOINT`
    protocol: TableProtocol
    schema: Schema
    schema_json: str  # with the metadata of fields, which `schema` may lack
    partition_by: Sequence[str]
    configuration: Mapping[str, str | None]
    transactions: Mapping[str, int]  # versions by application


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    commits: frozenset[int]
    checkpoints: Mapping[int, Sequence[str]]  # paths of the parts by version; complete ones only

    def base(self, version: int | None) -> int:
        """Return the newest checkpoint up to this version, or `NO_CHECKPOINT`."""
        return max((one for one in self.checkpoints if version is None or one <= version), default=NO_CHECKPOINT)

    def tip(self, base: int, version: int | None) -> int:
        """Return the last version of the unbroken sequence of commits after ``base``, at most ``version``."""
        tip = base
        while tip + 1 in self.commits and tip != version:
            tip += 1
        return tip


@dataclass(slots=True)
class _Actions:
    """The last action of each kind. Newer ones are applied after older ones."""

    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        if found := action.get("txn"):
            self.transactions[found["appId"]] = found["version"]
        if found := action.get("metaData"):
            self.metadata = found
        if found := action.get("protocol"):
            self.protocol = found


def read_state(root: Files, *, version: int | None = None) -> TableState | None:
    """Return the state of the newest version, or of this one; None if there is no table.

    Raises:
        ValueError: The log is damaged, lacks commits that this version needs, or has a column of an unknown type.
        FileNotFoundError: A part of the log was cleaned up meanwhile.
    """
    hint = _last_checkpoint(root)
    log = _listed(root, NO_CHECKPOINT if hint is None or version is not None else hint)
    base = log.base(version)
    tip = log.tip(base, version)
    if tip < 0 and not log.commits:
        return None
    if tip != (max([base, *log.commits]) if version is None else version):
        raise ValueError(f"its log has no commit {tip + 1}")
    actions = _Actions()
    for path in log.checkpoints.get(base, ()):
        for action in _of_checkpoint(root, path):
            actions.apply(action)
    for action in _of_commits(root, range(base + 1, tip + 1)):
        actions.apply(action)
    return _state(actions, version=tip, checkpoint=base)


def _state(actions: _Actions, *, version: int, checkpoint: int) -> TableState:
    protocol, metadata = actions.protocol, actions.metadata
    if not protocol or not metadata:
        raise ValueError("its log has no protocol or no metadata")
    return TableState(
        version=version,
        checkpoint=checkpoint,
        protocol=TableProtocol(
            min_reader_version=protocol["minReaderVersion"],
            min_writer_version=protocol["minWriterVersion"],
            reader_features=protocol.get("readerFeatures"),
            writer_features=protocol.get("writerFeatures"),
        ),
        schema=Schema.from_json(metadata["schemaString"]),
        schema_json=metadata["schemaString"],
        partition_by=tuple(metadata.get("partitionColumns") or ()),
        configuration=dict(metadata.get("configuration") or {}),
        transactions=actions.transactions,
    )


def _last_checkpoint(root: Files) -> int | None:
    """Return the version of the last checkpoint according to the log's hint; None if there is none."""
    try:
        return int(json.loads(root.read(_HINT))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _listed(root: Files, hint: int) -> _Log:
    """Return the log from the hinted checkpoint on, or the whole log if that checkpoint is not there."""
    commits: set[int] = set()
    parts: dict[tuple[int, int], list[str]] = {}
    for info in root.list_after(LOG_FOLDER, f"{hint:020}" if hint >= 0 else ""):
        name = info.path.rpartition("/")[2]
        if found := _COMMIT.fullmatch(name):
            commits.add(int(found[1]))
        elif found := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(found[1]), int(found["parts"] or 1)), []).append(info.path)
    log = _Log(
        commits=frozenset(commits),
        checkpoints={version: paths for (version, count), paths in parts.items() if len(paths) >= count},
    )
    return log if hint == NO_CHECKPOINT or hint in log.checkpoints else _listed(root, NO_CHECKPOINT)


def _of_checkpoint(root: Files, path: str) -> Iterable[Mapping[str, Any]]:
    """Return the actions of one part of a checkpoint, without those of files, whose columns are not read."""
    # A thread of Arrow may release its parts of a Python file only after the read has returned. For that it needs the
    # GIL, and if the interpreter is ending then, the process aborts. So only reads from S3 use Arrow's threads.
    with root.open_input(path) as file, pq.ParquetFile(file, pre_buffer=not root.is_local) as parquet:
        names = {
            column.split(".")[0] for column in (parquet.schema.column(at).path for at in range(len(parquet.schema)))
        }
        table = parquet.read([name for name in _ACTIONS if name in names], use_threads=False)
    found: list[Mapping[str, Any]] = []
    for name in table.column_names:
        for action in table[name].drop_null().to_pylist():
            if name == "metaData":
                action = {**action, "configuration": dict(action.get("configuration") or ())}
            if any(value is not None for value in action.values()):
                found.append({name: action})
    return found


def _of_commits(root: Files, versions: Sequence[int]) -> Iterable[Mapping[str, Any]]:
    """Yield the actions of these commits without those of files, oldest first."""
    paths = [f"{LOG_FOLDER}/{version:020}.json" for version in versions]
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for text in map(root.read, paths) if root.is_local else pool.map(root.read, paths):
            for line in text.splitlines():
                is_of_a_file = line.startswith(_OF_A_FILE) and line.endswith(b"}}") and not _OTHER.search(line)
                if line.strip() and not is_of_a_file:
                    yield json.loads(line)

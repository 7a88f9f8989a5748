"""Another writer of Delta tables: delta-spark with its log store for plain S3, imitated byte for byte.

`SparkWriter` writes the commits that delta-spark 3.2 writes for a statement: the actions, their fields, the spelling of
JSON. `S3SingleDriverLogStore.write` first looks whether the commit's file exists, then puts it without a
condition; a `PendingCommit` is what lies between the two. Nothing here shares code with Penstock but `Files`, and
`rows_of` reads a table from nothing but the JSON files of its log.
"""

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.storage.files import Files

ENGINE = "Apache-Spark/3.5.1 Delta-Lake/3.2.0"
LOG = "_delta_log"
TIME_MS = 1_720_000_000_000

Action = Mapping[str, Any]


class CommitExists(Exception):
    """The commit's file exists: the statement would be checked for conflicts and tried again."""


@dataclass(frozen=True, kw_only=True)
class PendingCommit:
    """A commit that the writer has found free, and not put yet."""

    files: Files
    version: int
    data: bytes

    def put(self) -> int:
        self.files.write(commit_path(self.version), self.data)
        return self.version


@dataclass(kw_only=True)
class SparkWriter:
    """One driver. Each statement reads the table now, and returns the commit that it is about to put."""

    files: Files
    engine: str = ENGINE
    _parts: int = field(default=0)

    # Statements that change rows

    def append(self, rows: Mapping[str, list[Any]]) -> PendingCommit:
        added = self._write(rows, data_change=True)
        parameters = {"mode": "Append", "partitionBy": "[]"}
        return self._commit("WRITE", parameters, [added], blind=True, metrics={"numFiles": "1"})

    def add_file(self, location: str, *, size_bytes: int, rows: int) -> PendingCommit:
        """Add a file that exists, anywhere: below the root by its relative path, as CLONE and COPY INTO do."""
        add = {"path": quote(location, safe="/:"), "partitionValues": {}, "size": size_bytes}
        add |= {"modificationTime": TIME_MS, "dataChange": True, "stats": compact({"numRecords": rows})}
        return self._commit("CLONE", {}, [{"add": add}], blind=True)

    def overwrite(self, rows: Mapping[str, list[Any]]) -> PendingCommit:
        removed = [self._remove(add) for add in self._snapshot().values()]
        parameters = {"mode": "Overwrite", "partitionBy": "[]"}
        return self._commit("WRITE", parameters, [self._write(rows, data_change=True), *removed])

    def optimize(self, *, files_min: int = 2) -> PendingCommit | None:
        """Merge all files, as OPTIMIZE does with small ones; None if there is nothing to merge."""
        adds = list(self._snapshot().values())
        if len(adds) < files_min:
            return None
        merged = self._write(self._rows(adds), data_change=False)
        removed = [self._remove(add, data_change=False) for add in adds]
        parameters = {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": "false"}
        return self._commit("OPTIMIZE", parameters, [*removed, merged], isolation="SnapshotIsolation")

    def delete(self, ids: set[int]) -> PendingCommit:
        """Delete rows by rewriting the files that hold them."""
        actions: list[Action] = []
        for add in self._snapshot().values():
            rows = self._rows([add])
            kept = [index for index, id in enumerate(rows["id"]) if id not in ids]
            if len(kept) < len(rows["id"]):
                actions.append(self._remove(add))
                if kept:
                    rest = {name: [values[index] for index in kept] for name, values in rows.items()}
                    actions.append(self._write(rest, data_change=True))
        return self._commit("DELETE", {"predicate": f'["(id#1L IN ({sorted(ids)}))"]'}, actions)

    def delete_with_vectors(self, ids: set[int]) -> PendingCommit:
        """Delete rows by deletion vectors: the file is removed and added again with a vector."""
        actions: list[Action] = []
        for add in self._snapshot().values():
            if ids.intersection(self._rows([add])["id"]):
                vector = {
                    "storageType": "u",
                    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
                    "offset": 1,
                    "sizeInBytes": 34,
                }
                vector["cardinality"] = 1
                actions += [{"add": {**add, "deletionVector": vector}}, self._remove(add)]
        return self._commit("DELETE", {"predicate": "[]"}, actions)

    def update(self, ids: set[int], *, operation: str = "UPDATE") -> PendingCommit:
        """Rewrite the files that hold these rows; MERGE does the same."""
        actions: list[Action] = []
        for add in self._snapshot().values():
            rows = self._rows([add])
            if ids.intersection(rows["id"]):
                actions += [self._remove(add), self._write(rows, data_change=True)]
        return self._commit(operation, {"predicate": "[]"}, actions)

    def restore(self, version: int) -> PendingCommit:
        target, now = self._snapshot(version), self._snapshot()
        actions: list[Action] = [
            {"add": {**add, "dataChange": True}} for path, add in target.items() if path not in now
        ]
        actions += [self._remove(add) for path, add in now.items() if path not in target]
        return self._commit("RESTORE", {"version": str(version), "timestamp": None}, actions)

    def vacuum(self) -> Sequence[PendingCommit]:
        """Return the two commits by which VACUUM is logged; `vacuum_files` deletes what it would delete."""
        start = self._commit(
            "VACUUM START", {"retentionCheckEnabled": "true", "defaultRetentionMillis": "604800000"}, []
        )
        data = self._text("VACUUM END", {"status": "COMPLETED"}, [], read_version=start.version)
        return start, PendingCommit(files=self.files, version=start.version + 1, data=data)

    def vacuum_files(self) -> Sequence[str]:
        """Delete the files that no version names, as VACUUM does after its retention; return their paths."""
        named = {unquote(path) for path in self._snapshot()}
        hidden = (LOG, "_penstock")
        found = [info.path for info in self.files.list() if not info.path.startswith(hidden) and info.path not in named]
        self.files.delete(found)
        return found

    # Statements that change the table

    def set_metadata(
        self,
        operation: str,
        *,
        columns: Sequence[Mapping[str, Any]] | None = None,
        configuration: Mapping[str, str] | None = None,
        protocol: Mapping[str, Any] | None = None,
        others: Sequence[Action] = (),
    ) -> PendingCommit:
        """Change columns, properties and features, as ALTER TABLE and SET TBLPROPERTIES do."""
        metadata = dict(self.metadata())
        if columns is not None:
            metadata["schemaString"] = compact({"type": "struct", "fields": list(columns)})
        metadata["configuration"] = {**metadata["configuration"], **(configuration or {})}
        actions: list[Action] = [{"metaData": metadata}]
        if protocol is not None:
            actions.append({"protocol": protocol})
        return self._commit(operation, {"properties": compact(dict(configuration or {}))}, [*actions, *others])

    def replace_table(self, columns: Sequence[Mapping[str, Any]], rows: Mapping[str, list[Any]]) -> PendingCommit:
        metadata = {**self.metadata(), "schemaString": compact({"type": "struct", "fields": list(columns)})}
        metadata |= {"id": str(uuid.uuid4()), "createdTime": TIME_MS}
        removed = [self._remove(add) for add in self._snapshot().values()]
        added = self._write(rows, data_change=True)
        parameters = {"isManaged": "false", "description": None, "partitionBy": "[]", "properties": "{}"}
        return self._commit("CREATE OR REPLACE TABLE AS SELECT", parameters, [{"metaData": metadata}, added, *removed])

    def metadata(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = {}
        for version in range(self.newest() + 1):
            for action in read_commit(self.files, version):
                found = action.get("metaData", found)
        return found

    def columns(self) -> list[dict[str, Any]]:
        fields: list[dict[str, Any]] = json.loads(self.metadata()["schemaString"])["fields"]
        return fields

    def newest(self) -> int:
        return newest_version(self.files)

    # -- how -----------------------------------------------------------------------------------------------------

    def _snapshot(self, version: int | None = None) -> dict[str, Action]:
        return replay(self.files, self.newest() if version is None else version)

    def _rows(self, adds: Sequence[Action]) -> dict[str, list[Any]]:
        names = [column["name"] for column in self.columns()]
        tables = [pq.read_table(io.BytesIO(self.files.read(unquote(add["path"])))) for add in adds]
        rows: dict[str, list[Any]] = {name: [] for name in names}
        for table in tables:
            for name in names:
                rows[name] += table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
        return rows

    def _write(self, rows: Mapping[str, list[Any]], *, data_change: bool) -> Action:
        self._parts += 1
        path = f"part-{self._parts:05}-{uuid.uuid4()}-c000.snappy.parquet"
        data = io.BytesIO()
        pq.write_table(pa.table(dict(rows)), data, compression="snappy")
        self.files.write(path, data.getvalue())
        size = len(data.getvalue())
        stats = {"numRecords": len(next(iter(rows.values()))), "minValues": {}, "maxValues": {}, "nullCount": {}}
        add = {"path": quote(path), "partitionValues": {}, "size": size, "modificationTime": TIME_MS}
        return {"add": {**add, "dataChange": data_change, "stats": compact(stats)}}

    def _remove(self, add: Action, *, data_change: bool = True) -> Action:
        remove = {"path": add["path"], "deletionTimestamp": TIME_MS, "dataChange": data_change}
        remove |= {"extendedFileMetadata": True, "partitionValues": add["partitionValues"], "size": add["size"]}
        return {"remove": {**remove, "stats": add.get("stats")}}

    def _commit(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        actions: Sequence[Action],
        *,
        blind: bool = False,
        isolation: str = "Serializable",
        metrics: Mapping[str, str] | None = None,
    ) -> PendingCommit:
        read_version = self.newest()
        version = read_version + 1
        if self.files.stat(commit_path(version)) is not None:
            raise CommitExists(version)
        data = self._text(operation, parameters, actions, read_version, blind, isolation, metrics)
        return PendingCommit(files=self.files, version=version, data=data)

    def _text(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        actions: Sequence[Action],
        read_version: int,
        blind: bool = False,
        isolation: str = "Serializable",
        metrics: Mapping[str, str] | None = None,
    ) -> bytes:
        info = {
            "timestamp": TIME_MS + read_version,
            "operation": operation,
            "operationParameters": parameters,
            "readVersion": read_version,
            "isolationLevel": isolation,
            "isBlindAppend": blind,
            "operationMetrics": dict(metrics or {}),
            "engineInfo": self.engine,
            "txnId": str(uuid.uuid4()),
        }
        return b"".join(compact(action).encode() + b"\n" for action in [{"commitInfo": info}, *actions])


def compact(document: Any) -> str:
    """Return JSON as Jackson writes it: no blanks, and no escapes for characters beyond ASCII."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def newest_version(files: Files) -> int:
    return max(int(name[:20]) for name in files.names(LOG) if len(name) == 25 and name.endswith(".json"))


def read_commit(files: Files, version: int) -> list[Any]:
    return [json.loads(line) for line in files.read(commit_path(version)).splitlines() if line.strip()]


def replay(files: Files, version: int) -> dict[str, Action]:
    """Return the files of a version by path, from the JSON files of the log alone."""
    found: dict[str, Action] = {}
    for one in range(version + 1):
        for action in read_commit(files, one):
            if "add" in action:
                found[action["add"]["path"]] = action["add"]
            elif "remove" in action and action["remove"]["path"] in found:
                vector = found[action["remove"]["path"]].get("deletionVector")
                if vector == action["remove"].get("deletionVector"):
                    del found[action["remove"]["path"]]
    return found


def ids_of(files: Files) -> list[int]:
    """Return the ids of all rows, sorted, from the JSON files of the log alone."""
    adds = replay(files, newest_version(files)).values()
    tables = [pq.read_table(io.BytesIO(files.read(unquote(add["path"]))), columns=["id"]) for add in adds]
    return sorted(id for table in tables for id in table["id"].to_pylist())

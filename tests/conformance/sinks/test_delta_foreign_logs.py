"""Logs of Delta tables that other writers left, read without deltalake."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.conformance.sinks.kit import FIRST, PIPELINE, DeltaKit

from penstock.errors import TableError
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Append, LoadedTable

ADD = {"path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
APP = f"penstock:{PIPELINE}"
TXN = {"appId": APP, "version": 9}


def _metadata(kind: str = "long", **configuration: str) -> Mapping[str, Any]:
    field = {"name": "id", "type": kind, "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    return {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
    }


def _table(
    root: Path, *commits: list[Mapping[str, Any]], protocol: Mapping[str, Any] | None = None, kind: str = "long"
) -> Path:
    first: list[Mapping[str, Any]] = [
        {"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": _metadata(kind)},
    ]
    (root / "_delta_log").mkdir(parents=True)
    for version, actions in enumerate([first, *commits]):
        _commit(root, version).write_text("\n".join(json.dumps(action) for action in actions))
    return root


def _commit(root: Path, version: int) -> Path:
    return root / f"_delta_log/{version:020}.json"


def _load(root: Path) -> LoadedTable:
    loaded = DeltaKit().sink(root).load()
    assert loaded is not None
    return loaded


def _append(root: Path, number: int) -> None:
    path = f"{number}.parquet"
    pq.write_table(pa.table({"id": [number]}), root / path)
    size = (root / path).stat().st_size
    file = DataFile(path=path, size_bytes=size, rows=1, modified_at=1.0, partition_values={}, statistics={})
    _load(root).append(Append(seq=number, attempt_id=FIRST, files=[file]))


@pytest.mark.parametrize("kind", ["interval", "geometry", "char(3)", "null"])
def test_a_column_of_an_unknown_type_is_refused_as_a_fault_of_the_table(tmp_path: Path, kind: str) -> None:
    root = _table(tmp_path / "t", kind=kind)
    with pytest.raises(TableError):
        _ = _load(root).schema


@pytest.mark.parametrize(
    "protocol",
    [{"minReaderVersion": 1, "minWriterVersion": 7}, {"minReaderVersion": 3, "minWriterVersion": 2}],
    ids=["no writer features", "no reader features"],
)
def test_a_protocol_that_no_reader_accepts_is_refused(tmp_path: Path, protocol: Mapping[str, Any]) -> None:
    """deltalake and Spark do not open such a table, so nothing may be added to it."""
    root = _table(tmp_path / "t", protocol=protocol)
    with pytest.raises(TableError):
        _load(root)


@pytest.mark.parametrize("version", ["1e999", "Infinity"])
def test_a_hint_without_a_number_is_ignored(tmp_path: Path, version: str) -> None:
    root = _table(tmp_path / "t")
    (root / "_delta_log/_last_checkpoint").write_text(f'{{"version":{version}}}')
    assert _load(root).version == 0


def test_a_line_with_two_actions_has_both(tmp_path: Path) -> None:
    """Delta's protocol has one action a line. deltalake reads both."""
    root = _table(tmp_path / "t", [{"add": ADD, "txn": TXN}])
    assert DeltaTable(root).transaction_version(APP) == 9
    assert _load(root).position.seq == 9


def test_older_commits_that_were_left_by_a_cleanup_are_no_gap_behind_a_checkpoint(tmp_path: Path) -> None:
    root = _table(tmp_path / "t", [{"txn": TXN}], [{"add": ADD}])
    DeltaTable(root).create_checkpoint()
    _commit(root, 2).unlink()
    (root / "_delta_log/_last_checkpoint").unlink()
    assert DeltaTable(root).version() == 2
    assert _load(root).version == 2


def test_a_stale_hint_beside_a_half_cleaned_log_hides_no_commits(tmp_path: Path) -> None:
    """The hint is of a checkpoint before the last one, and a killed cleanup deleted commits behind it, not its own."""
    root = tmp_path / "t"
    DeltaKit().sink(root).ensure_schema(pa.schema([("id", pa.int64())]))
    for number in (1, 2, 3):
        _append(root, number)
    DeltaTable(root).create_checkpoint()
    hint = (root / "_delta_log/_last_checkpoint").read_bytes()
    for number in (4, 5, 6):
        _append(root, number)
    DeltaTable(root).create_checkpoint()
    (root / "_delta_log/_last_checkpoint").write_bytes(hint)
    for version in (4, 5):
        _commit(root, version).unlink()
    _append(root, 7)
    assert sorted(DeltaTable(root).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7]

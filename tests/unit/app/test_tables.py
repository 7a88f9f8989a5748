"""Both tables of a pipeline together: what is made, published, counted and swept."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.publishing.batch_maker import BatchMaker as Mill

from penstock.app.paths import TablePaths, table_paths
from penstock.app.tables import Tables
from penstock.errors import PublishHalted, TableError
from penstock.events import Bus, Event, JobFailed
from penstock.ledger import Ledger
from penstock.messaging.steps import Step
from penstock.pipeline.maintenance import gc
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.sinks.delta.sink import open_dataset
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files


@pytest.fixture
def where(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "clicks")


@pytest.fixture
def mill(where: TablePaths) -> Iterator[Mill]:
    ledger = Ledger.open("sqlite://")
    yield Mill(root=Path(str(where.table)), ledger=ledger, pipeline=where.pipeline)
    ledger.close()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def tables(where: TablePaths, mill: Mill, told: list[Event]) -> Tables:
    return Tables(where, mill.ledger, bus=Bus(told.append))


def write_quarantine(where: TablePaths, attempt_id: str) -> Sequence[DataFile]:
    schema = QUARANTINE_SCHEMA
    directory = Path(str(where.quarantine)) / "data" / attempt_id / "r0"
    directory.mkdir(parents=True)
    row = {"object": "file:///x", "offset": 0, "raw": b"{", "reason": "malformed", "detail": ""}
    pq.write_table(pa.Table.from_pylist([row], schema=schema), directory / "bad.parquet")
    return list_files(where.quarantine, f"data/{attempt_id}/r0", partition_by=(), schema=schema)


def quarantined_batch(where: TablePaths, mill: Mill, ids: Sequence[int]) -> None:
    attempt_id = mill.claim()
    mill.commit(attempt_id, mill.write(attempt_id, ids), quarantine=write_quarantine(where, attempt_id))


def test_nothing_committed_makes_nothing(tables: Tables, where: TablePaths) -> None:
    tables.publish()
    assert (tables.version(), tables.has_quarantine(), tables.unpublished()) == (None, False, 0)
    assert not Path(str(where.table)).exists()


def test_the_quarantine_is_made_when_something_was_quarantined(tables: Tables, where: TablePaths, mill: Mill) -> None:
    mill.batch([1])
    tables.publish()
    assert not tables.has_quarantine()
    quarantined_batch(where, mill, [2])
    tables.publish()
    assert tables.has_quarantine()
    assert open_dataset(where.table).count_rows() == 2
    assert open_dataset(where.quarantine).to_table()["reason"].to_pylist() == ["malformed"]


def test_unpublished_counts_batches_with_files_that_one_of_the_tables_lacks(
    tables: Tables, where: TablePaths, mill: Mill
) -> None:
    mill.batch([1])
    mill.batch([])
    quarantined_batch(where, mill, [2])
    assert tables.unpublished() == 2

    class Died(BaseException):
        pass

    def die(step: Step) -> None:
        if step is Step.ROWS_PUBLISHED:
            raise Died

    with pytest.raises(Died):
        Tables(where, mill.ledger, bus=Bus(), probe=die).publish()
    assert tables.unpublished() == 1
    tables.publish()
    mill.batch([])
    assert tables.unpublished() == 0


def test_other_partition_columns_are_refused_unless_one_only_looks(
    tables: Tables, where: TablePaths, mill: Mill
) -> None:
    mill.batch([1])
    tables.publish()
    with pytest.raises(TableError, match="--partition-by"):
        Tables(where, mill.ledger, partition_by=["id"], bus=Bus()).publish()
    assert Tables(where, mill.ledger, partition_by=None, bus=Bus()).version() == 1


def abandoned(mill: Mill) -> Path:
    attempt_id = mill.claim()
    files = mill.write(attempt_id, [9])
    mill.ledger.abandon(attempt_id, reason="test", outcome="failed", uncounted=False, unattributed=False)
    return mill.root / files[0].path


def test_a_sweep_deletes_what_abandoned_attempts_left(tables: Tables, where: TablePaths, mill: Mill) -> None:
    mill.batch([1])
    tables.publish()
    garbage = abandoned(mill)
    assert tables.collect_garbage(dry_run=True).files == 1
    assert garbage.exists()
    tables.sweep()
    assert not garbage.exists()
    assert open_dataset(where.table).count_rows() == 1


def test_a_sweep_that_fails_is_told_and_stops_nothing(
    tables: Tables, mill: Mill, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = abandoned(mill)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        tables.sweep()
    assert [type(event) for event in told] == [JobFailed]
    assert garbage.exists()


def test_a_sweep_without_anything_abandoned_reads_no_manifest(
    tables: Tables, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    mill.batch([1])
    tables.publish()

    def never(manifest: str) -> tuple[DataFile, ...]:
        raise AssertionError("read")

    monkeypatch.setattr(gc, "decode", never)
    tables.sweep()


def test_nothing_is_deleted_by_a_ledger_that_is_not_the_tables(tables: Tables, where: TablePaths, mill: Mill) -> None:
    """A ledger brought back from a backup calls attempts abandoned that the table shows."""
    mill.batch([1])
    tables.publish()
    restored = Mill(root=mill.root, ledger=Ledger.open("sqlite://"), pipeline=where.pipeline)
    garbage = abandoned(restored)
    theirs = Tables(where, restored.ledger, bus=Bus())
    with pytest.raises(PublishHalted):
        theirs.collect_garbage(dry_run=False)
    with pytest.raises(PublishHalted):
        theirs.sweep()
    assert garbage.exists()
    restored.ledger.close()

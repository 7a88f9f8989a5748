"""Objects leave their source only while the tables have their rows. Real tables, other writers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.conformance.publishing.batch_maker import SCHEMA
from tests.conformance.publishing.batch_maker import BatchMaker as Mill

from penstock.app.paths import TablePaths, table_paths
from penstock.app.tables import Tables
from penstock.errors import PublishHalted
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.pipeline.maintenance.compact import compact


@pytest.fixture
def where(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "clicks")


@pytest.fixture
def mill(where: TablePaths) -> Iterator[Mill]:
    ledger = Ledger.open("sqlite://")
    yield Mill(root=Path(str(where.table)), ledger=ledger, pipeline=where.pipeline)
    ledger.close()


@pytest.fixture
def tables(where: TablePaths, mill: Mill) -> Tables:
    """Three batches of two rows each; the first version with all of them is 3."""
    made = Tables(where, mill.ledger, bus=Bus())
    for no in range(3):
        mill.batch([2 * no, 2 * no + 1])
        made.publish()
    assert delta(where).version() == 3
    return made


def delta(where: TablePaths) -> DeltaTable:
    return DeltaTable(str(where.table))


def restore(where: TablePaths, version: int) -> None:
    delta(where).restore(version)


def append(where: TablePaths, rows: int, mode: Literal["append", "overwrite"] = "append") -> None:
    """As another writer does."""
    write_deltalake(str(where.table), pa.table({"id": range(rows), "word": [None] * rows}, schema=SCHEMA), mode=mode)


def merge_files(tables: Tables) -> None:
    assert compact(tables.rows, target_bytes=1_000_000, dry_run=False, clock=SystemClock()) is not None


def forget_the_log(where: TablePaths) -> None:
    """As it is after its retention: a checkpoint, and no commits of before."""
    table = delta(where)
    table.create_checkpoint()
    for path in (Path(str(where.table)) / "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()


def fresh(where: TablePaths, mill: Mill) -> Tables:
    """In another process."""
    return Tables(where, mill.ledger, partition_by=None, bus=Bus())


def test_rows_that_are_there_are_kept(tables: Tables) -> None:
    assert tables.retained_to(0, 3) == 3
    assert tables.retained_to(1, 2) == 2


def test_rows_that_a_restore_removed_are_not(tables: Tables, where: TablePaths) -> None:
    restore(where, 2)
    assert tables.shown_to(0, 3) == 3, "the position survives"
    assert tables.retained_to(0, 2) == 2
    with pytest.raises(PublishHalted, match=r"Version 4 .*\(RESTORE, by another writer\).*batch 3.*version 3"):
        tables.retained_to(0, 3)


def test_a_restore_to_the_version_before_mends_it(tables: Tables, where: TablePaths) -> None:
    restore(where, 2)
    with pytest.raises(PublishHalted):
        tables.retained_to(0, 3)
    restore(where, 3)
    assert tables.retained_to(0, 3) == 3


def test_what_another_writer_appended_hides_nothing(tables: Tables, where: TablePaths) -> None:
    restore(where, 2)
    append(where, 10)
    assert not tables.shortfalls(), "rows alone do not show it"
    with pytest.raises(PublishHalted, match="batch 3"):
        tables.retained_to(0, 3)


def test_an_overwrite_by_another_writer_removes_rows(tables: Tables, where: TablePaths) -> None:
    append(where, 9, mode="overwrite")
    with pytest.raises(PublishHalted, match=r"WRITE, by another writer.*batch 1"):
        tables.retained_to(0, 3)


def test_rows_in_merged_files_are_kept(tables: Tables, where: TablePaths) -> None:
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3


def test_a_restore_takes_rows_out_of_merged_files(tables: Tables, where: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    append(where, 1)
    restore(where, 2)
    with pytest.raises(PublishHalted, match=r"RESTORE.*batch 3"):
        tables.retained_to(0, 3)
    assert tables.retained_to(0, 2) == 2, "their own files are back"
    restore(where, 4)
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    assert fresh(where, mill).retained_to(0, 3) == 3


def test_a_restore_to_before_a_merge_removes_no_rows(tables: Tables, where: TablePaths) -> None:
    merge_files(tables)
    restore(where, 3)
    assert tables.retained_to(0, 3) == 3


def test_rows_that_were_deleted_or_changed_on_purpose_are_no_loss(tables: Tables, where: TablePaths) -> None:
    delta(where).delete("id = 0")
    delta(where).delete("id IN (2, 3)")  # a whole file
    delta(where).update(updates={"word": "'x'"}, predicate="id = 4")
    assert tables.retained_to(0, 3) == 3
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    restore(where, 1)
    with pytest.raises(PublishHalted, match="RESTORE"):
        tables.retained_to(0, 3)


def test_rows_are_counted_once_the_log_no_longer_tells(tables: Tables, where: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    forget_the_log(where)
    assert fresh(where, mill).retained_to(0, 3) == 3
    assert tables.retained_to(0, 3) == 3


def test_what_may_be_lost_counts_as_lost(tables: Tables, where: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    restore(where, 2)
    forget_the_log(where)
    append(where, 2)  # as many as are missing
    with pytest.raises(PublishHalted, match=r"may have lost rows of batch 3.*delta.logRetentionDuration"):
        fresh(where, mill).retained_to(0, 3)
    assert fresh(where, mill).retained_to(0, 2) == 2


def test_a_table_in_the_place_of_another_is_read_anew(tables: Tables, where: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    for path in (Path(str(where.table)) / "_delta_log").glob("*"):
        path.unlink()
    tables.publish()
    assert tables.retained_to(0, 3) == 3

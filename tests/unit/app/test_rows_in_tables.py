"""Objects are removed from their source only while the tables have their rows. Real tables, with other writers."""

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
def paths(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "clicks")


@pytest.fixture
def mill(paths: TablePaths) -> Iterator[Mill]:
    ledger = Ledger.open("sqlite://")
    yield Mill(root=Path(str(paths.table)), ledger=ledger, pipeline=paths.pipeline)
    ledger.close()


@pytest.fixture
def tables(paths: TablePaths, mill: Mill) -> Tables:
    """Tables with three batches of two rows each. Version 3 is the first with all of them."""
    made = Tables(paths, mill.ledger, bus=Bus())
    for no in range(3):
        mill.batch([2 * no, 2 * no + 1])
        made.publish()
    assert delta(paths).version() == 3
    return made


def delta(paths: TablePaths) -> DeltaTable:
    return DeltaTable(str(paths.table))


def restore(paths: TablePaths, version: int) -> None:
    delta(paths).restore(version)


def append(paths: TablePaths, rows: int, mode: Literal["append", "overwrite"] = "append") -> None:
    """Append or overwrite rows as another writer does."""
    write_deltalake(str(paths.table), pa.table({"id": range(rows), "word": [None] * rows}, schema=SCHEMA), mode=mode)


def merge_files(tables: Tables) -> None:
    assert compact(tables.rows, target_bytes=1_000_000, dry_run=False, clock=SystemClock()) is not None


def delete_old_log(paths: TablePaths) -> None:
    """Delete the commits before a new checkpoint, as after the retention of the log."""
    table = delta(paths)
    table.create_checkpoint()
    for path in (Path(str(paths.table)) / "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()


def reopened(paths: TablePaths, mill: Mill) -> Tables:
    """Return the tables as another process opens them."""
    return Tables(paths, mill.ledger, partition_by=None, bus=Bus())


def test_rows_in_the_table_are_retained(tables: Tables) -> None:
    assert tables.retained_to(0, 3) == 3
    assert tables.retained_to(1, 2) == 2


def test_rows_that_a_restore_removed_are_not_retained(tables: Tables, paths: TablePaths) -> None:
    restore(paths, 2)
    assert tables.shown_to(0, 3) == 3, "the position survives"
    assert tables.retained_to(0, 2) == 2
    with pytest.raises(PublishHalted, match=r"Version 4 .*\(RESTORE, by another writer\).*batch 3.*version 3"):
        tables.retained_to(0, 3)


def test_a_restore_to_the_version_before_the_loss_repairs_it(tables: Tables, paths: TablePaths) -> None:
    restore(paths, 2)
    with pytest.raises(PublishHalted):
        tables.retained_to(0, 3)
    restore(paths, 3)
    assert tables.retained_to(0, 3) == 3


def test_rows_of_another_writer_do_not_hide_a_loss(tables: Tables, paths: TablePaths) -> None:
    restore(paths, 2)
    append(paths, 10)
    assert not tables.shortfalls(), "the number of rows alone does not show the loss"
    with pytest.raises(PublishHalted, match="batch 3"):
        tables.retained_to(0, 3)


def test_an_overwrite_by_another_writer_removes_rows(tables: Tables, paths: TablePaths) -> None:
    append(paths, 9, mode="overwrite")
    with pytest.raises(PublishHalted, match=r"WRITE, by another writer.*batch 1"):
        tables.retained_to(0, 3)


def test_rows_in_merged_files_are_retained(tables: Tables, paths: TablePaths) -> None:
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3


def test_a_restore_removes_rows_in_merged_files(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    append(paths, 1)
    restore(paths, 2)
    with pytest.raises(PublishHalted, match=r"RESTORE.*batch 3"):
        tables.retained_to(0, 3)
    assert tables.retained_to(0, 2) == 2, "their own files are back"
    restore(paths, 4)
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    assert reopened(paths, mill).retained_to(0, 3) == 3


def test_a_restore_to_before_a_merge_removes_no_rows(tables: Tables, paths: TablePaths) -> None:
    merge_files(tables)
    restore(paths, 3)
    assert tables.retained_to(0, 3) == 3


def test_rows_deleted_or_updated_by_a_statement_are_no_loss(tables: Tables, paths: TablePaths) -> None:
    delta(paths).delete("id = 0")
    delta(paths).delete("id IN (2, 3)")  # a whole file
    delta(paths).update(updates={"word": "'x'"}, predicate="id = 4")
    assert tables.retained_to(0, 3) == 3
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    restore(paths, 1)
    with pytest.raises(PublishHalted, match="RESTORE"):
        tables.retained_to(0, 3)


def test_rows_are_counted_if_the_log_was_deleted(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    delete_old_log(paths)
    assert reopened(paths, mill).retained_to(0, 3) == 3
    assert tables.retained_to(0, 3) == 3


def test_rows_that_may_be_lost_count_as_lost(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    restore(paths, 2)
    delete_old_log(paths)
    append(paths, 2)  # as many as are missing
    with pytest.raises(PublishHalted, match=r"may have lost rows of batch 3.*delta.logRetentionDuration"):
        reopened(paths, mill).retained_to(0, 3)
    assert reopened(paths, mill).retained_to(0, 2) == 2


def test_a_table_that_replaced_another_is_read_again(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    merge_files(tables)
    assert tables.retained_to(0, 3) == 3
    for path in (Path(str(paths.table)) / "_delta_log").glob("*"):
        path.unlink()
    tables.publish()
    assert tables.retained_to(0, 3) == 3

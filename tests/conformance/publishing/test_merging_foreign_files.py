"""Merges on tables with files of other writers, and what a merge keeps between its tries."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from tests.conformance.publishing.merge_maker import SCHEMA, Change, MergeMaker, leftovers
from tests.services.iceberg_catalogs import client, configure, name_of
from tests.services.spark_writer import SparkWriter

from penstock.errors import PublishHalted
from penstock.ledger import Ledger
from penstock.messaging.steps import Step
from penstock.storage.local import LocalFiles


@pytest.fixture(params=["delta", "iceberg"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MergeMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger, scheme=request.param)
    ledger.close()


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[MergeMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger)
    ledger.close()


@pytest.fixture
def cataloged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MergeMaker]:
    configure("sql", request)
    root = tmp_path.resolve() / "t"
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=root, ledger=ledger, scheme="iceberg", catalog=name_of(root))
    ledger.close()


def up(id: int, at: int, value: float = 0.0) -> Change:
    return Change(id=id, at=at, value=value)


def merged(table: MergeMaker, *changes: Change) -> None:
    table.changes(changes)
    table.publish()


def versions(table: MergeMaker) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in table.rows()]


def add(table: MergeMaker, rows: pa.Table, path: Path) -> None:
    """Add a file as another program does, below the root or elsewhere."""
    pq.write_table(rows, path)
    location = path.name if path.parent == table.root else f"file://{path}"
    writer = SparkWriter(files=LocalFiles(table.root))
    writer.add_file(location, size_bytes=path.stat().st_size, rows=rows.num_rows).put()


def theirs(**more: pa.Array) -> pa.Table:
    rows = pa.Table.from_pylist([{"id": 1, "at": 1, "part": "p"}, {"id": 2, "at": 9, "part": "p"}], schema=SCHEMA)
    for name, values in more.items():
        rows = rows.append_column(name, values)
    return rows


def test_a_file_with_an_unknown_column_halts_before_anything_is_written(delta: MergeMaker) -> None:
    merged(delta, up(1, 1), up(3, 1))
    add(delta, theirs(mine=pa.array([1, 2])), delta.root / "theirs.parquet")
    before = leftovers(delta.root)
    delta.changes([up(1, 5), up(3, 5)])
    for _ in range(2):
        with pytest.raises(PublishHalted, match=r"has rows that are to be merged.*that the table lacks: mine"):
            delta.publish()
    new = set(leftovers(delta.root)) - set(before)
    assert not [path for path in new if path.startswith("compacted/")]


def test_a_file_outside_the_table_s_folder_halts(delta: MergeMaker, tmp_path: Path) -> None:
    merged(delta, up(1, 1))
    add(delta, theirs(), tmp_path.resolve() / "other.parquet")
    delta.changes([up(1, 5)])
    with pytest.raises(PublishHalted, match=r"other\.parquet .* may have rows .* outside the table's folder"):
        delta.publish()


def test_a_file_that_is_not_parquet_is_named(delta: MergeMaker) -> None:
    merged(delta, up(1, 1))
    (delta.root / "broken.parquet").write_bytes(b"no Parquet at all")
    SparkWriter(files=LocalFiles(delta.root)).add_file("broken.parquet", size_bytes=17, rows=2).put()
    delta.changes([up(1, 5)])
    with pytest.raises(PublishHalted, match=r"broken\.parquet of the table \S+ may have rows .* cannot be read: "):
        delta.publish()


def test_rows_that_another_writer_moved_are_merged(cataloged: MergeMaker) -> None:
    merged(cataloged, up(1, 1), up(2, 9), up(3, 3))
    found = client().load_table(name_of(cataloged.root).parts)
    found.overwrite(found.scan().to_arrow())
    merged(cataloged, up(1, 5), up(2, 5))
    assert versions(cataloged) == [(1, 5), (2, 9), (3, 3)]


def test_a_file_of_iceberg_is_opened_only_if_its_bounds_leave_room(
    cataloged: MergeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in range(5):
        merged(cataloged, up(id, 1))
    opened: list[str] = []
    real = LocalFiles.open_input

    def noted(self: LocalFiles, path: str) -> object:
        opened.append(path)
        return real(self, path)

    cataloged.changes([up(3, 2)])
    before = {path for path in leftovers(cataloged.root) if re.match("data/", path)}
    monkeypatch.setattr(LocalFiles, "open_input", noted)
    cataloged.publish()
    assert len(before.intersection(opened)) == 2, "the batch's own file, and the one with its key"
    assert versions(cataloged) == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 1)]


def test_a_number_that_the_ledger_gave_twice_merges_its_last_batch(table: MergeMaker) -> None:
    """The ledger fails over to a replica that lacks the last batch, while that batch's publish meets a conflict."""
    merged(table, up(1, 1), up(2, 1))
    lost = table.changes([up(1, 5)])
    once = iter([1])

    def failing_over(reached: Step) -> None:
        if reached is Step.REWRITTEN and next(once, None):
            table.sink().ensure_schema(SCHEMA.append(pa.field("x", pa.int64())))  # the conflict
            with table.ledger.database.engine.begin() as connection:
                connection.execute(text("delete from batches where seq = :seq"), {"seq": lost})
                connection.execute(text("update pipelines set next_seq = :seq"), {"seq": lost})
            assert table.changes([up(2, 5)]) == lost

    table.publish(probe=failing_over)
    assert versions(table) == [(1, 1), (2, 5)]

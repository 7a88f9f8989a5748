"""An append that replaces files of the snapshot, as batches do whose rows take the place of earlier ones."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.sinks.kit import FIRST, KITS, SCHEMA, SECOND, THIRD, Kit, append, write
from tests.conformance.sinks.test_sink_races import at_once
from tests.services.iceberg_catalogs import KINDS

from penstock.errors import PublishConflict, PublishHalted
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.sink import REPLACES_ROWS, Append, LoggedFile, Position, TableHistory, VersionedTable

FORMATS = [name for name in KITS if name != "toy"]  # the toy keeps no earlier versions
ROUNDS = 10
THREADS = 4

pytestmark = pytest.mark.parametrize(
    "kit", [*FORMATS, *KINDS], ids=[*FORMATS, *(f"iceberg-{kind}" for kind in KINDS)], indirect=True
)


@pytest.fixture
def history(kit: Kit, root: Path) -> TableHistory:
    """Return the versions of an empty table with the columns of `SCHEMA`."""
    sink = kit.sink(root)
    sink.ensure_schema(SCHEMA)
    found = sink.history  # type: ignore[attr-defined] # of a `TableSink`
    assert found is not None
    return found  # type: ignore[no-any-return]


def loaded(history: TableHistory) -> VersionedTable:
    table = history.load()
    assert table is not None
    return table


def publish(history: TableHistory, seq: int, attempt_id: str, *files: DataFile) -> None:
    loaded(history).append(append(seq, attempt_id, *files))


def replacing(seq: int, attempt_id: str, replaced: Sequence[LoggedFile], *files: DataFile) -> Append:
    return Append(seq=seq, attempt_id=attempt_id, files=files, replaced=replaced)


def ids(kit: Kit, root: Path) -> list[int]:
    return sorted(row["id"] for row in kit.rows(root))


def test_files_leave_and_join_the_table_in_one_version_with_the_position(
    kit: Kit, history: TableHistory, root: Path
) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1, 2], name=["a", "b"]))
    before = loaded(history)
    rest = write(root, SECOND, file_name="rest", id=[2], name=["b"])
    version = before.append(replacing(2, SECOND, before.logged_files(), rest, write(root, SECOND, id=[10], name=["c"])))
    after = loaded(history)
    assert (after.version, version) == (before.version + 1, after.version)
    assert after.position == Position(seq=2, attempt_token=attempt_token(SECOND))
    assert ids(kit, root) == [2, 10]
    assert after.rows() == 2


def test_the_history_names_the_files_that_were_replaced(history: TableHistory, root: Path) -> None:
    old, new = write(root, FIRST, id=[1], name=["a"]), write(root, SECOND, id=[2], name=["b"])
    publish(history, 1, FIRST, old)
    version = loaded(history).append(replacing(2, SECOND, loaded(history).logged_files(), new))
    commit = history.commit_at(version)
    assert commit is not None
    assert commit.operation == REPLACES_ROWS
    assert [*commit.removed] == [old.path]
    assert [file.path for file in commit.added] == [new.path]
    assert commit.position == Position(seq=2, attempt_token=attempt_token(SECOND))


def test_all_rows_may_leave_without_any_new_file(kit: Kit, history: TableHistory, root: Path) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1], name=["a"]))
    loaded(history).append(replacing(2, SECOND, loaded(history).logged_files()))
    assert kit.rows(root) == []
    assert loaded(history).position.seq == 2
    publish(history, 3, THIRD, write(root, THIRD, id=[3], name=["c"]))
    assert ids(kit, root) == [3]


def test_an_append_without_files_moves_the_position(kit: Kit, history: TableHistory, root: Path) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1], name=["a"]))
    publish(history, 2, SECOND)
    assert loaded(history).position == Position(seq=2, attempt_token=attempt_token(SECOND))
    assert ids(kit, root) == [1]


def test_other_files_stay(kit: Kit, history: TableHistory, root: Path) -> None:
    kept, gone = (write(root, FIRST, file_name=name, id=[id], name=[name]) for id, name in ((1, "kept"), (2, "gone")))
    publish(history, 1, FIRST, kept, gone)
    found = [file for file in loaded(history).logged_files() if file.path == gone.path]
    loaded(history).append(replacing(2, SECOND, found))
    assert ids(kit, root) == [1]


def test_replacing_on_a_stale_snapshot_conflicts(kit: Kit, history: TableHistory, root: Path) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1], name=["a"]))
    stale = loaded(history)
    publish(history, 2, SECOND, write(root, SECOND, id=[2], name=["b"]))
    with pytest.raises(PublishConflict):
        stale.append(
            replacing(2, SECOND, stale.logged_files(), write(root, SECOND, file_name="late", id=[3], name=["c"]))
        )
    assert ids(kit, root) == [1, 2]


def test_a_missing_file_halts_it_and_replaces_nothing(kit: Kit, history: TableHistory, root: Path) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1], name=["a"]))
    missing = write(root, SECOND, id=[2], name=["b"])
    (root / missing.path).unlink()
    with pytest.raises(PublishHalted, match="does not exist"):
        loaded(history).append(replacing(2, SECOND, loaded(history).logged_files(), missing))
    assert ids(kit, root) == [1]


def test_a_partitioned_tables_files_are_replaced(kit: Kit, root: Path) -> None:
    sink = kit.sink(root, partition_by=["name"])
    sink.ensure_schema(SCHEMA)
    history = sink.history  # type: ignore[attr-defined] # of a `TableSink`
    old = write(root, FIRST, partition={"name": "a b"}, folder="name=a b", id=[1, 2])
    publish(history, 1, FIRST, old)
    rest = write(root, SECOND, partition={"name": "a b"}, folder="name=a b", id=[2])
    loaded(history).append(replacing(2, SECOND, loaded(history).logged_files(), rest))
    assert kit.rows(root) == [{"id": 2, "name": "a b"}]


def test_columns_added_meanwhile_are_null_in_the_rows_that_stay(kit: Kit, history: TableHistory, root: Path) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1, 2], name=["a", "b"]))
    kit.sink(root).ensure_schema(SCHEMA.append(pa.field("score", pa.float64())))
    rest = write(root, SECOND, file_name="rest", id=[2], name=["b"])
    new = write(root, SECOND, id=[3], name=["c"], score=[0.5])
    loaded(history).append(replacing(2, SECOND, loaded(history).logged_files(), rest, new))
    assert sorted(kit.rows(root), key=lambda row: row["id"]) == [
        {"id": 2, "name": "b", "score": None},
        {"id": 3, "name": "c", "score": 0.5},
    ]


def test_exactly_one_of_concurrent_replacements_on_one_version_succeeds(
    kit: Kit, history: TableHistory, root: Path
) -> None:
    publish(history, 1, FIRST, write(root, FIRST, id=[1], name=["x"]))
    for seq in range(2, ROUNDS + 2):
        attempt_id = f"01K0{seq:022d}"
        file = write(root, attempt_id, id=[seq], name=["x"])
        snapshots = [loaded(history) for _ in range(THREADS)]
        changes = [replacing(seq, attempt_id, table.logged_files(), file) for table in snapshots]
        raised = at_once(
            *[
                lambda table=table, change=change: table.append(change)
                for table, change in zip(snapshots, changes, strict=True)
            ]
        )
        assert sorted(type(error).__name__ for error in raised) == ["NoneType"] + ["PublishConflict"] * (THREADS - 1)
        assert ids(kit, root) == [seq]

"""Delta's log over time: the position must survive checkpoints, clean-ups and incomplete commits."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from os import utime
from pathlib import Path

import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError
from tests.conformance.sinks.kit import FIRST, SCHEMA, DeltaKit, append, loaded, write

from penstock.errors import PublishConflict, PublishHalted, TableError, TemporaryError
from penstock.sinks.manifest import attempt_token
from penstock.sinks.sink import Position, Sink

DEADLINE_SECONDS = 180.0
LATE = f"01K0{'9' * 22}"  # an attempt that has no other file
LONG_AGO = (datetime.now(tz=UTC) - timedelta(days=90)).timestamp()


@pytest.fixture
def sink(root: Path) -> Sink:
    sink = DeltaKit().sink(root)
    sink.ensure_schema(SCHEMA)
    return sink


def publish(sink: Sink, root: Path, *seqs: int) -> None:
    for seq in seqs:
        attempt_id = f"01K0{seq:022d}"
        loaded(sink).append(append(seq, attempt_id, write(root, attempt_id, id=[seq], name=["x"])))


def ids(root: Path) -> list[int]:
    return sorted(row["id"] for row in DeltaKit().rows(root))


def test_the_position_survives_a_checkpoint_and_a_log_cleanup(sink: Sink, root: Path) -> None:
    publish(sink, root, *range(1, 6))
    table = DeltaTable(str(root))
    table.create_checkpoint()
    publish(sink, root, 6)
    for entry in (root / "_delta_log").glob("*.json"):
        utime(entry, (LONG_AGO, LONG_AGO))
    DeltaTable(str(root)).create_checkpoint()
    DeltaTable(str(root)).cleanup_metadata()
    assert not (root / "_delta_log" / f"{1:020d}.json").exists(), "nothing was cleaned up"
    assert loaded(sink).position == Position(seq=6, attempt_token=attempt_token(f"01K0{6:022d}"))
    publish(sink, root, 7)
    assert ids(root) == [1, 2, 3, 4, 5, 6, 7]


def test_a_snapshot_from_before_a_log_cleanup_still_conflicts(sink: Sink, root: Path) -> None:
    publish(sink, root, 1)
    stale = loaded(sink)
    publish(sink, root, *range(2, 6))
    for entry in (root / "_delta_log").glob("*.json"):
        utime(entry, (LONG_AGO, LONG_AGO))
    DeltaTable(str(root)).create_checkpoint()
    DeltaTable(str(root)).cleanup_metadata()
    with pytest.raises(PublishConflict):
        stale.append(append(2, LATE, write(root, LATE, id=[2], name=["x"])))
    assert ids(root) == [1, 2, 3, 4, 5]


def test_a_snapshot_from_before_a_compaction_conflicts_and_the_next_one_does_not(sink: Sink, root: Path) -> None:
    publish(sink, root, 1, 2)
    stale = loaded(sink)
    DeltaTable(str(root)).optimize.compact()
    with pytest.raises(PublishConflict):
        stale.append(append(3, LATE, write(root, LATE, id=[3], name=["x"])))
    publish(sink, root, 3)
    assert loaded(sink).position.seq == 3
    assert ids(root) == [1, 2, 3]


def test_positions_stay_correct_across_automatic_checkpoints(sink: Sink, root: Path) -> None:
    DeltaTable(str(root)).alter.set_table_properties({"delta.checkpointInterval": "3"})
    publish(sink, root, *range(1, 11))
    assert list((root / "_delta_log").glob("*.checkpoint.parquet")), "no checkpoint was made"
    assert loaded(sink).position.seq == 10
    assert ids(root) == list(range(1, 11))


def test_a_commit_truncated_by_a_power_loss_is_ignored(sink: Sink, root: Path) -> None:
    """The log's file exists and is empty: the version is used, the position has not moved."""
    publish(sink, root, 1)
    (root / "_delta_log" / f"{2:020d}.json").touch()
    assert loaded(sink).position.seq == 1
    publish(sink, root, 2)
    assert ids(root) == [1, 2]


def test_an_unreadable_log_is_reported_in_one_line(sink: Sink, root: Path) -> None:
    (root / "_delta_log" / f"{1:020d}.json").write_text("{nonsense")
    with pytest.raises(TableError) as refusal:
        sink.load()
    assert "cannot be read" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_table_whose_creator_died_before_its_first_commit_can_be_created(root: Path) -> None:
    (root / "_delta_log").mkdir(parents=True)
    sink = DeltaKit().sink(root)
    assert sink.load() is None
    sink.ensure_schema(SCHEMA)
    assert loaded(sink).position.seq == 0


def test_files_and_position_are_committed_in_one_log_entry(sink: Sink, root: Path) -> None:
    publish(sink, root, 1)
    entry = (root / "_delta_log" / f"{1:020d}.json").read_text()
    actions = [json.loads(line) for line in entry.splitlines()]
    assert sorted(key for action in actions for key in action) == ["add", "commitInfo", "txn", "txn"]
    assert json.loads(next(action["add"]["stats"] for action in actions if "add" in action))["numRecords"] == 1


def test_a_concurrent_log_cleanup_by_another_program_loses_nothing(sink: Sink, root: Path) -> None:
    done = threading.Event()

    def clean_up() -> int:
        rounds = 0
        while not done.is_set() or not rounds:
            for entry in (root / "_delta_log").glob("*.json"):
                utime(entry, (LONG_AGO, LONG_AGO))
            table = DeltaTable(str(root))
            table.create_checkpoint()
            table.cleanup_metadata()
            rounds += 1
        return rounds

    def publish_all() -> None:
        try:
            for seq in range(1, 41):
                for _ in range(20):
                    try:
                        publish(sink, root, seq) if loaded(sink).position.seq < seq else None
                        break
                    except (PublishConflict, TableError):
                        continue
        finally:
            done.set()

    with ThreadPoolExecutor(2) as pool:
        publishing, cleaning = pool.submit(publish_all), pool.submit(clean_up)
        publishing.result(DEADLINE_SECONDS)
        assert cleaning.result(DEADLINE_SECONDS) > 0
    assert ids(root) == list(range(1, 41))


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (OSError(28, "No space left on device"), TemporaryError),
        (DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)"), TemporaryError),
        (DeltaError("Permission denied (os error 13)"), TableError),
        (DeltaError("Read-only file system (os error 30)"), TableError),
        (OSError("connection reset"), PublishConflict),
        (DeltaError("Failed to commit transaction: 0"), PublishConflict),
    ],
    ids=str,
)
def test_commit_errors_are_classified_by_their_remedy(
    sink: Sink, root: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, raised: type[Exception]
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise fault

    table = loaded(sink)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(raised):
        table.append(append(1, FIRST, write(root, FIRST, id=[1], name=["x"])))


def test_a_commit_whose_response_was_lost_is_a_conflict_and_its_rows_are_published(
    sink: Sink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.create_write_transaction

    def losing(table: DeltaTable, *args: object, **kwargs: object) -> None:
        real(table, *args, **kwargs)  # type: ignore[arg-type]  # passed on unchanged
        raise OSError("connection reset")

    table = loaded(sink)
    file = write(root, FIRST, id=[1], name=["x"])
    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    with pytest.raises(PublishConflict):
        table.append(append(1, FIRST, file))
    assert loaded(sink).position.seq == 1
    assert ids(root) == [1]


def test_a_checkpoint_that_fails_after_the_commit_is_a_conflict_and_its_rows_are_published(
    sink: Sink, root: Path
) -> None:
    DeltaTable(str(root)).alter.set_table_properties(
        {"delta.checkpointInterval": "1"}, post_commithook_properties=PostCommitHookProperties(create_checkpoint=False)
    )
    table = loaded(sink)
    file = write(root, FIRST, id=[1], name=["x"])
    (root / "_delta_log" / f"{2:020d}.checkpoint.parquet").mkdir()
    with pytest.raises((PublishConflict, PublishHalted, TemporaryError)):
        table.append(append(1, FIRST, file))
    (root / "_delta_log" / f"{2:020d}.checkpoint.parquet").rmdir()
    assert loaded(sink).position.seq == 1
    assert ids(root) == [1]

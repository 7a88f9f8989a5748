"""Delta's log over time: the position must survive checkpoints, clean-ups and incomplete commits."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from os import utime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError
from deltalake.table import TableAlterer
from tests.conformance.sinks.kit import FIRST, PIPELINE, SCHEMA, DeltaKit, append, loaded, write

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.events import Bus
from penstock.messaging.steps import no_probe
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.sinks.manifest import attempt_token
from penstock.sinks.sink import Position, Sink
from penstock.storage.local import LocalFiles

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
        table = loaded(sink)
        version = table.append(append(seq, attempt_id, write(root, attempt_id, id=[seq], name=["x"])))
        CheckpointWriter(pipeline=PIPELINE, sink=sink.uri, bus=Bus()).after_commit(table, version, probe=no_probe)


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


def test_a_local_checkpoint_is_read_without_threads_of_arrow(sink: Sink, root: Path) -> None:
    """Such a thread may still release the file when the interpreter ends, which aborts the process."""
    publish(sink, root, 1, 2)
    DeltaTable(root).create_checkpoint()
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from penstock.sinks.delta.state import read_state\n"
        "from penstock.storage.local import LocalFiles\n"
        "def count(): return len(os.listdir('/proc/self/task'))\n"
        "before = count()\n"
        "state = read_state(LocalFiles(Path(sys.argv[1])))\n"
        "print(state.checkpoint, count() - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == [str(DeltaTable(root).version()), "0"]


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
        (OSError(13, "Permission denied"), TableError),
        (OSError(30, "Read-only file system"), TableError),
        (OSError(5, "Input/output error"), PublishConflict),
    ],
    ids=str,
)
def test_commit_errors_are_classified_by_their_remedy(
    sink: Sink, root: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, raised: type[Exception]
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise fault

    table = loaded(sink)
    file = write(root, FIRST, id=[1], name=["x"])
    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(raised):
        table.append(append(1, FIRST, file))
    monkeypatch.undo()
    assert loaded(sink).position.seq == 0


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)"), TemporaryError),
        (DeltaError("Permission denied (os error 13)"), TableError),
        (DeltaError("Read-only file system (os error 30)"), TableError),
        (OSError("connection reset"), PublishConflict),
        (DeltaError("Failed to commit transaction: 0"), PublishConflict),
    ],
    ids=str,
)
def test_errors_of_a_commit_by_the_library_are_classified_by_their_remedy(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, fault: Exception, raised: type[Exception]
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(TableAlterer, "add_columns", failing)
    with pytest.raises(raised):
        sink.ensure_schema(pa.schema([*SCHEMA, pa.field("more", pa.int64())]))


def test_a_commit_whose_response_was_lost_is_recognized(
    sink: Sink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalFiles.write_new

    def losing(files: LocalFiles, path: str, data: bytes) -> bool:
        real(files, path, data)
        raise TemporaryError("connection reset")

    table = loaded(sink)
    file = write(root, FIRST, id=[1], name=["x"])
    monkeypatch.setattr(LocalFiles, "write_new", losing)
    assert table.append(append(1, FIRST, file)) == 1
    assert loaded(sink).position.seq == 1
    assert ids(root) == [1]


def test_checkpoints_clean_up_the_log_unless_the_table_forbids_it(sink: Sink, root: Path) -> None:
    set_checkpoint_interval(root, 4)
    for keep in ("false", "true"):
        for entry in (root / "_delta_log").glob("*.json"):
            utime(entry, (LONG_AGO, LONG_AGO))
        DeltaTable(str(root)).alter.set_table_properties({"delta.enableExpiredLogCleanup": keep})
        position = loaded(sink).position.seq
        publish(sink, root, *range(position + 1, position + 5))
        assert checkpoints(root)
        assert (root / "_delta_log" / f"{1:020d}.json").exists() == (keep == "false")
    assert ids(root) == list(range(1, 9))


@pytest.mark.parametrize("commits", [1, 40])
def test_a_publish_opens_no_files_of_the_table(
    sink: Sink, root: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Its cost does not grow with the table: it reads no files, and only the commits since a checkpoint."""
    publish(sink, root, *range(1, commits + 1))
    DeltaTable(str(root)).create_checkpoint()
    file = write(root, LATE, id=[0], name=["x"])
    opened: list[str] = []
    real = LocalFiles.read

    def reading(files: LocalFiles, path: str) -> bytes:
        opened.append(path)
        return real(files, path)

    monkeypatch.setattr(LocalFiles, "read", reading)
    monkeypatch.setattr(DeltaTable, "__init__", lambda *_, **__: pytest.fail("a snapshot was opened"))
    loaded(sink).append(append(commits + 1, LATE, file))
    assert opened == ["_delta_log/_last_checkpoint"]
    assert loaded(sink).position.seq == commits + 1
    assert opened[1:] == ["_delta_log/_last_checkpoint", f"_delta_log/{commits + 1:020d}.json"]


@pytest.mark.parametrize("hint", ["{nonsense", '{"version": 2, "size": 1}', None])
def test_the_hint_of_the_last_checkpoint_may_be_wrong_or_missing(sink: Sink, root: Path, hint: str | None) -> None:
    publish(sink, root, *range(1, 4))
    DeltaTable(str(root)).create_checkpoint()
    publish(sink, root, 4)
    file = root / "_delta_log" / "_last_checkpoint"
    file.unlink() if hint is None else file.write_text(hint)
    assert loaded(sink).position == Position(seq=4, attempt_token=attempt_token(f"01K0{4:022d}"))
    publish(sink, root, 5)
    assert ids(root) == [1, 2, 3, 4, 5]


def test_a_hint_that_stayed_behind_a_log_cleanup_commits_no_number_again(sink: Sink, root: Path) -> None:
    """Another writer made a checkpoint, could not write the hint, and cleaned up."""
    publish(sink, root, 1)
    DeltaTable(str(root)).create_checkpoint()
    hint = (root / "_delta_log" / "_last_checkpoint").read_text()
    stale = loaded(sink)
    publish(sink, root, *range(2, 6))
    for entry in (root / "_delta_log").glob("*.json"):
        utime(entry, (LONG_AGO, LONG_AGO))
    DeltaTable(str(root)).create_checkpoint()
    DeltaTable(str(root)).cleanup_metadata()
    (root / "_delta_log" / "_last_checkpoint").write_text(hint)
    with pytest.raises(PublishConflict):
        stale.append(append(2, LATE, write(root, LATE, id=[2], name=["x"])))
    assert loaded(sink).position.seq == 5
    publish(sink, root, 6)
    assert ids(root) == [1, 2, 3, 4, 5, 6]


def test_a_missing_commit_makes_the_table_unreadable(sink: Sink, root: Path) -> None:
    publish(sink, root, 1, 2, 3)
    (root / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(TableError, match="has no commit 2"):
        sink.load()


def test_the_state_of_a_checkpoint_in_parts_is_that_of_all_its_parts(sink: Sink, root: Path) -> None:
    publish(sink, root, *range(1, 4))
    DeltaTable(str(root)).create_checkpoint()
    log = root / "_delta_log"
    whole = log / f"{3:020d}.checkpoint.parquet"
    rows = pq.read_table(whole)
    whole.unlink()
    half = rows.num_rows // 2
    for number, part in enumerate((rows.slice(0, half), rows.slice(half)), start=1):
        pq.write_table(part, log / f"{3:020d}.checkpoint.{number:010d}.{2:010d}.parquet")
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    assert loaded(sink).position.seq == 3
    assert loaded(sink).schema == SCHEMA
    (log / f"{3:020d}.checkpoint.{2:010d}.{2:010d}.parquet").unlink()
    with pytest.raises(TableError):
        sink.load()


def set_checkpoint_interval(root: Path, commits: int) -> None:
    """Set the property as the table's next version, without a checkpoint of it."""
    DeltaTable(str(root)).alter.set_table_properties(
        {"delta.checkpointInterval": str(commits)},
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
    )


def checkpoints(root: Path) -> list[int]:
    """Return the versions that have a checkpoint."""
    return sorted(int(path.name.split(".")[0]) for path in (root / "_delta_log").glob("*.checkpoint.parquet"))

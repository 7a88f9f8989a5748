"""The publish loop on doubles: the batches of each commit, and the end of the loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.errors import PublishConflict, PublishHalted, TableError, TemporaryError
from penstock.events import BatchPublished, Bus, Event, LedgerRolledBack
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRecord, BatchRow
from penstock.messaging.steps import Step
from penstock.pipeline import publish_chunk
from penstock.pipeline.publish import CONFLICTS_MAX, Published, publish, rows_schema
from penstock.sinks.manifest import DataFile, attempt_token, encode
from penstock.sinks.schema import encode as encode_schema
from penstock.sinks.sink import Append, Position
from penstock.testing import FakeClock

PIPELINE = "file:///lake/clicks"
SCHEMA = pa.schema([("id", pa.int64())])


def batch(
    seq: int, *, files: int = 1, schema: pa.Schema = SCHEMA, partition: Mapping[str, str] | None = None
) -> BatchRow:
    named = [
        DataFile(
            path=f"data/a{seq}/r0/{number}",
            size_bytes=1,
            rows=1,
            modified_at=0.0,
            partition_values=dict(partition or {}),
        )
        for number in range(files)
    ]
    return BatchRow(
        pipeline=PIPELINE,
        seq=seq,
        attempt_id=f"a{seq}",
        record=BatchRecord(
            manifest=encode(named) if files else "",
            quarantine_manifest="",
            rows=files,
            lines_quarantined=0,
            bytes=1,
            stage_seconds={},
        ),
        table_schema=encode_schema(schema),
        objects=1,
        committed_at=0.0,
        worker="w",
    )


class FakeLedger:
    """Batches, and a record of the positions from which they were read."""

    def __init__(self, *batches: BatchRow) -> None:
        self.rows = list(batches)
        self.reads_after: list[int] = []

    def batches(self, pipeline: str, *, after_seq: int, limit: int) -> Sequence[BatchRow]:
        self.reads_after.append(after_seq)
        return [row for row in self.rows if row.seq > after_seq][:limit]

    def batch(self, pipeline: str, seq: int) -> BatchRow | None:
        return next((row for row in self.rows if row.seq == seq), None)


@dataclass
class FakeTable:
    """A sink that is its own newest snapshot. Each append calls ``disturb``, which may raise or change the table."""

    position: Position = field(default_factory=lambda: Position(seq=0, attempt_token=None))
    schema: pa.Schema = SCHEMA
    version: int = 0
    exists: bool = True
    appended: list[Append] = field(default_factory=list)
    disturb: Callable[["FakeTable"], None] = lambda table: None
    uri: str = "file:///lake/clicks"

    def load(self) -> "FakeTable | None":
        return self if self.exists else None

    def ensure_schema(self, schema: pa.Schema) -> None:
        self.exists = True
        self.schema = schema
        self.version += 1

    def append(self, append: Append) -> int:
        self.disturb(self)
        self.appended.append(append)
        self.position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        self.version += 1
        return self.version


def run(ledger: FakeLedger, table: FakeTable, *, emitted: list[object] | None = None, **options: Any) -> Published:
    note = emitted.append if emitted is not None else lambda _: None
    return publish(
        cast(Ledger, ledger),
        table,
        pipeline=PIPELINE,
        manifest_of=lambda row: row.record.manifest,
        schema_of=lambda row: rows_schema(row, partition_by=()),
        bus=Bus(cast(Callable[[Event], None], note)),
        probe=note,
        step=Step.ROWS_PUBLISHED,
        clock=FakeClock(auto_advance=True),
        **options,
    )


def at(seq: int) -> Position:
    return Position(seq=seq, attempt_token=attempt_token(f"a{seq}"))


def test_all_waiting_batches_go_into_one_commit_under_the_last_one() -> None:
    table = FakeTable(position=at(1))
    done = run(FakeLedger(*map(batch, range(1, 5))), table)
    assert [(a.seq, a.attempt_id, [f.path for f in a.files]) for a in table.appended] == [
        (4, "a4", ["data/a2/r0/0", "data/a3/r0/0", "data/a4/r0/0"])
    ]
    assert done == Published(position=at(4), read_to=at(4), table_version=1, batches=3)


def test_each_step_is_reported_in_order() -> None:
    emitted: list[object] = []
    run(FakeLedger(batch(1)), FakeTable(), emitted=emitted)
    assert emitted == [
        Step.PUBLISHING,
        Step.ROWS_PUBLISHED,
        BatchPublished(pipeline=PIPELINE, sink="file:///lake/clicks", seq=1, table_version=1, seconds=0.0),
    ]


def test_a_commit_ends_at_a_batch_with_files() -> None:
    table = FakeTable()
    ledger = FakeLedger(batch(1), batch(2, files=0), batch(3), batch(4, files=0))
    done = run(ledger, table)
    assert [append.seq for append in table.appended] == [3]
    assert (done.position, done.read_to) == (at(3), at(4))


def test_batches_without_files_make_no_commit() -> None:
    table = FakeTable(exists=False)
    assert run(FakeLedger(*(batch(seq, files=0) for seq in range(1, 251))), table).read_to == at(250)
    assert not table.exists


def test_a_commit_has_no_more_files_than_the_limit_unless_one_batch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_chunk, "FILES_MAX", 5)
    table = FakeTable()
    run(FakeLedger(batch(1, files=3), batch(2, files=2), batch(3, files=9), batch(4, files=0), batch(5)), table)
    assert [(append.seq, len(append.files)) for append in table.appended] == [(2, 5), (3, 9), (5, 1)]


def test_batches_read_by_the_previous_publish_are_not_read_again() -> None:
    table = FakeTable()
    ledger = FakeLedger(batch(1), *(batch(seq, files=0) for seq in range(2, 6)))
    done = run(ledger, table)
    ledger.reads_after.clear()
    ledger.rows.append(batch(6))
    run(ledger, table, after=done)
    assert ledger.reads_after[0] == 4, "it reads from the last batch that was read"
    assert [append.seq for append in table.appended] == [1, 6]


def test_a_previous_read_does_not_count_at_another_position() -> None:
    table = FakeTable(position=at(2))
    after = Published(position=at(1), read_to=at(4), table_version=0, batches=0)
    run(FakeLedger(*map(batch, range(1, 5))), table, after=after)
    assert [append.seq for append in table.appended] == [4]
    assert len(table.appended[0].files) == 2


def test_batch_numbers_reused_after_a_failover_are_read_again() -> None:
    """The lost batches had no files for this table, so the end of the table does not show the failover."""
    table, emitted = FakeTable(position=at(3)), list[object]()
    ledger = FakeLedger(*map(batch, range(1, 4)), batch(4, files=0), batch(5, files=0))
    before = run(ledger, table)
    ledger.rows[3:] = [replace(batch(4), attempt_id="b4"), replace(batch(5), attempt_id="b5")]
    after = run(ledger, table, after=before, emitted=emitted)
    assert [file.path for append in table.appended for file in append.files] == ["data/a4/r0/0", "data/a5/r0/0"]
    assert after.position == Position(seq=5, attempt_token=attempt_token("b5"))
    assert emitted[0] == LedgerRolledBack(pipeline=PIPELINE, sink=table.uri, missing_seq=5)


def test_a_rolled_back_ledger_is_reported_before_it_reuses_numbers() -> None:
    table, emitted = FakeTable(position=at(1)), list[object]()
    ledger = FakeLedger(batch(1), batch(2, files=0), batch(3, files=0))
    before = run(ledger, table)
    del ledger.rows[2:]
    after = run(ledger, table, after=before, emitted=emitted)
    assert (after.position, after.read_to) == (at(1), at(2))
    assert emitted == [LedgerRolledBack(pipeline=PIPELINE, sink=table.uri, missing_seq=3)]
    run(ledger, table, after=after, emitted=emitted)
    assert len(emitted) == 1


def test_a_previous_read_does_not_count_for_another_batch_with_the_same_number() -> None:
    table = FakeTable(position=at(1))
    before = Published(position=Position(seq=1, attempt_token=7), read_to=at(3), table_version=0, batches=0)
    run(FakeLedger(*map(batch, range(1, 4))), table, after=before)
    assert [file.path for append in table.appended for file in append.files] == ["data/a2/r0/0", "data/a3/r0/0"]


def test_a_gap_in_the_ledger_halts_publishing() -> None:
    table = FakeTable()
    with pytest.raises(PublishHalted, match="batch 3 but no batch 2"):
        run(FakeLedger(batch(1), batch(3)), table)
    assert table.appended == []


def test_a_table_without_the_token_of_its_batch_halts_publishing() -> None:
    with pytest.raises(PublishHalted, match="another batch with that number"):
        run(FakeLedger(batch(1)), FakeTable(position=Position(seq=1, attempt_token=None)))


def test_the_table_is_loaded_again_after_a_conflict() -> None:
    """The commit succeeded, and only the response was lost."""

    def lose_the_response(table: FakeTable) -> None:
        table.disturb = lambda _: None
        table.append(Append(seq=2, attempt_id="a2", files=[]))
        table.appended.clear()
        raise PublishConflict("no reply")

    table = FakeTable(disturb=lose_the_response)
    assert run(FakeLedger(batch(1), batch(2)), table).position.seq == 2
    assert table.appended == []


def test_publishing_stops_after_too_many_conflicts() -> None:
    tries: list[int] = []

    def always(table: FakeTable) -> None:
        tries.append(1)
        raise PublishConflict("another writer")

    with pytest.raises(TemporaryError, match="another writer"):
        run(FakeLedger(batch(1)), FakeTable(disturb=always))
    assert len(tries) == CONFLICTS_MAX + 1


def test_the_table_is_created_for_the_first_files() -> None:
    table = FakeTable(exists=False)
    assert run(FakeLedger(batch(1)), table).table_version == 2
    assert table.exists


def test_columns_are_added_only_if_some_are_missing() -> None:
    wider = SCHEMA.append(pa.field("x", pa.string()))
    table = FakeTable(schema=wider)
    run(FakeLedger(batch(1)), table)
    assert table.version == 1
    run(FakeLedger(batch(1), batch(2, schema=wider.append(pa.field("y", pa.string())))), table)
    assert table.version == 3


def test_a_table_that_advanced_while_columns_were_added_is_loaded_again() -> None:
    class Racing(FakeTable):
        def ensure_schema(self, schema: pa.Schema) -> None:
            super().ensure_schema(schema)
            self.position = at(1)

    table = Racing(exists=False)
    assert run(FakeLedger(batch(1)), table).position.seq == 1
    assert table.appended == []


def test_a_batch_with_other_partitions_creates_no_table() -> None:
    table = FakeTable(exists=False)
    with pytest.raises(TableError, match="partitioned by day and not by nothing"):
        run(FakeLedger(batch(1, partition={"day": "2024-01-01"})), table)
    assert not table.exists


def test_a_batch_with_another_number_of_buckets_creates_no_table() -> None:
    row = batch(1, partition={"bucket(16, user)": "3", "day(ts)": "2024-01-01"})
    with pytest.raises(
        TableError, match=r"by bucket\(16, user\), day\(ts\) and not by bucket\(8, user\), day\(ts\); ask"
    ):
        rows_schema(row, partition_by=("bucket(8, user)", "day(ts)"))
    assert rows_schema(row, partition_by=("bucket(16, user)", "day(ts)")) == SCHEMA


def test_the_schema_of_rows_can_ignore_partitions() -> None:
    assert rows_schema(batch(1, partition={"day": "x"}), partition_by=None) == SCHEMA

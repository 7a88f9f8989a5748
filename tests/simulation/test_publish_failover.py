"""Publishing with a ledger that fails over to a replica without its last commits, explored completely.

The real `publish` runs on doubles of ledger and tables. Every history of a few actions is tried: commits with and
without files for either table, failovers that lose any number of batches, and publishes by two processes, each with its
memory of previous reads. A failover may also happen between any two reads of one publish, with new commits at once.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import pyarrow as pa
import pytest

from penstock.errors import PublishHalted
from penstock.events import Bus, Event, LedgerRolledBack
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRecord, BatchRow
from penstock.messaging.steps import Step
from penstock.pipeline import publish_chunk
from penstock.pipeline.publish import Published, publish
from penstock.pipeline.publish_chunk import START, ManifestOf, position_of
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.sink import Append, Position
from penstock.testing import FakeClock

BATCHES_MAX = 2  # in the ledger at a time
COMMITS_MAX = 4  # including lost ones
FAILOVERS_MAX = 1
READS_MAX = 5  # of one publish, with a possible failover before each
STATES_MIN, STATES_MAX = 3_000, 80_000
SCHEMA = pa.schema([("id", pa.int64())])
FILES = ((False, False), (True, False), (False, True), (True, True))  # for the table, for the quarantine table
_MANIFESTS = [
    encode([DataFile(path=f"data/{n}/r0/0", size_bytes=1, rows=1, modified_at=0.0, partition_values={})])
    for n in range(COMMITS_MAX)
]


MANIFEST_OF: tuple[ManifestOf, ManifestOf] = (
    lambda row: row.record.manifest,
    lambda row: row.record.quarantine_manifest,
)


class Batch(NamedTuple):
    id: int
    files: tuple[bool, bool]


class Shown(NamedTuple):
    position: Position = START
    ids: tuple[int, ...] = ()


class State(NamedTuple):
    ledger: tuple[Batch, ...] = ()
    committed: int = 0
    failovers: int = 0
    tables: tuple[Shown, Shown] = (Shown(), Shown())
    memories: tuple[tuple[Published | None, Published | None], ...] = ((None, None), (None, None))


class FakeLedger:
    """The batches of a state. It fails over before its ``lost_at``-th read."""

    def __init__(self, batches: Sequence[Batch], after: Sequence[Batch] | None, lost_at: int) -> None:
        self.held, self.after, self.reads_left = batches, after, lost_at

    def _read(self) -> Sequence[BatchRow]:
        if self.after is not None:
            self.reads_left -= 1
            if self.reads_left == 0:
                self.held = self.after
        return [row_of(seq, one) for seq, one in enumerate(self.held, 1)]

    def batches(self, _pipeline: str, *, after_seq: int, limit: int) -> Sequence[BatchRow]:
        return [row for row in self._read() if row.seq > after_seq][:limit]

    def batch(self, _pipeline: str, seq: int) -> BatchRow | None:
        return next((row for row in self._read() if row.seq == seq), None)


class FakeTable:
    """A table without a concurrent publisher."""

    uri = "table"
    version = 0
    schema = SCHEMA

    def __init__(self, shown: Shown) -> None:
        self.position, self.ids = shown

    def load(self) -> "FakeTable":
        return self

    def ensure_schema(self, schema: pa.Schema) -> None:
        raise AssertionError(schema)

    def append(self, append: Append) -> int:
        self.ids = (*self.ids, *(int(file.path.split("/")[1]) for file in append.files))
        self.position = position_of(row_of(append.seq, Batch(int(append.attempt_id), (False, False))))
        return 1


def row_of(seq: int, batch: Batch) -> BatchRow:
    rows, quarantined = (_MANIFESTS[batch.id] if has else "" for has in batch.files)
    return BatchRow(
        pipeline="p",
        seq=seq,
        attempt_id=str(batch.id),
        record=BatchRecord(
            manifest=rows, quarantine_manifest=quarantined, rows=1, lines_quarantined=0, bytes=1, stage_seconds={}
        ),
        table_schema=None,
        objects=1,
        committed_at=0.0,
        worker="w",
    )


def moves(s: State) -> Iterator[State]:
    yield from _commits(s)
    for lost in _losses(s):
        yield s._replace(ledger=lost, failovers=s.failovers + 1)
    for process in (0, 1):
        if process and s.memories[0] == s.memories[1]:
            continue  # the same moves, by symmetry
        yield _published(s, process, None, 0)
        for lost in _losses(s):
            again = lost + tuple(
                Batch(id, (True, True))
                for id in range(s.committed, min(COMMITS_MAX, s.committed + len(s.ledger) - len(lost)))
            )
            for read in range(1, READS_MAX + 1):
                yield _published(s, process, again, read)


def _commits(s: State) -> Iterator[State]:
    if len(s.ledger) < BATCHES_MAX and s.committed < COMMITS_MAX:
        for files in FILES:
            yield s._replace(ledger=(*s.ledger, Batch(s.committed, files)), committed=s.committed + 1)


def _losses(s: State) -> Iterator[tuple[Batch, ...]]:
    if s.failovers < FAILOVERS_MAX:
        for left in range(len(s.ledger)):
            yield s.ledger[:left]


def _published(s: State, process: int, after: tuple[Batch, ...] | None, read: int) -> State:
    """Publish to both tables by one process, as workers do. A table that halts prevents the next."""
    ledger = FakeLedger(s.ledger, after, read)
    tables = [FakeTable(shown) for shown in s.tables]
    memory = list(s.memories[process])
    emitted: list[Event] = []
    halted = False
    try:
        for number, table in enumerate(tables):
            memory[number] = publish(
                cast(Ledger, ledger),
                table,
                pipeline="p",
                manifest_of=MANIFEST_OF[number],
                schema_of=lambda _: SCHEMA,
                bus=Bus(emitted.append),
                probe=lambda _: None,
                step=Step.ROWS_PUBLISHED,
                clock=FakeClock(auto_advance=True),
                after=memory[number],
            )
    except PublishHalted:
        halted = True
    first, second = (Shown(table.position, table.ids) for table in tables)
    held = tuple(ledger.held)
    if not halted and held == s.ledger:
        for number, table in enumerate(tables):
            assert set(table.ids) == {one.id for one in held if one.files[number]}, "not all batches are shown"
        reported = sum(isinstance(event, LedgerRolledBack) for event in emitted)
        lost = [
            memory
            for memory, (position, _) in zip(s.memories[process], s.tables, strict=True)
            if memory is not None and memory.position == position and not _has(held, memory.read_to)
        ]
        assert reported == len(lost), "a failover was not reported"
    memories = list(s.memories)
    memories[process] = (_bare(memory[0]), _bare(memory[1]))
    failovers = s.failovers + (held != s.ledger)
    committed = max([s.committed, *(one.id + 1 for one in held)])
    return s._replace(
        ledger=held, tables=(first, second), memories=tuple(memories), failovers=failovers, committed=committed
    )


def _bare(memory: Published | None) -> Published | None:
    """Remove the facts of the call itself, so that states that differ only in these are equal."""
    return None if memory is None else replace(memory, batches=0, table_version=0)


def _has(ledger: Sequence[Batch], place: Position) -> bool:
    return place == START or place in [position_of(row_of(seq, one)) for seq, one in enumerate(ledger, 1)]


def violation(s: State) -> str | None:
    """Check that a table shows the ledger's batches up to its position, unless its position halts publishers."""
    for number, (position, ids) in enumerate(s.tables):
        expected = {one.id for one in s.ledger[: position.seq] if one.files[number]}
        if _has(s.ledger, position) and (set(ids) != expected or len(set(ids)) != len(ids)):
            return "a table that agrees with the ledger does not show its batches, each once"
    return None


def explore() -> tuple[int, str | None]:
    seen, waiting = {State()}, deque([State()])
    while waiting:
        for state in moves(waiting.popleft()):
            if state in seen:
                continue
            if (bad := violation(state)) is not None:
                return len(seen), bad
            seen.add(state)
            assert len(seen) < STATES_MAX, "a model that grew by accident"
            waiting.append(state)
    return len(seen), None


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_chunk, "PAGE_BATCHES", 2)


def test_no_history_of_failovers_hides_a_batch_unreported() -> None:
    states, bad = explore()
    assert bad is None
    sys.stdout.write(f"\n{states:,} states\n")
    assert states >= STATES_MIN


def test_a_memory_of_batch_numbers_alone_hides_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_chunk, "_is_at", lambda batch, place: batch.seq == place.seq)
    with pytest.raises(AssertionError, match=r"not all batches are shown|not reported"):
        explore()

"""Make committed batches visible in the table, in order and each exactly once.

Publishing keeps no state, and any number of processes may publish concurrently. Correctness rests on the table: its
position is read from a snapshot, and files are committed on exactly that snapshot or not at all. So after a conflict,
or a commit whose outcome is unknown, nothing needs repair: load the table again.

A writer that puts without a condition may replace a commit afterwards. Before each commit, a
`penstock.pipeline.overwritten.CommitWatch` checks the log for that, and lost batches are published again.
"""

import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import cast

import pyarrow as pa

from penstock.errors import PublishConflict, PublishHalted, TableError, TemporaryError
from penstock.events import BatchPublished, Bus, LedgerRolledBack
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.backoff import backoff_seconds
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.pipeline.merging.merger import MergeCounts, RowMerger
from penstock.pipeline.merging.tombstones import merge_batch
from penstock.pipeline.overwritten import CommitWatch, Inspection
from penstock.pipeline.publish_chunk import (
    START,
    BatchLost,
    CommittedBatches,
    ManifestOf,
    PublishChunk,
    ReplacedBy,
    position_of,
)
from penstock.pipeline.replacing import RowReplacer
from penstock.pipeline.republish import Restorer
from penstock.sinks.manifest import DataFile, decode, is_empty
from penstock.sinks.schema import additions
from penstock.sinks.schema import decode as schema_decode
from penstock.sinks.sink import (
    Append,
    LoadedTable,
    LoggedFile,
    Position,
    RemovalCheck,
    Sink,
    TableSink,
    TableSnapshot,
    VersionedTable,
)

CONFLICTS_MAX = 20  # in a row
CONFLICT_BASE_SECONDS = 0.02
CONFLICT_CAP_SECONDS = 2.0

SchemaOf = Callable[[BatchRow], pa.Schema]
EmptyTo = Callable[[Position], Position]

_SYSTEM_CLOCK = SystemClock()  # stateless


def _nothing(_: BatchRow) -> Collection[str]:
    return ()


def _none_known(position: Position) -> Position:
    return position


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of one `publish`. Pass it to the next call to avoid reading the same batches again.

    Both positions name a batch by number and attempt, since a ledger that failed over to a replica may reuse numbers.
    """

    position: Position  # the table's position: the last visible batch that has files
    read_to: Position  # no batch after ``position`` up to this one has files for the sink
    table_version: int | None  # None: no table yet
    batches: int  # made visible by this call

    @property
    def visible_to(self) -> int:
        """The number of the last batch up to which the table shows everything."""
        return max(self.position.seq, self.read_to.seq)


def publish(
    ledger: Ledger,
    sink: Sink,
    *,
    pipeline: str,
    manifest_of: ManifestOf,
    schema_of: SchemaOf,
    bus: Bus,
    probe: Probe,
    step: Step,
    clock: Clock = _SYSTEM_CLOCK,
    after: Published | None = None,
    watch: CommitWatch | None = None,
    replaces: ReplacedBy = _nothing,
    merges: bool = False,
    empty_to: EmptyTo = _none_known,
    checkpoints: CheckpointWriter | None = None,
) -> Published:
    """Make every committed batch visible in the sink.

    Args:
        empty_to: Returns, for a position of the table, the last batch after it up to which no batch changes the sink,
            as an earlier process found; the position itself if none is known.
        replaces: Returns the addresses of the objects whose earlier rows leave the table with a batch.
        merges: Rows of batches with a merge are merged by key; otherwise their files are added as they are.
        watch: The check for overwritten commits, if other writers may overwrite commits of this sink.
        checkpoints: The writer of the sink's checkpoints in this process; None: one for this call.
        step: Reported to ``probe`` after each commit to the table.
        after: An earlier result for the same ledger, pipeline and sink.

    Raises:
        TableError: The table is not one that Penstock can write.
        PublishHalted: Table and ledger contradict each other.
        TemporaryError: Other writers kept committing first.
    """
    target = _PublishTarget(
        sink=sink,
        batches=CommittedBatches(
            ledger=ledger, pipeline=pipeline, manifest_of=manifest_of, replaces=replaces, merges=merges
        ),
        schema_of=schema_of,
        replacer=RowReplacer(sink=cast(TableSink, sink), probe=probe),
        merger=RowMerger(sink=cast(TableSink, sink), probe=probe),
        empty_to=empty_to,
        probe=probe,
    )
    restorer = None
    if watch is not None:
        restorer = Restorer(watch=watch, pipeline=pipeline, bus=bus, probe=probe, clock=clock)
    checkpoints = checkpoints or CheckpointWriter(pipeline=pipeline, sink=sink.uri, bus=bus)
    publisher = _Publisher(target=target, restorer=restorer, bus=bus, clock=clock, after=after)
    while (committed := publisher.next_commit()) is not None:
        probe(step)
        bus.emit(committed)
        checkpoints.after_commit(publisher.snapshot, committed.table_version, probe=probe)
    return publisher.published


def rows_schema(batch: BatchRow, *, partition_by: Sequence[str] | None) -> pa.Schema:
    """Return the table's columns as of this batch.

    Also called before the table is created: its partitioning must match that of the batches already written. Raises
    `TableError` if it does not.
    """
    written = next((list(file.partition_values) for file in decode(batch.record.manifest)), None)
    if partition_by is not None and written is not None and written != list(partition_by):
        raise TableError(
            f"Batch {batch.seq} of {batch.pipeline} is committed, and partitioned by {', '.join(written) or 'nothing'} "
            f"and not by {', '.join(partition_by) or 'nothing'}; ask for the same columns (--partition-by)."
        )
    if batch.table_schema is None and is_empty(batch.record.manifest):
        return pa.schema([])  # it only replaces rows, before any batch of the pipeline had one
    if batch.table_schema is None:
        raise PublishHalted(f"Batch {batch.seq} of {batch.pipeline} has files and no schema: the ledger is damaged.")
    return schema_decode(batch.table_schema)


def check_tip(ledger: Ledger, table: LoadedTable | None, *, pipeline: str, where: str) -> Position:
    """Return the table's position. Raise `PublishHalted` if the ledger does not have the batch that it names."""
    if table is None:
        return START
    position = table.position
    if position.seq:
        tip = ledger.batch(pipeline, position.seq)
        if tip is None or position_of(tip) != position:
            raise PublishHalted(
                f"The table {where} shows batch {position.seq}, and the ledger has "
                f"{'no such batch' if tip is None else 'another batch with that number'}: the ledger was rolled back, "
                f"or belongs to another table. Restore the ledger that was used last (--data-dir); if it is lost, "
                f"`penstock admin repair` imports the batches from the table."
            )
    return position


def wait_after_conflict(clock: Clock, conflicts: int) -> None:
    """Wait before the next commit to a table, after this many conflicts in a row with other writers."""
    seconds = backoff_seconds(
        attempt=conflicts,
        base_seconds=CONFLICT_BASE_SECONDS,
        cap_seconds=CONFLICT_CAP_SECONDS,
        random=random.random,
    )
    clock.wait(threading.Event(), seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishTarget:
    """The table that one `publish` call commits to, and the batches that it is to show."""

    sink: Sink
    batches: CommittedBatches
    schema_of: SchemaOf
    replacer: RowReplacer
    merger: RowMerger
    empty_to: EmptyTo
    probe: Probe

    def check_tip(self, table: LoadedTable | None) -> Position:
        """Return the table's position; see `check_tip`."""
        return check_tip(self.batches.ledger, table, pipeline=self.batches.pipeline, where=self.sink.uri)


class _Publisher:
    """The commits of one `publish` call. Used by one thread."""

    def __init__(
        self, *, target: _PublishTarget, restorer: Restorer | None, bus: Bus, clock: Clock, after: Published | None
    ) -> None:
        self.snapshot: LoadedTable | None = None  # the last one that was committed to
        self._target = target
        self._restorer = restorer
        self._bus = bus
        self._clock = clock
        self._after = after
        self._position = self._read_to = START
        self._table_version: int | None = None
        self._batches = 0
        # Version and position of the last commit, if nothing was left to put back in the snapshot that it was made on:
        # its log needs no second inspection.
        self._appended: tuple[int, Position] | None = None

    @property
    def published(self) -> Published:
        """The result of the commits made so far."""
        return Published(
            position=self._position,
            read_to=self._read_to,
            table_version=self._table_version,
            batches=self._batches,
        )

    def next_commit(self) -> BatchPublished | None:
        """Make the next commit and return its event, or None if nothing is left to publish. Raise as `publish` does."""
        began_at = self._clock.monotonic()
        chunk = self._next_chunk()
        if chunk is None:
            return None
        self._batches += chunk.batches
        return BatchPublished(
            pipeline=self._target.batches.pipeline,
            sink=self._target.sink.uri,
            seq=chunk.tip.seq,
            table_version=self._table_version or 0,
            seconds=self._clock.monotonic() - began_at,
            merged={} if chunk.counts is None else asdict(chunk.counts),
        )

    def _next_chunk(self) -> PublishChunk | None:
        """Commit the next chunk. Try again after a conflict, after rows were put back, and after a ledger rollback."""
        conflicts = 0
        while True:
            try:
                with _explained(None if self._restorer is None else self._restorer.watch):
                    return self._try_chunk()
            except _PutBack:
                conflicts = 0
            except BatchLost as rolled_back:
                self._begin_again(rolled_back.lost)
            except PublishConflict as conflict:
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise TemporaryError(
                        f"{self._target.sink.uri}: {conflicts} publishes in a row met a conflict ({conflict}); "
                        "try again later"
                    ) from conflict
                wait_after_conflict(self._clock, conflicts)

    def _begin_again(self, lost: Position) -> None:
        """Begin at the table's own position: the ledger lost batches that this process saw committed.

        The table shows no files of them, otherwise `check_tip` would halt.
        """
        self._after = None
        pipeline, sink = self._target.batches.pipeline, self._target.sink.uri
        self._bus.emit(LedgerRolledBack(pipeline=pipeline, sink=sink, missing_seq=lost.seq))

    def _try_chunk(self) -> PublishChunk | None:
        """Make at most one commit to the table. Return None if nothing is left to publish.

        Raises `_PutBack` if the commit put back what overwritten commits had shown.
        """
        target, after, restorer = self._target, self._after, self._restorer
        table = target.sink.load()
        position = target.check_tip(table)
        start = after.read_to if after is not None and after.position == position else target.empty_to(position)
        self._position, self._table_version = position, table.version if table is not None else None
        found = Inspection()
        if restorer is not None and table is not None and self._appended != (table.version, position):
            found = _inspected(target, restorer, cast(TableSnapshot, table), position)
        try:
            chunk, self._read_to = target.batches.next_chunk(start, acted=found.acted, is_new=table is None)
        except BatchLost as rolled_back:
            if rolled_back.lost != position:
                raise
            raise PublishConflict("the ledger was rolled back since the table's position was checked") from rolled_back
        if restorer is not None and (chunk is None or found.is_settled):
            restorer.settle(found)
        return None if chunk is None else self._committed(chunk, table, position, found)

    def _committed(
        self, chunk: PublishChunk, table: LoadedTable | None, position: Position, found: Inspection
    ) -> PublishChunk:
        """Commit a chunk to the snapshot ``table``."""
        target = self._target
        loaded, table = table, _with_schema(target, table, position, target.schema_of(chunk.tip))
        if table is not loaded and not found.is_settled:
            raise PublishConflict("the table's columns were updated: check its log again")
        target.probe(Step.PUBLISHING)
        append, counts = _append(target, cast(VersionedTable, table), chunk, found, self._restorer)
        self.snapshot, self._table_version = table, table.append(append)
        # The ledger must remember a commit that replaces rows before another one follows it.
        is_known = found.is_settled and chunk.replacing is None
        self._appended = (self._table_version, position_of(chunk.tip)) if is_known else None
        return replace(chunk, counts=counts)


def _append(
    target: _PublishTarget, table: VersionedTable, chunk: PublishChunk, found: Inspection, restorer: Restorer | None
) -> tuple[Append, MergeCounts | None]:
    """Return the commit that shows a chunk, and that takes the rows which it replaces out of this snapshot.

    If the chunk is merged, also return the rows of the merge.
    """
    removed: Sequence[LoggedFile] = ()
    added: Sequence[DataFile] = ()
    folder = ""
    counts: MergeCounts | None = None
    if chunk.replacing is not None:
        _check_removal(table)
    again = found.of_batch(chunk.replacing)
    if again is not None and restorer is not None:
        restorer.check(found, again)
        removed, added, folder = again.removed, again.added, again.folder
    elif chunk.is_merged:
        batch = merge_batch(target.batches.ledger, table.root, chunk.tip)
        merged = target.merger.merged(table, batch)
        left, counts = merged.replacement, merged.counts
        removed, added, folder = left.removed, [*left.added, *left.fresh], left.folder
    elif chunk.replaced:
        left = target.replacer.replacement(table, chunk.replaced, of=position_of(chunk.tip), keep=chunk.named)
        removed, added, folder = left.removed, left.added, left.folder
    append = Append(
        seq=chunk.tip.seq,
        attempt_id=chunk.tip.attempt_id,
        files=[*chunk.files, *added],
        replaced=removed,
        replacing=chunk.replacing,
        rewritten_in=folder,
    )
    return append, counts


def _check_removal(table: VersionedTable) -> None:
    """Raise `PublishHalted` if the table got a setting that forbids it after the batch was committed."""
    if isinstance(table, RemovalCheck):
        try:
            table.check_removal()
        except TableError as error:
            raise PublishHalted(f"A committed batch replaces rows. {error}") from error


class _PutBack(Exception):
    """A commit put back what overwritten commits had shown: load the table again."""


def _inspected(target: _PublishTarget, restorer: Restorer, table: TableSnapshot, position: Position) -> Inspection:
    """Check the table's log. Raises `_PutBack` if something was put back."""
    found = restorer.watch.inspect(table, position)
    tip = target.batches.ledger.batch(target.batches.pipeline, position.seq) if position.seq and found.foreign else None
    if restorer.put_back(found, table, tip, None if tip is None else target.schema_of(tip)):
        raise _PutBack
    return found


@contextmanager
def _explained(watch: CommitWatch | None) -> Iterator[None]:
    """Name the other writer in the error of a table that Penstock cannot write any more."""
    try:
        yield
    except TableError as error:
        if watch is None or type(error) is not TableError:
            raise
        by = _changed_by(watch)
        if by is None:
            raise
        raise TableError(f"{error} The table was last changed by its {by}.") from error


def _changed_by(watch: CommitWatch) -> str | None:
    try:
        return watch.changed_by()
    except (TableError, TemporaryError):  # the log cannot be read either: keep the first error
        return None


def _with_schema(
    target: _PublishTarget, table: LoadedTable | None, position: Position, schema: pa.Schema
) -> LoadedTable:
    """Return a snapshot with these columns and still the same position, since only that state was checked."""
    if table is not None and not additions(table.schema, schema, table=target.sink.uri):
        return table
    target.sink.ensure_schema(schema)
    table = target.sink.load()
    if table is None or target.check_tip(table) != position:
        raise PublishConflict("the table changed while its columns were updated")
    return table

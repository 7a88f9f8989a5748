"""Read one partition: the loop that runs in Spark's executors. Independent of Spark.

Chunks of objects are packed into blocks before decoding (small objects one by one take three times as long, measured).
Rows get their provenance from the position of their line in the block, bad lines go to quarantine, and a failing object
does not affect the others.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from penstock.errors import ObjectCorrupt, ObjectError
from penstock.events.objects import QuarantineReason
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.objects.stores import ahead, replaced
from penstock.pipeline.spark.source.beginnings import HashingReader, beginning_digest, from_text, may_begin
from penstock.pipeline.spark.source.blocks import Flags, Positions
from penstock.pipeline.spark.source.contents import BadRecord, Quotes
from penstock.pipeline.spark.source.fit_rows import DAMAGE, Unfitted
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.packs import Part, Released, decoder_of, release, size_bytes
from penstock.pipeline.spark.source.path_partitions import PathPartitions
from penstock.pipeline.spark.source.places import are_within
from penstock.pipeline.spark.source.plan import Piece, ReadPlan, SavedPlan
from penstock.pipeline.spark.source.quarantine import QuarantineFile
from penstock.pipeline.spark.source.readers import reader_of
from penstock.pipeline.spark.source.report import (
    SAMPLES_MAX,
    FailureKind,
    ObjectFailure,
    PartitionReport,
    PieceReading,
    ReadingId,
)
from penstock.pipeline.spark.source.unknown import UnknownCount
from penstock.storage.files import Files

_SAMPLE_CHARS_MAX = 300
_FULL = 0.9  # of a block: a large object's blocks end with a line, so they are a little smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTask:
    """All that an executor needs to read one partition, with only its own objects."""

    partition: int
    pieces: Sequence[tuple[ObjectRef, Piece]]
    options: ReadOptions
    quarantine: Files
    quarantine_dir: str
    reports: Files
    drain: bool = False
    current_only: bool = False  # see `RunRequest`
    hashes: bool = False  # see `ReadPlan`


def partition_task(plan: ReadPlan | SavedPlan, partition: int, *, drain: bool = False) -> PartitionTask:
    """Return the task for one partition of a plan. Raises `TemporaryError` if this host does not see a saved plan."""
    return PartitionTask(
        partition=partition,
        pieces=tuple(plan.pieces(partition)),
        options=plan.options,
        quarantine=plan.quarantine,
        quarantine_dir=plan.quarantine_dir,
        reports=plan.reports,
        drain=drain,
        current_only=plan.current_only,
        hashes=plan.hashes,
    )


def read_partition(task: PartitionTask, store: ObjectStore, reading: ReadingId) -> Iterator[pa.RecordBatch]:
    """Yield typed rows in batches, as `read_encoded` does, but without dictionaries, which Spark does not read."""
    with closing(read_encoded(task, store, reading)) as batches:
        for batch in batches:
            yield _plain(batch)


def read_encoded(task: PartitionTask, store: ObjectStore, reading: ReadingId) -> Generator[pa.RecordBatch, None, None]:
    """Yield typed rows in batches, whose texts may be in dictionaries.

    The quarantine file and the report exist only after the iterator has ended. An iterator closed early leaves neither.
    Raises `TemporaryError` for a fault of the machine, not of an object.
    """
    quarantine = QuarantineFile(task.quarantine, task.quarantine_dir, task.partition)
    scan = _PartitionScan(task, store, quarantine)
    finished = False
    try:
        for number, batch in enumerate(scan.batches()):
            if number == 0:
                reading.mark_begun()
            yield batch
        file = quarantine.finish()
        reading.write(
            PartitionReport(partition=task.partition, drain=task.drain, pieces=scan.readings(), quarantine=file)
        )
        finished = True
    finally:
        if not finished:
            quarantine.abandon()


@dataclass(slots=True)
class _PieceCounts:
    """The counts of one piece so far. Written by the one thread that reads the partition."""

    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of the lines in quarantine
    parts: int = 0
    failure: ObjectFailure | None = None
    samples: list[tuple[int, str]] = field(default_factory=list)  # offset and reason of the first bad lines
    quotes: Quotes | None = None  # set once the piece was read to its end
    unknown: UnknownCount = field(default_factory=UnknownCount)
    piece: Piece | None = None  # in place of the planned one, if the object does not begin as it did before
    digest: str | None = None  # of the piece, and of the beginning before it


class _PartitionScan:
    """One reading of one partition."""

    def __init__(self, task: PartitionTask, store: ObjectStore, quarantine: QuarantineFile) -> None:
        self._task = task
        self._store = store
        self._quarantine = quarantine
        self._reader = reader_of(task.options)
        self._position = format_of(task.options.format).position
        self._tallies = [_PieceCounts() for _ in task.pieces]
        self._uris = [ref.uri for ref, _ in task.pieces]
        self._paths = PathPartitions(task.options.partitions_ddl)
        self._in_paths: dict[int, pa.Table] = {}  # by piece; only if there are such columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        pack: list[tuple[int, Part]] = []
        packed_bytes = 0
        for index, part in self._parts():
            part_bytes = size_bytes(part)
            full = packed_bytes + part_bytes > self._task.options.block_bytes
            if pack and (full or decoder_of(part) is not decoder_of(pack[0][1])):
                yield from self._release(pack)
                pack, packed_bytes = [], 0
            pack.append((index, part))
            packed_bytes += part_bytes
            if packed_bytes > self._task.options.block_bytes * _FULL:  # the next part will not fit: do not wait for it
                yield from self._release(pack)
                pack, packed_bytes = [], 0
        if pack:
            yield from self._release(pack)

    def readings(self) -> tuple[PieceReading, ...]:
        return tuple(
            PieceReading(
                piece=counts.piece or piece,
                rows=counts.rows,
                lines_quarantined=counts.reasons.total(),
                reasons=dict(counts.reasons),
                samples=tuple(counts.samples),
                failure=counts.failure,
                broken_midway=counts.failure is not None and counts.parts > 0,
                quotes=counts.quotes,
                unknown=counts.unknown.result(),
                digest=counts.digest,
            )
            for (_, piece), counts in zip(self._task.pieces, self._tallies, strict=True)
        )

    def _parts(self) -> Iterator[tuple[int, Part]]:
        """Yield the parts of all pieces in turn; a failing object ends early, and the others continue."""
        for counts, (ref, _) in zip(self._tallies, self._task.pieces, strict=True):
            counts.failure = _too_large(ref, self._task.options.object_bytes_max)
        self._read_paths()
        self._check_current()
        opened = [index for index, counts in enumerate(self._tallies) if counts.failure is None]
        pieces = [self._task.pieces[index] for index in opened]
        spans = None
        if format_of(self._task.options.format).is_read_in_order:
            spans = [(0 if piece.is_first else piece.start, piece.stop) for _, piece in pieces]
        with ahead(self._store, [ref for ref, _ in pieces], spans=spans) as store:
            for index in opened:
                yield from self._parts_of(index, store)

    def _read_paths(self) -> None:
        if not self._task.options.partitions_ddl:
            return
        for index, (ref, _) in enumerate(self._task.pieces):
            try:
                self._in_paths[index] = self._paths.values(ref)
            except ObjectError as error:
                self._tallies[index].failure = ObjectFailure.of(error)

    def _check_current(self) -> None:
        """Leave out versions that were replaced in the store. A replay adds lines to a version that counts already."""
        if not self._task.current_only:
            return
        checked = [
            index
            for index, (_, piece) in enumerate(self._task.pieces)
            if piece.is_first and piece.places is None and self._tallies[index].failure is None
        ]
        for position, error in replaced(self._store, [self._task.pieces[index][0] for index in checked]).items():
            self._tallies[checked[position]].failure = ObjectFailure.of(error)

    def _parts_of(self, index: int, store: ObjectStore) -> Iterator[tuple[int, Part]]:
        ref, piece = self._task.pieces[index]
        counts = self._tallies[index]
        try:
            with store.open(ref) as opened:
                reader, piece = self._hashing(index, opened, piece)
                for part in self._reader.read(reader, piece):
                    match part:
                        case Quotes():
                            counts.quotes = part
                        case BadRecord():
                            counts.parts += 1
                            if self._is_asked_for(index, part.offset):
                                self._refuse(index, part.offset, part.raw, part.reason, part.detail)
                        case _:
                            counts.parts += 1
                            yield index, part
                    if counts.failure is not None:  # of rows that cannot be fitted
                        return
                if isinstance(reader, HashingReader):
                    ends_open = counts.quotes is not None and counts.quotes.ends_open
                    counts.digest = None if ends_open and piece.stop == ref.size_bytes else reader.result()
        except ObjectError as error:
            counts.failure = ObjectFailure.of(error)

    def _hashing(self, index: int, reader: ObjectReader, piece: Piece) -> tuple[ObjectReader, Piece]:
        """Return the reader that computes the digest of the piece, if one is wanted, and what is read.

        That is the object's beginning as well, unless it is the one that was read before.
        """
        if not self._task.hashes or piece.places is not None or not may_begin(reader.ref, self._task.options):
            return reader, piece
        digest = None
        if piece.after is not None:
            stretches = from_text(piece.after)
            digest = beginning_digest(reader, stretches, block_bytes=self._task.options.block_bytes)
            if digest is None:
                piece = self._tallies[index].piece = replace(piece, start=0, after=None)
        return HashingReader(reader, piece.start, piece.stop, digest), piece

    def _release(self, pack: Sequence[tuple[int, Part]]) -> Iterator[pa.RecordBatch]:
        """Decode a pack of parts, keep its bad lines, and yield its rows."""
        try:
            released = release([part for _, part in pack])
        except DAMAGE as error:
            if not isinstance(pack[0][1], Unfitted):
                raise
            yield from self._release_each(pack, error)
            return
        placed = self._asked_for(released, [index for index, _ in pack])
        for owner, at, bad in placed.bad:
            self._refuse(pack[owner][0], at, bad.raw, bad.reason, bad.detail)
        for owner, rows in enumerate(placed.rows_of_each(len(pack))):
            self._tallies[pack[owner][0]].rows += rows
        for owner, name, found in placed.unknown_fields():
            self._tallies[pack[owner][0]].unknown.add(name, found)
        for owner, name, count in placed.wrong_types():
            self._tallies[pack[owner][0]].unknown.add_wrong_type(name, count)
        in_paths = pa.concat_tables([self._in_paths[index] for index, _ in pack]) if self._in_paths else None
        column = self._position if self._task.options.provenance else None
        uris = [self._uris[index] for index, _ in pack]
        if in_paths is not None or column is not None:
            yield from placed.batches(uris, in_paths=in_paths, position=column)
        else:
            yield from placed.rows.combine_chunks().to_batches()

    def _release_each(self, pack: Sequence[tuple[int, Part]], error: Exception) -> Iterator[pa.RecordBatch]:
        """Release the parts of a pack one by one after this error, so that it fails only the object that causes it."""
        if len(pack) > 1:
            for one in pack:
                yield from self._release([one])
            return
        index = pack[0][0]
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        failure = ObjectCorrupt(f"{self._uris[index]} cannot be read as {self._task.options.format}: {reason}")
        self._tallies[index].failure = ObjectFailure.of(failure)

    def _asked_for(self, placed: Released, pieces: Sequence[int]) -> Released:
        """Return the rows and bad lines without those that a replay does not ask for."""
        places = [self._task.pieces[index][1].places for index in pieces]
        if all(ranges is None for ranges in places):
            return placed
        keep = np.ones(len(placed.owners), dtype=np.bool_)
        for owner, ranges in enumerate(places):
            if ranges is not None:
                own = placed.owners == owner
                keep[own] = are_within(placed.positions[own], ranges)
        keep_bad = np.array([self._is_asked_for(pieces[one[0]], one[1]) for one in placed.bad], dtype=np.bool_)
        return Released(
            rows=placed.rows.filter(pa.array(keep)),
            owners=placed.owners[keep],
            positions=placed.positions[keep],
            bad=[one for one, kept in zip(placed.bad, keep_bad.tolist(), strict=True) if kept],
            unknown={
                name: replace(finding, rows=_left(finding.rows, keep), bad=_left(finding.bad, keep_bad))
                for name, finding in placed.unknown.items()
            },
            misfits={name: _left(rows, keep) for name, rows in placed.misfits.items()},
        )

    def _is_asked_for(self, index: int, position: int) -> bool:
        ranges = self._task.pieces[index][1].places
        return ranges is None or bool(are_within(np.array([position]), ranges)[0])

    def _refuse(self, index: int, position: int, raw: bytes, reason: QuarantineReason, detail: str) -> None:
        """Quarantine one line or row, or the lines of one record."""
        counts = self._tallies[index]
        self._quarantine.add(self._uris[index], position, raw, reason.value, detail)
        counts.reasons[reason.value] += 1
        if len(counts.samples) < SAMPLES_MAX:
            counts.samples.append((position, f"{reason.value}: {detail}"[:_SAMPLE_CHARS_MAX]))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.columns]
    fields = [field.with_type(one.type) for field, one in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _left(places: Positions, keep: Flags) -> Positions:
    """Return those of the places that are kept, as they are after all others are removed."""
    left: Positions = (np.cumsum(keep) - 1)[places[keep[places]]]
    return left


def _too_large(ref: ObjectRef, bytes_max: int) -> ObjectFailure | None:
    if ref.size_bytes <= bytes_max:
        return None
    reason = f"{ref.uri} has {ref.size_bytes} bytes, more than the limit of {bytes_max} for one object"
    return ObjectFailure(kind=FailureKind.TOO_LARGE, reason=reason)

"""Read one partition: the loop that runs in Spark's executors. Independent of Spark.

Chunks of objects are packed into blocks before decoding (small objects one by one take three times as long, measured).
Rows get their provenance from the position of their line in the block, bad lines go to quarantine, and a failing object
does not affect the others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ObjectError
from penstock.events.objects import QuarantineReason
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.objects.stores import ahead
from penstock.pipeline.spark.source.blocks import Decoded, Decoder
from penstock.pipeline.spark.source.contents import BOM, LineChunk, Quotes
from penstock.pipeline.spark.source.csv_records import read_parts
from penstock.pipeline.spark.source.ddl import PROVENANCE
from penstock.pipeline.spark.source.decoders import Decoders
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan, SavedPlan
from penstock.pipeline.spark.source.quarantine import QuarantineFile
from penstock.pipeline.spark.source.report import (
    SAMPLES_MAX,
    FailureKind,
    ObjectFailure,
    PartitionReport,
    PieceReading,
    ReadingId,
)
from penstock.storage.files import Files

_SAMPLE_CHARS_MAX = 300
_URI_BYTES_MAX = 64 << 20  # of the _object column in one batch: URIs may be longer than lines


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


def partition_task(plan: ReadPlan | SavedPlan, partition: int, *, drain: bool = False) -> PartitionTask:
    """Return the task for one partition of a plan. Raises `TemporaryError` if this host does not see a saved plan."""
    return PartitionTask(
        partition=partition,
        pieces=plan.pieces(partition),
        options=plan.options,
        quarantine=plan.quarantine,
        quarantine_dir=plan.quarantine_dir,
        reports=plan.reports,
        drain=drain,
    )


def read_partition(task: PartitionTask, store: ObjectStore, reading: ReadingId) -> Iterator[pa.RecordBatch]:
    """Yield typed rows in batches. The quarantine file and the report exist only after the iterator has ended.

    An iterator closed early leaves neither. Raises `TemporaryError` for a fault of the machine, not of an object.
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


class _PartitionScan:
    """One reading of one partition."""

    def __init__(self, task: PartitionTask, store: ObjectStore, quarantine: QuarantineFile) -> None:
        self._task = task
        self._store = store
        self._quarantine = quarantine
        self._decoders = Decoders(task.options)
        self._tallies = [_PieceCounts() for _ in task.pieces]
        self._uris = [ref.uri for ref, _ in task.pieces]

    def batches(self) -> Iterator[pa.RecordBatch]:
        pack: list[tuple[int, LineChunk]] = []
        packed_bytes = 0
        packed_for: Decoder | None = None
        for index, part, decoder in self._parts():
            full = packed_bytes + len(part.lines) > self._task.options.block_bytes
            if packed_for is not None and (full or decoder is not packed_for):
                yield from self._decode(pack, packed_for)
                pack, packed_bytes = [], 0
            pack.append((index, part))
            packed_bytes += len(part.lines)
            packed_for = decoder
        if packed_for is not None:
            yield from self._decode(pack, packed_for)

    def readings(self) -> tuple[PieceReading, ...]:
        return tuple(
            PieceReading(
                piece=piece,
                rows=counts.rows,
                lines_quarantined=counts.reasons.total(),
                reasons=dict(counts.reasons),
                samples=tuple(counts.samples),
                failure=counts.failure,
                broken_midway=counts.failure is not None and counts.parts > 0,
                quotes=counts.quotes,
            )
            for (_, piece), counts in zip(self._task.pieces, self._tallies, strict=True)
        )

    def _refuse(self, index: int, offset: int, raw: bytes, reason: QuarantineReason, detail: str) -> None:
        """Quarantine one line, or the lines of one record."""
        counts = self._tallies[index]
        self._quarantine.add(self._uris[index], offset, raw, reason.value, detail)
        counts.reasons[reason.value] += 1
        if len(counts.samples) < SAMPLES_MAX:
            counts.samples.append((offset, f"{reason.value}: {detail}"[:_SAMPLE_CHARS_MAX]))

    def _parts(self) -> Iterator[tuple[int, LineChunk, Decoder]]:
        """Yield the chunks of all pieces in turn; a failing object ends early, and the others continue."""
        for counts, (ref, _) in zip(self._tallies, self._task.pieces, strict=True):
            counts.failure = _too_large(ref, self._task.options.object_bytes_max)
        opened = [index for index, counts in enumerate(self._tallies) if counts.failure is None]
        with ahead(self._store, [self._task.pieces[index][0] for index in opened]) as store:
            for index in opened:
                yield from self._parts_of(index, store)

    def _parts_of(self, index: int, store: ObjectStore) -> Iterator[tuple[int, LineChunk, Decoder]]:
        ref, piece = self._task.pieces[index]
        counts = self._tallies[index]
        try:
            with store.open(ref) as reader:
                for part in read_parts(reader, piece, self._task.options):
                    if part.quotes is not None:
                        counts.quotes = part.quotes
                        continue
                    decoder = self._decoders.of(part.header, ref.uri)
                    self._keep_bad_records(index, part)
                    if part.lines:
                        counts.parts += 1
                        yield index, part, decoder
        except ObjectError as error:
            counts.failure = ObjectFailure.of(error)

    def _keep_bad_records(self, index: int, part: LineChunk) -> None:
        for record in part.bad:
            self._tallies[index].parts += 1
            self._refuse(index, record.offset, record.raw, QuarantineReason.MALFORMED, record.detail)

    def _decode(self, pack: Sequence[tuple[int, LineChunk]], decoder: Decoder) -> Iterator[pa.RecordBatch]:
        block = pack[0][1].lines if len(pack) == 1 else b"".join(part.lines for _, part in pack)
        origin = _Origin.of(pack)
        decoded = decoder.decode(block, plain=all(part.plain for _, part in pack))
        self._keep_bad_lines(decoded, origin)
        owners, offsets = origin.locate(decoded.starts)
        for owner, rows in enumerate(np.bincount(owners, minlength=len(pack)).tolist()):
            self._tallies[pack[owner][0]].rows += rows
        if self._task.options.provenance:
            yield from _with_provenance(decoded.rows, [self._uris[index] for index, _ in pack], owners, offsets)
        else:
            yield from decoded.rows.combine_chunks().to_batches()

    def _keep_bad_lines(self, decoded: Decoded, origin: "_Origin") -> None:
        if not decoded.bad:
            return
        owners, offsets = origin.locate(np.array([bad.start for bad in decoded.bad], dtype=np.int64))
        for bad, owner, offset in zip(decoded.bad, owners.tolist(), offsets.tolist(), strict=True):
            index, part = origin.pack[owner]
            raw = BOM + bad.raw if part.marked and offset == 0 else bad.raw
            self._refuse(index, offset, raw, bad.reason, bad.detail)


def _too_large(ref: ObjectRef, bytes_max: int) -> ObjectFailure | None:
    if ref.size_bytes <= bytes_max:
        return None
    reason = f"{ref.uri} has {ref.size_bytes} bytes, more than the limit of {bytes_max} for one object"
    return ObjectFailure(kind=FailureKind.TOO_LARGE, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Maps positions in a block to the objects they are from."""

    pack: Sequence[tuple[int, LineChunk]]
    bases: npt.NDArray[np.int64]  # start of each chunk in the block
    shifts: npt.NDArray[np.int64]  # offset in the object minus position in the block, per chunk

    @staticmethod
    def of(pack: Sequence[tuple[int, LineChunk]]) -> "_Origin":
        sizes = np.array([len(part.lines) for _, part in pack], dtype=np.int64)
        bases = np.cumsum(sizes) - sizes
        return _Origin(pack=pack, bases=bases, shifts=np.array([part.offset for _, part in pack]) - bases)

    def locate(self, starts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Convert line starts in the block to indexes in the pack and offsets in the objects."""
        owners = np.searchsorted(self.bases, starts, side="right") - 1
        offsets = starts + self.shifts[owners]
        if any(part.marked for _, part in self.pack):
            marked = np.array([part.marked for _, part in self.pack])
            offsets[marked[owners] & (starts == self.bases[owners])] = 0
        return owners, offsets


def _with_provenance(
    rows: pa.Table, uris: Sequence[str], owners: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    names = [uri.encode() for uri in uris]
    rows_max = max(1, _URI_BYTES_MAX // max(len(name) for name in names))
    schema = pa.schema([*rows.schema, *PROVENANCE])
    at = 0
    for batch in rows.combine_chunks().to_batches(max_chunksize=rows_max):
        span = slice(at, at + batch.num_rows)
        counts = np.bincount(owners[span], minlength=len(names))
        columns = [*batch.columns, _repeated(names, counts), pa.array(offsets[span])]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        at += batch.num_rows


def _repeated(names: Sequence[bytes], counts: npt.NDArray[np.int64]) -> pa.StringArray:
    """Return each name repeated by its count; builds the buffers directly, since the column is as long as the rows."""
    sizes = np.repeat(np.array([len(name) for name in names], dtype=np.int32), counts)
    ends = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    text = b"".join(name * count for name, count in zip(names, counts.tolist(), strict=True))
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), pa.py_buffer(text))

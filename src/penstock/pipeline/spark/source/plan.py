"""The read plan of one run: its objects, and how they are cut into Spark partitions.

The driver makes the plan once, from the sizes in the claim, and saves it before the run begins; the reader in the
executors and the summary both rely on it. Small objects are packed together, large plain ones are cut into byte ranges,
compressed ones stay whole. A piece owns the lines that begin in it.

In memory and in its file, a plan is columns: numbers per piece, not an object per piece. The file is an Arrow IPC file
with one record batch per partition, so an executor reads the footer and its own partition. Everything else about the
run is JSON in the metadata of the file's schema.
"""

import heapq
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from socket import gethostname
from typing import Any, overload
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import TemporaryError
from penstock.ledger.records import KnownBeginning
from penstock.objects.reference import ObjectRef, decode_key, encode_key
from penstock.objects.replays import source_of
from penstock.pipeline.batch_record import run_files
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.inflate import is_compressed
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

_MIB = 1 << 20
_VERSION = 7
PLAN_FILE = "plan.arrow"

# The overhead of one object, and the cost of one compressed byte, both in bytes of plain lines.
_OBJECT_COST_BYTES = 64 << 10
_INFLATION = 6
# A task costs at least 0.1 s of CPU besides its reading (measured), so a core gets one, unless that is too large.
_PARTITION_COST_MIN = 4 * _MIB
_PARTITION_COST_MAX = 256 * _MIB
_SMALL = 64  # pieces that cost less than a 64th of a partition's share are many, and are spread without a sort

Numbers = npt.NDArray[np.int64]

_PIECES = pa.schema([("object", pa.int64()), ("start", pa.int64()), ("stop", pa.int64())])
_TEXTS = ("bucket", "key", "version_id", "etag", "sequencer")  # bytes, since a name may not be valid Unicode
_SCHEMA = pa.schema(
    [
        *_PIECES,
        ("size_bytes", pa.int64()),
        *((name, pa.binary()) for name in _TEXTS),
        ("places", pa.binary()),
        ("after", pa.string()),
    ]
)
_HEADER = b"penstock"  # the key of the header in the schema's metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The lines of an object that begin in ``[start, stop)``; ``object`` is its index in the plan."""

    object: int
    start: int
    stop: int
    places: bytes | None = None  # of a replay: only the lines that begin in these ranges; see places.py
    after: str | None = None  # the beginning before the start; if it is another, all is read; see beginnings.py

    @property
    def is_first(self) -> bool:
        """True if no piece of the object is before this one."""
        return self.start == 0 or self.after is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceColumns(Sequence[Sequence[Piece]]):
    """The pieces of all partitions as columns, one partition after the other. Makes `Piece` objects on access."""

    objects: Numbers
    starts: Numbers
    stops: Numbers
    bounds: Numbers  # where each partition begins, and the end of the last one

    @staticmethod
    def of(partitions: Sequence[Sequence[Piece]]) -> "PieceColumns":
        """Return the columns of partitions, which may be columns already."""
        if isinstance(partitions, PieceColumns):
            return partitions
        pieces = [piece for partition in partitions for piece in partition]
        return PieceColumns(
            objects=np.array([piece.object for piece in pieces], dtype=np.int64),
            starts=np.array([piece.start for piece in pieces], dtype=np.int64),
            stops=np.array([piece.stop for piece in pieces], dtype=np.int64),
            bounds=np.cumsum([0, *map(len, partitions)], dtype=np.int64),
        )

    def span(self, partition: int) -> slice:
        """Return the position of a partition in the columns."""
        return slice(int(self.bounds[partition]), int(self.bounds[partition + 1]))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, partition: int) -> Sequence[Piece]: ...

    @overload
    def __getitem__(self, partition: slice) -> Sequence[Sequence[Piece]]: ...

    def __getitem__(self, partition: int | slice) -> Sequence[Piece] | Sequence[Sequence[Piece]]:
        if isinstance(partition, slice):
            return [self[number] for number in range(len(self))[partition]]
        span = self.span(range(len(self))[partition])
        columns = zip(self.objects[span].tolist(), self.starts[span].tolist(), self.stops[span].tolist(), strict=True)
        return tuple(Piece(object=index, start=start, stop=stop) for index, start, stop in columns)


class _RunFolders:
    """The folders of a run, for plans in memory and saved ones."""

    __slots__ = ()

    attempt_id: str
    run: int
    work: Files

    @property
    def reports(self) -> Files:
        """Return the folder for the reader's reports."""
        return self.work.below("reports")

    @property
    def quarantine_dir(self) -> str:
        """Return the run's folder of quarantine files, relative to the quarantine table's root, separated by "/"."""
        return run_files(self.attempt_id, self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan(_RunFolders):
    """One run of one attempt. Partitions and objects are identified by their index."""

    attempt_id: str
    run: int
    options: ReadOptions
    objects: Sequence[ObjectRef]
    partitions: Sequence[Sequence[Piece]]
    source: str  # see `store_at`
    aws: Aws
    quarantine: Files  # the table's root
    work: Files  # the run's own folder
    places: Mapping[int, bytes] = field(default_factory=dict)  # of the objects that are replays
    current_only: bool = False  # see `RunRequest`
    hashes: bool = False  # digests of what is read are reported
    # of the objects that may have grown: the beginning that is not read again
    beginnings: Mapping[int, KnownBeginning] = field(default_factory=dict)
    sources: Mapping[int, ObjectRef] = field(default_factory=dict)  # of replays: the versions that have their lines

    def source_of(self, index: int) -> ObjectRef:
        """Return the version of an object that is read."""
        return self.sources.get(index) or source_of(self.objects[index])

    @property
    def cuts_are_guesses(self) -> bool:
        """Return True if an object is cut at a point that may be inside a record of several lines."""
        if self.options.format != "csv" or not self.options.csv.quote:
            return False
        pieces = PieceColumns.of(self.partitions)
        return bool((pieces.starts != _begins(self.beginnings, len(self.objects))[pieces.objects]).any())

    def pieces(self, partition: int) -> Sequence[tuple[ObjectRef, Piece]]:
        """Return the pieces of a partition with their objects."""
        return tuple(
            (
                self.source_of(piece.object),
                replace(piece, places=self.places.get(piece.object), after=self._beginning(piece.object, piece.start)),
            )
            for piece in self.partitions[partition]
        )

    def _beginning(self, index: int, start: int) -> str | None:
        """Return the beginning that a piece follows; None if another piece does, or none is known."""
        known = self.beginnings.get(index)
        return known.beginning.digest if known is not None and known.beginning.size_bytes == start else None

    def save(self) -> None:
        """Write the plan atomically into its work folder, not synced to disk: no run continues after a power loss."""
        schema = _SCHEMA.with_metadata({_HEADER: json.dumps(_header(self), separators=(",", ":"))})
        compressed = pa.ipc.IpcWriteOptions(compression="lz4")
        output = self.work.open_output(PLAN_FILE, durable=False)
        with output as file, pa.ipc.new_file(file, schema, options=compressed) as writer:
            for batch in self._batches(schema):
                writer.write_batch(batch)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = PieceColumns.of(self.partitions)
        for partition in range(len(columns)):
            span = columns.span(partition)
            refs = [self.source_of(index) for index in columns.objects[span].tolist()]
            texts = [[_encoded(getattr(ref, name)) for ref in refs] for name in _TEXTS]
            sizes = [ref.size_bytes for ref in refs]
            numbers = (columns.objects[span], columns.starts[span], columns.stops[span], sizes)
            indexes, starts = columns.objects[span].tolist(), columns.starts[span].tolist()
            places = [self.places.get(index) for index in indexes]
            after = [self._beginning(index, start) for index, start in zip(indexes, starts, strict=True)]
            arrays = [
                *(pa.array(column, pa.int64()) for column in numbers),
                *(pa.array(column, pa.binary()) for column in (*texts, places)),
                pa.array(after, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan(_RunFolders):
    """A plan in its file, without its objects: they are read one partition at a time, where they are needed."""

    attempt_id: str
    run: int
    options: ReadOptions
    partitions_count: int
    source: str
    aws: Aws
    quarantine: Files
    work: Files
    current_only: bool = False
    hashes: bool = False

    @staticmethod
    def load(work: Files) -> "SavedPlan":
        """Read what `ReadPlan.save` wrote into a work folder.

        Raises `TemporaryError` if this host does not see the plan that the driver saved there, or only a part of it.
        The folder is named after the attempt, so an older plan cannot be mistaken for it.
        """
        header, count, _ = _loaded(work, None)
        return _plan(header, work, partitions_count=count)

    def pieces(self, partition: int) -> Sequence[tuple[ObjectRef, Piece]]:
        """Read the pieces of a partition with their objects. Raises like `load`."""
        _, _, batch = _loaded(self.work, partition)
        assert batch is not None, "a partition was named"
        numbers = [batch.column(name).to_pylist() for name in ("object", "start", "stop", "size_bytes")]
        texts = [map(_decoded, batch.column(name).to_pylist()) for name in _TEXTS]
        places, after = (batch.column(name).to_pylist() for name in ("places", "after"))
        return tuple(
            (
                ObjectRef(
                    bucket=bucket or "",
                    key=key or "",
                    size_bytes=size_bytes,
                    version_id=version_id,
                    etag=etag,
                    sequencer=sequencer,
                ),
                Piece(object=index, start=start, stop=stop, places=ranges, after=beginning),
            )
            for index, start, stop, size_bytes, bucket, key, version_id, etag, sequencer, ranges, beginning in zip(
                *numbers, *texts, places, after, strict=True
            )
        )


def make_plan(
    objects: Sequence[ObjectRef],
    *,
    attempt_id: str,
    run: int,
    options: ReadOptions,
    cores: int,
    source: str,
    aws: Aws,
    quarantine: Files,
    work: Files,
    cuts: Mapping[int, Sequence[int]] | None = None,
    places: Mapping[int, bytes] | None = None,
    current_only: bool = False,
    hashes: bool = False,
    beginnings: Mapping[int, KnownBeginning] | None = None,
    sources: Mapping[int, ObjectRef] | None = None,
) -> ReadPlan:
    """Cut the objects into partitions of about equal cost, one per core or a multiple of that.

    ``cuts`` maps object indexes to offsets; such an object is cut there and nowhere else. ``places`` maps those of
    replays to the ranges that are read, ``sources`` to the versions. ``beginnings`` maps those that may have grown to
    what was read before. Raises `UsageError` for an invalid format or schema.
    """
    return ReadPlan(
        attempt_id=attempt_id,
        run=run,
        options=checked(options),
        objects=tuple(objects),
        partitions=_partitions(objects, cores, cuts or {}, options, beginnings or {}),
        source=source,
        aws=aws,
        quarantine=quarantine,
        work=work,
        places=places or {},
        current_only=current_only,
        hashes=hashes,
        beginnings=beginnings or {},
        sources=sources or {},
    )


def _begins(beginnings: Mapping[int, KnownBeginning], count: int) -> Numbers:
    """Return where each object's first piece begins."""
    found = np.zeros(count, dtype=np.int64)
    for index, known in beginnings.items():
        found[index] = known.beginning.size_bytes
    return found


def _partitions(
    objects: Sequence[ObjectRef],
    cores: int,
    cuts: Mapping[int, Sequence[int]],
    options: ReadOptions,
    beginnings: Mapping[int, KnownBeginning],
) -> PieceColumns:
    kind = format_of(options.format)
    sizes = np.fromiter((ref.size_bytes for ref in objects), dtype=np.int64, count=len(objects))
    compressed = np.zeros(len(objects), dtype=np.bool_)
    if kind.is_inflated:
        compressed = np.fromiter((is_compressed(ref) for ref in objects), dtype=np.bool_, count=len(objects))
    refused = sizes > options.object_bytes_max  # the reader refuses these unread: they cost as much as an empty object
    whole = compressed | refused if kind.can_be_cut else np.ones(len(objects), dtype=np.bool_)
    factors = np.where(refused, 0, np.where(compressed, _INFLATION, kind.inflation))
    begins = _begins(beginnings, len(objects))
    total = float(np.sum(_OBJECT_COST_BYTES + (sizes - begins).astype(np.float64) * factors))
    count = _count(total, cores)
    target_bytes = max(1, math.ceil(total / count / kind.inflation))  # of plain objects: others are not cut
    is_cut = ~whole & (sizes - begins > max(target_bytes, _PARTITION_COST_MIN))
    is_cut[list(cuts)] = True
    owners, starts, stops = _pieces(begins, sizes, is_cut, target_bytes, cuts)
    costs = _OBJECT_COST_BYTES + (stops - starts).astype(np.float64) * factors[owners]
    return _balance(owners, starts, stops, costs, count)


def _count(cost: float, cores: int) -> int:
    """Return the number of partitions: the fewest that keep all cores busy and none too large."""
    waves = math.ceil(cost / (cores * _PARTITION_COST_MAX))
    return max(1, min(waves * cores, math.ceil(cost / _PARTITION_COST_MIN)))


def _pieces(
    begins: Numbers,
    sizes: Numbers,
    is_cut: npt.NDArray[np.bool_],
    target_bytes: int,
    cuts: Mapping[int, Sequence[int]],
) -> tuple[Numbers, Numbers, Numbers]:
    """Return object, start and stop of all pieces: whole objects, and equal pieces of at most the target size.

    An object with ``cuts`` becomes the pieces between them.
    """
    owners, starts, stops = np.arange(len(sizes)), begins, sizes
    cut = np.flatnonzero(is_cut).tolist()
    if not cut:
        return owners, starts, stops
    pieces = [
        edge
        for index in cut
        for edge in _cut(index, int(begins[index]), int(sizes[index]), target_bytes, cuts.get(index))
    ]
    more = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    owners, starts, stops = (
        np.concatenate([column[~is_cut], more[:, number]]) for number, column in enumerate((owners, starts, stops))
    )
    order = np.argsort(owners, kind="stable")
    return owners[order], starts[order], stops[order]


def _cut(
    index: int, begin: int, end: int, target_bytes: int, cuts: Sequence[int] | None
) -> Iterator[tuple[int, int, int]]:
    size = end - begin
    count = -(-size // target_bytes)
    edges = [begin, *cuts, end] if cuts is not None else [begin + size * part // count for part in range(count + 1)]
    return ((index, start, stop) for start, stop in pairwise(edges))


def _balance(
    objects: Numbers, starts: Numbers, stops: Numbers, costs: npt.NDArray[np.float64], count: int
) -> PieceColumns:
    """Assign the costly pieces, the most costly first, to the least loaded partition; fill up with the others.

    The others are spread in the order of the plan, so that neighbours are read together. Each partition is sorted by
    object and offset.
    """
    count = min(count, len(costs))
    if not count:
        return PieceColumns(objects=objects, starts=starts, stops=stops, bounds=np.zeros(1, dtype=np.int64))
    parts = np.zeros(len(costs), dtype=np.int64)
    is_small = costs * count * _SMALL < costs.sum()
    if np.count_nonzero(is_small) < count * _SMALL:
        is_small[:] = False
    large = np.flatnonzero(~is_small)
    loads = [(0.0, part) for part in range(count)]
    for piece in large[np.argsort(-costs[large], kind="stable")].tolist():
        load, part = loads[0]
        parts[piece] = part
        heapq.heapreplace(loads, (load + costs[piece], part))
    ends = np.cumsum(_room([load for load, _ in sorted(loads, key=lambda each: each[1])], costs[is_small].sum()))
    middles = np.cumsum(costs[is_small]) - costs[is_small] / 2
    parts[is_small] = np.minimum(np.searchsorted(ends, middles, side="right"), count - 1)
    order = np.argsort(parts, kind="stable")
    pieces = np.bincount(parts)
    return PieceColumns(
        objects=objects[order],
        starts=starts[order],
        stops=stops[order],
        bounds=np.cumsum([0, *pieces[pieces > 0]], dtype=np.int64),
    )


def _room(loads: Sequence[float], more: float) -> npt.NDArray[np.float64]:
    """Return how much of ``more`` each partition takes, so that all that take some end up equally loaded."""
    ascending = sorted(loads)
    level = ascending[0]
    for number, (load, following) in enumerate(pairwise([*ascending, float("inf")]), start=1):
        level = load + more / number
        if level <= following:
            break
        more -= (following - load) * number
    return np.maximum(0.0, level - np.array(loads))


def _header(plan: ReadPlan) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "attempt_id": plan.attempt_id,
        "run": plan.run,
        "options": asdict(plan.options),
        "source": _percent(plan.source),
        "aws": asdict(plan.aws),
        "quarantine": _percent(str(plan.quarantine)),
        "current_only": plan.current_only,
        "hashes": plan.hashes,
    }


def _loaded(work: Files, partition: int | None) -> tuple[dict[str, Any], int, pa.RecordBatch | None]:
    """Return the header of a saved plan, its number of partitions, and the pieces of one partition."""
    try:
        with work.open_input(PLAN_FILE) as file:
            reader = pa.ipc.open_file(file)
            header = json.loads(reader.schema.metadata[_HEADER])
            batch = None if partition is None else reader.get_batch(partition)
            return header, reader.num_record_batches, batch
    except FileNotFoundError as error:
        raise TemporaryError(
            f"The host {gethostname()} does not see {work}/{PLAN_FILE}, which the driver has written: all hosts of "
            "the Spark cluster must share the folder of the table."
        ) from error
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise TemporaryError(
            f"The host {gethostname()} cannot read {work}/{PLAN_FILE}, which the driver has written ({error}): all "
            "hosts of the Spark cluster must share the folder of the table."
        ) from error


def _plan(header: Mapping[str, Any], work: Files, *, partitions_count: int) -> SavedPlan:
    if header["version"] != _VERSION:
        raise ValueError(f"a plan of version {header['version']}; this is version {_VERSION}")
    aws = Aws(**header["aws"])
    return SavedPlan(
        attempt_id=header["attempt_id"],
        run=header["run"],
        options=ReadOptions(**header["options"] | {"csv": CsvOptions(**header["options"]["csv"])}),
        partitions_count=partitions_count,
        source=_unpercent(header["source"]),
        aws=aws,
        quarantine=files_at(_unpercent(header["quarantine"]), aws),
        work=work,
        current_only=header["current_only"],
        hashes=header["hashes"],
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else encode_key(text)


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else decode_key(data)


def _percent(text: str) -> str:
    """Percent-encode a name: it may contain any bytes, JSON text may not."""
    return quote_from_bytes(text.encode("utf-8", errors="surrogateescape"), safe="/")


def _unpercent(text: str) -> str:
    return decode_key(unquote_to_bytes(text))

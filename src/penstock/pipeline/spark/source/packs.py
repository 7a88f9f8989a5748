"""Packs: parts of objects that are decoded and released together.

Small objects decoded one by one take three times as long (measured). A pack holds lines that share a decoder, rows that
are fitted together, or rows that are decoded already; each row and bad line keeps its object and its position there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from penstock.pipeline.spark.source.blocks import BadLine, Decoded, Decoder, Positions, UnknownRows
from penstock.pipeline.spark.source.contents import BOM, LineChunk
from penstock.pipeline.spark.source.csv_records import parted
from penstock.pipeline.spark.source.ddl import OBJECT, type_text
from penstock.pipeline.spark.source.fit_rows import Unfitted
from penstock.pipeline.spark.source.lines import Undecoded
from penstock.pipeline.spark.source.unknown import UnknownField, wider_kind

_COLUMN_BYTES = 1 << 10  # of a column of a part, besides its values (measured)
_URI_BYTES_MAX = 64 << 20  # of the _object column in one batch: URIs may be longer than lines

Part = Undecoded | Unfitted | Decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The rows and bad lines of a pack. An owner is the index of a part of the pack, a position one in an object."""

    rows: pa.Table
    owners: Positions  # ascending
    positions: Positions
    bad: Sequence[tuple[int, int, BadLine]]  # owner and position
    unknown: Mapping[str, UnknownRows] = field(default_factory=dict)  # fields without a column, by name
    misfits: Mapping[str, Positions] = field(default_factory=dict)  # by column: the rows whose value is rescued

    def rows_of_each(self, count: int) -> Sequence[int]:
        """Return the number of rows of each of ``count`` owners."""
        rows: list[int] = np.diff(np.searchsorted(self.owners, np.arange(count + 1))).tolist()
        return rows

    def unknown_fields(self) -> Iterator[tuple[int, str, UnknownField]]:
        """Yield the fields without a column of each owner: at most once for its rows and once for its bad lines."""
        bad_owners, bad_positions = (np.array([line[index] for line in self.bad], dtype=np.int64) for index in range(2))
        for name, finding in self.unknown.items():
            ddl = "" if finding.kind is None else type_text(finding.kind)
            yield from _fields(name, self.owners[finding.rows], self.positions[finding.rows], ddl=ddl)
            # a column for a field that only bad lines have would be empty
            yield from _fields(name, bad_owners[finding.bad], bad_positions[finding.bad], ddl="")

    def wrong_types(self) -> Iterator[tuple[int, str, int]]:
        """Yield each owner's columns with rescued values of another type, and the number of these rows."""
        for name, rows in self.misfits.items():
            owners, counts = np.unique(self.owners[rows], return_counts=True)
            for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
                yield owner, name, count

    def batches(
        self, uris: Sequence[str], *, in_paths: pa.Table | None, position: pa.Field | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with the columns from paths, and with their object, in a dictionary, and position in it.

        ``uris`` and ``in_paths`` have a value per part, ``position`` is the column of that name; None: without these.
        """
        names = pa.array(uris, OBJECT.type)
        rows_max = max(1, _URI_BYTES_MAX // max(map(len, uris)))  # a value from a path is no longer
        at = 0
        for batch in self.rows.combine_chunks().to_batches(max_chunksize=rows_max):
            span = slice(at, at + batch.num_rows)
            columns, fields = list(batch.columns), list(self.rows.schema)
            if in_paths is not None:
                owners = pa.array(self.owners[span])
                columns += [column.combine_chunks().take(owners) for column in in_paths.columns]
                fields += in_paths.schema
            if position is not None:
                objects = pa.DictionaryArray.from_arrays(pa.array(self.owners[span].astype(np.int32)), names)
                columns += [objects, pa.array(self.positions[span])]
                fields += [OBJECT.with_type(objects.type), position]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
            at += batch.num_rows


def size_bytes(part: Part) -> int:
    """Return the size of a part in memory."""
    match part:
        case Undecoded():
            return len(part.chunk.lines)
        case Unfitted():
            # a tenth of the time of `nbytes`; its buffers are its own
            return int(part.rows.get_total_buffer_size() + part.rows.num_columns * _COLUMN_BYTES)
        case _:
            return int(part.rows.nbytes + part.rows.num_columns * _COLUMN_BYTES)


def decoder_of(part: Part) -> Decoder | type[Unfitted] | None:
    """Return the decoder that parts of one pack share; the class of rows to be fitted, and None for decoded ones."""
    match part:
        case Undecoded():
            return part.decoder
        case Unfitted():
            return Unfitted
        case _:
            return None


def release(parts: Sequence[Part]) -> Released:
    """Return the rows of a pack, whose parts have one `decoder_of`.

    Raises one of `fit_rows.DAMAGE` for rows that cannot be fitted.
    """
    match parts[0]:
        case Undecoded():
            return _decoded([part for part in parts if isinstance(part, Undecoded)])
        case Unfitted():
            return _fitted([part for part in parts if isinstance(part, Unfitted)])
        case _:
            return _joined([part for part in parts if isinstance(part, Decoded)])


def _decoded(parts: Sequence[Undecoded]) -> Released:
    """Decode the lines of several objects as one block."""
    chunks = [part.chunk for part in parts]
    block = chunks[0].lines if len(chunks) == 1 else b"".join(chunk.lines for chunk in chunks)
    decoded = parts[0].decoder.decode(block, plain=all(chunk.plain for chunk in chunks))
    origin = _Origin.of(chunks)
    owners, positions = origin.locate(decoded.starts)
    return Released(
        rows=decoded.rows,
        owners=owners,
        positions=positions,
        bad=origin.bad_lines(decoded.bad),
        unknown=decoded.unknown,
        misfits=decoded.misfits,
    )


def _fitted(parts: Sequence[Unfitted]) -> Released:
    """Fit the rows of several units: those of consecutive ones with the same fitter as one."""
    runs: list[Decoded] = []  # numbered as if the rows of all parts were one unit
    count = 0
    for fitter, run in groupby(parts, key=attrgetter("fitter")):
        rows = _concatenated([part.rows for part in run])
        runs.append(fitter.fit(rows, count))
        count += rows.num_rows
    decoded = runs[0] if len(runs) == 1 else _one(runs)
    counts = np.array([part.rows.num_rows for part in parts], dtype=np.int64)
    bases = np.cumsum(counts) - counts
    shifts = np.array([part.first for part in parts], dtype=np.int64) - bases

    def located(numbers: Positions) -> tuple[Positions, Positions]:
        # a part without rows has the base of the next one: the last part with that base has the row
        owners = _owners(bases, numbers)
        return owners, numbers + shifts[owners]

    owners, positions = located(decoded.starts)
    bad_owners, bad_positions = located(np.array([bad.start for bad in decoded.bad], dtype=np.int64))
    return Released(
        rows=decoded.rows,
        owners=owners,
        positions=positions,
        bad=list(zip(bad_owners.tolist(), bad_positions.tolist(), decoded.bad, strict=True)),
        unknown=decoded.unknown,
        misfits=decoded.misfits,
    )


def _owners(bases: Positions, at: Positions) -> Positions:
    """Return the index of the last base at or before each position; the first base is 0."""
    return np.searchsorted(bases, at, side="right") - 1 if len(bases) > 1 else np.zeros(len(at), dtype=np.int64)


def _one(runs: Sequence[Decoded]) -> Decoded:
    return Decoded(
        rows=_concatenated([run.rows for run in runs]),
        starts=np.concatenate([run.starts for run in runs]),
        bad=tuple(chain.from_iterable(run.bad for run in runs)),
        unknown=_joined_unknown(runs),
        misfits=_joined_misfits(runs),
    )


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _joined(parts: Sequence[Decoded]) -> Released:
    """Put the rows of several units together."""
    return Released(
        rows=_concatenated([part.rows for part in parts]),
        owners=np.repeat(np.arange(len(parts)), [part.rows.num_rows for part in parts]),
        positions=np.concatenate([part.starts for part in parts]),
        bad=[(owner, bad.start, bad) for owner, part in enumerate(parts) for bad in part.bad],
        unknown=_joined_unknown(parts),
        misfits=_joined_misfits(parts),
    )


def _joined_unknown(parts: Sequence[Decoded]) -> Mapping[str, UnknownRows]:
    found: dict[str, UnknownRows] = {}
    first = first_bad = 0
    for part in parts:
        for name, finding in part.unknown.items():
            rows, bad, kind = finding.rows + first, finding.bad + first_bad, finding.kind
            if (known := found.get(name)) is not None:
                rows, bad = np.concatenate([known.rows, rows]), np.concatenate([known.bad, bad])
                kind = wider_kind(known.kind, kind)
            found[name] = UnknownRows(rows=rows, bad=bad, kind=kind)
        first += part.rows.num_rows
        first_bad += len(part.bad)
    return found


def _joined_misfits(parts: Sequence[Decoded]) -> Mapping[str, Positions]:
    found: dict[str, list[Positions]] = {}
    first = 0
    for part in parts:
        for name, rows in part.misfits.items():
            found.setdefault(name, []).append(rows + first)
        first += part.rows.num_rows
    return {name: np.concatenate(rows) for name, rows in found.items()}


def _fields(name: str, owners: Positions, positions: Positions, *, ddl: str) -> Iterator[tuple[int, str, UnknownField]]:
    """Yield a field for each owner; both arrays ascend, and have a value for each row with the field."""
    found, first, counts = np.unique(owners, return_index=True, return_counts=True)
    for owner, position, count in zip(found.tolist(), positions[first].tolist(), counts.tolist(), strict=True):
        yield owner, name, UnknownField(rows=count, first=position, ddl=ddl)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Maps positions in a block to the objects they are from."""

    chunks: Sequence[LineChunk]
    bases: Positions  # start of each chunk in the block
    shifts: Positions  # offset in the object minus position in the block, per chunk

    @staticmethod
    def of(chunks: Sequence[LineChunk]) -> "_Origin":
        sizes = np.array([len(chunk.lines) for chunk in chunks], dtype=np.int64)
        bases = np.cumsum(sizes) - sizes
        return _Origin(chunks=chunks, bases=bases, shifts=np.array([chunk.offset for chunk in chunks]) - bases)

    def locate(self, starts: Positions) -> tuple[Positions, Positions]:
        """Convert line starts in the block to indexes of chunks and offsets in the objects."""
        owners = _owners(self.bases, starts)
        offsets = starts + self.shifts[owners]
        if any(chunk.marked for chunk in self.chunks):
            marked = np.array([chunk.marked for chunk in self.chunks])
            offsets[marked[owners] & (starts == self.bases[owners])] = 0
        return owners, offsets

    def bad_lines(self, found: Sequence[BadLine]) -> list[tuple[int, int, BadLine]]:
        """Return bad lines of the block with their chunk and offset in the object."""
        owners, offsets = self.locate(np.array([bad.start for bad in found], dtype=np.int64))
        return [
            (owner, offset, replace(bad, raw=self._raw(bad, self.chunks[owner], offset)))
            for bad, owner, offset in zip(found, owners.tolist(), offsets.tolist(), strict=True)
        ]

    @staticmethod
    def _raw(bad: BadLine, chunk: LineChunk, offset: int) -> bytes:
        """Return the line as the object has it."""
        is_marked = chunk.marked and offset == 0
        raw = bad.raw
        if chunk.original is not None:
            start = 0 if is_marked else offset - chunk.offset
            line = chunk.original[start : chunk.original.index(b"\n", start)].removesuffix(b"\r")
            raw = parted(line) if chunk.joined else line
        return BOM + raw if is_marked else raw

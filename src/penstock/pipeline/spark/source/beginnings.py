"""Compute digests of the bytes that a run reads, and check if an object begins with bytes that were read before.

While the lines of a piece are read, its SHA-256 is computed. The pieces of an object are the stretches of its
beginning. If its next version is longer and begins with these bytes, only the rest is read. The check reads the
beginning and computes one SHA-256 of all its bytes, which the piece that follows continues. So the number of stretches
does not grow with the number of versions.

A version is no beginning if it ends within a record: its last line may be continued. Nor is one in UTF-16, whose
offsets are not those of its bytes, or a compressed one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.ledger.records import Beginning, KnownBeginning
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import is_replay
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.contents import UTF16_MARKS
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.inflate import is_compressed
from penstock.pipeline.spark.source.options import ReadOptions

if TYPE_CHECKING:
    from hashlib import _Hash

Stretches = Sequence[tuple[int, str]]  # where each ends, and its SHA-256 in hexadecimal

_MARK_BYTES = 2
_READ_BYTES = 1 << 20
_NEWLINE = ord("\n")


def as_text(stretches: Stretches) -> str:
    """Return the stretches of a beginning as `penstock.ledger.records.Beginning.digest` has them."""
    return json.dumps([list(stretch) for stretch in stretches], separators=(",", ":"))


def from_text(text: str) -> Stretches:
    """Return the stretches in a text of `as_text`."""
    return [(end, digest) for end, digest in json.loads(text)]


def reading_of(options: ReadOptions, transform: str | None) -> str:
    """Return a digest of all that decides which rows an object yields, besides its bytes."""
    deciding = {
        "format": options.format,
        "schema": options.schema_ddl,
        "csv": asdict(options.csv),
        "partitions": options.partitions_ddl,
        "evolve": options.evolve,
        "transform": transform,
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def may_begin(ref: ObjectRef, options: ReadOptions) -> bool:
    """Return True if what is appended to an object can be read alone."""
    return format_of(options.format).can_grow and not is_compressed(ref)


def usable_beginnings(
    known: Mapping[bytes, KnownBeginning], objects: Sequence[ObjectRef], options: ReadOptions, *, reading: str
) -> Mapping[int, KnownBeginning]:
    """Return the beginnings that need not be read again if the objects begin with them, by place in the plan.

    ``known``: the table's beginnings, by object id. ``reading``: how the objects are read now, see `reading_of`.
    """
    found: dict[int, KnownBeginning] = {}
    for index, ref in enumerate(objects if known else ()):
        one = known.get(ref.object_id)
        if one is None or is_replay(ref.version_id, ref.etag) or not may_begin(ref, options):
            continue
        if one.beginning.reading == reading and one.beginning.size_bytes < ref.size_bytes:
            found[index] = one
    return found


def beginning_of(ref: ObjectRef, digest: str | None, *, reading: str) -> Beginning | None:
    """Return the beginning that an object is for its next version. ``digest``: of all its bytes, as text."""
    return None if digest is None else Beginning(size_bytes=ref.size_bytes, digest=digest, reading=reading)


class HashingReader:
    """An `ObjectReader` that computes the SHA-256 of a range while this is read from its start to its end."""

    def __init__(self, reader: ObjectReader, start: int, stop: int, digest: "_Hash | None" = None) -> None:
        """``digest``: of the bytes before ``start``, to be continued; None: begin with ``start``."""
        self._reader = reader
        self._at = start  # everything from the start up to here was read
        self._stop = stop
        self._digest = hashlib.sha256() if digest is None else digest
        self._mark = b""
        self._last = -1

    @property
    def ref(self) -> ObjectRef:
        return self._reader.ref

    def result(self) -> str | None:
        """Return the SHA-256 in hexadecimal; None if the object is in UTF-16, or ends there within a line.

        Reads the bytes that the reader of lines passed over, at the end of a piece in which no further line begins.
        Raises the store's `ObjectError`.
        """
        if self._mark in UTF16_MARKS:
            return None
        passed_over = self._at < self._stop
        while self._at < self._stop:
            if not self.pread(self._at, min(_READ_BYTES, self._stop - self._at)):
                return None
        if passed_over:
            self.verify()
        ended_within = self._stop == self.ref.size_bytes and self._last != _NEWLINE
        return None if ended_within else self._digest.hexdigest()

    def read(self, size_bytes: int = -1, /) -> bytes:
        return self._reader.read(size_bytes)

    def pread(self, offset: int, length_bytes: int) -> bytes:
        data = self._reader.pread(offset, length_bytes)
        if offset == 0 and len(data) >= _MARK_BYTES:
            self._mark = bytes(data[:_MARK_BYTES])
        if offset <= self._at < min(offset + len(data), self._stop):
            new = memoryview(data)[self._at - offset : self._stop - offset]
            self._digest.update(new)
            self._at += len(new)
            self._last = new[-1]
        return data

    def verify(self) -> None:
        self._reader.verify()

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def beginning_digest(reader: ObjectReader, stretches: Stretches, *, block_bytes: int) -> "_Hash | None":
    """Return the SHA-256 of the beginning, to be continued; None if the object begins with other bytes.

    The bytes are of the open version only once its `verify` has passed.
    """
    whole = hashlib.sha256()
    at = 0
    for end, expected in stretches:
        own = whole if len(stretches) == 1 else hashlib.sha256()
        while at < end:
            data = reader.pread(at, min(block_bytes, end - at))
            if not data:
                return None
            own.update(data)
            if own is not whole:
                whole.update(data)
            at += len(data)
        if own.hexdigest() != expected:
            return None
    return whole


def joined(pieces: Mapping[int, tuple[int, str | None]], size_bytes: int) -> str | None:
    """Return the beginning that the pieces of an object of this size make, as text; None if they make none.

    ``pieces``: where each ends and its digest, by its start; the first digest counts from the object's first byte.
    """
    stretches: list[tuple[int, str]] = []
    at: int | None = None
    for start, (stop, digest) in sorted(pieces.items()):
        if digest is None or (at is not None and start != at):
            return None
        stretches.append((stop, digest))
        at = stop
    return as_text(stretches) if stretches and at == size_bytes and size_bytes else None

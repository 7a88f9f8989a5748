"""Read bounded samples of lines, from which schemas are inferred."""

from collections.abc import Iterator
from dataclasses import replace

from penstock.errors import ObjectError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.csv_records import read_parts
from penstock.pipeline.spark.source.inflate import codec_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

_SAMPLE_BYTES = 2 << 20  # of all objects together, because it delays the first run (four megabytes of CSV: by 1.3 s)
_SLICE_BYTES = 64 << 10


def sample_chunks(ref: ObjectRef, store: ObjectStore, options: ReadOptions, *, objects: int) -> Iterator[LineChunk]:
    """Yield lines from the beginning of an object and, if it is not compressed, from places spread over the rest.

    ``objects``: how many share the size of the sample. Ends early if the object cannot be read: the read itself will
    fail and report it.
    """
    options = replace(options, block_bytes=_SLICE_BYTES, inflated_bytes_verified_max=0)
    compressed = codec_of(ref) is not None
    slices = max(1, _SAMPLE_BYTES // objects // _SLICE_BYTES // 2)
    head_bytes = slices * _SLICE_BYTES
    head = ref.size_bytes if compressed else min(ref.size_bytes, head_bytes)
    beginning_bytes = max(head_bytes, _SAMPLE_BYTES // objects) if compressed else head_bytes  # it has no other places
    rest = 0 if compressed else ref.size_bytes - head
    starts = [head + rest * number // slices for number in range(slices)] if rest > 0 else []
    pieces = [(0, head), *((start, min(start + _SLICE_BYTES, ref.size_bytes)) for start in starts)]
    try:
        with store.open(ref) as reader:
            for start, stop in pieces:
                size_bytes = 0
                for part in read_parts(reader, Piece(object=0, start=start, stop=stop), options):
                    if isinstance(part, LineChunk):
                        yield part
                        size_bytes += len(part.lines)
                    if size_bytes >= beginning_bytes:
                        break
    except ObjectError:
        return


def sample_lines(ref: ObjectRef, store: ObjectStore, options: ReadOptions, *, objects: int) -> Iterator[bytes]:
    """Yield the lines of `sample_chunks` without their newline."""
    for _, line in sample_lines_at(ref, store, options, objects=objects):
        yield line


def sample_lines_at(
    ref: ObjectRef, store: ObjectStore, options: ReadOptions, *, objects: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of `sample_chunks` without their newline, each with its offset in the (inflated) object."""
    for chunk in sample_chunks(ref, store, options, objects=objects):
        yield from lines_at(chunk)


def lines_at(chunk: LineChunk) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a chunk without their newline, each with its offset in the object."""
    at = chunk.offset
    for line in chunk.lines.split(b"\n")[:-1]:
        yield at, line
        at += len(line) + 1

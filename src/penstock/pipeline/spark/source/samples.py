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

_HEAD_BYTES = 1 << 20  # from the beginning of an object
_SLICES = 8  # from the rest of it, if it is not compressed
_SLICE_BYTES = 64 << 10


def sample_chunks(ref: ObjectRef, store: ObjectStore, options: ReadOptions) -> Iterator[LineChunk]:
    """Yield lines from the beginning of an object and, if it is not compressed, from places spread over the rest.

    Ends early if the object cannot be read: the read itself will fail and report it.
    """
    options = replace(options, block_bytes=_SLICE_BYTES, inflated_bytes_verified_max=0)
    compressed = codec_of(ref) is not None
    head = ref.size_bytes if compressed else min(ref.size_bytes, _HEAD_BYTES)
    rest = 0 if compressed else ref.size_bytes - head
    starts = [head + rest * number // _SLICES for number in range(_SLICES)] if rest > 0 else []
    pieces = [(0, head), *((start, min(start + _SLICE_BYTES, ref.size_bytes)) for start in starts)]
    try:
        with store.open(ref) as reader:
            for start, stop in pieces:
                size_bytes = 0
                for part in read_parts(reader, Piece(object=0, start=start, stop=stop), options):
                    if isinstance(part, LineChunk):
                        yield part
                        size_bytes += len(part.lines)
                    if size_bytes >= _HEAD_BYTES:
                        break
    except ObjectError:
        return


def first_lines(ref: ObjectRef, store: ObjectStore, options: ReadOptions) -> Iterator[bytes]:
    """Yield sample lines without their newline. Ends early like `sample_chunks`."""
    for chunk in sample_chunks(ref, store, options):
        yield from chunk.lines.split(b"\n")[:-1]

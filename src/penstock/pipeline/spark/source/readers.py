"""Choose the reader of a source's format."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.avro import AvroFormat
from penstock.pipeline.spark.source.binary import BinaryObjects
from penstock.pipeline.spark.source.columnar import ColumnarFormat
from penstock.pipeline.spark.source.contents import BadRecord, Quotes
from penstock.pipeline.spark.source.documents import JsonDocuments
from penstock.pipeline.spark.source.formats import OWN_FORMAT
from penstock.pipeline.spark.source.lines import LinesReader
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.own_reader import OwnReader
from penstock.pipeline.spark.source.packs import Part
from penstock.pipeline.spark.source.plan import Piece


class FormatReader(Protocol):
    """Reads objects of one format under one schema. Used by one thread."""

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Part | BadRecord | Quotes]:
        """Yield the units that begin in the piece, in order and verified. Raises the store's `ObjectError`."""
        ...


def reader_of(options: ReadOptions) -> FormatReader:
    """Return a reader for the format of the options."""
    return _READERS[options.format](options)


_READERS: Mapping[str, Callable[[ReadOptions], FormatReader]] = {
    "jsonl": LinesReader,
    "csv": LinesReader,
    "text": LinesReader,
    "json": JsonDocuments,
    "parquet": ColumnarFormat,
    "orc": ColumnarFormat,
    "avro": AvroFormat,
    "binary": BinaryObjects,
    OWN_FORMAT: OwnReader,
}

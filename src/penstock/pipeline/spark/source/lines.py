"""Read objects of lines: find the lines, and the decoder of each (one per format, for CSV one per header)."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.blocks import Decoder
from penstock.pipeline.spark.source.contents import BadRecord, LineChunk, Quotes
from penstock.pipeline.spark.source.csv_records import header_names, holds_joined, layout_of, read_parts
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece
from penstock.pipeline.spark.source.rescue import open_csv, open_jsonl
from penstock.pipeline.spark.source.text import TextDecoder

_KEPT_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded:
    """Lines of one object. Those with the same decoder are decoded together."""

    chunk: LineChunk
    decoder: Decoder


class LinesReader:
    """Reads objects of lines. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._schema = parse_ddl(options.schema_ddl)
        # By header and by the possibility of joined records. Equal headers share a decoder, so that a block can hold
        # many small objects.
        self._known: dict[tuple[bytes, bool], Decoder] = {}

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Undecoded | BadRecord | Quotes]:
        """Yield the lines that begin in the piece. Raises the store's `ObjectError`."""
        for part in read_parts(reader, piece, self._options):
            if not isinstance(part, LineChunk):
                yield part
                continue
            decoder = self._decoder(part, reader.ref.uri)
            if part.lines:
                yield Undecoded(chunk=part, decoder=decoder)

    def _decoder(self, part: LineChunk, uri: str) -> Decoder:
        """Return the decoder for these lines. Raises `ObjectUnreadable` if the header does not fit the schema."""
        key = part.header, self._options.format == "csv" and (part.joined or not holds_joined(part.lines))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            found = self._known[key] = self._make(*key, uri)
        return found

    def _make(self, header: bytes, joined: bool, uri: str) -> Decoder:
        match self._options.format:
            case "csv":
                csv = self._options.csv
                layout = layout_of(header, self._schema, csv, uri)
                names = header_names(header, csv, uri) if csv.header else ()
                return open_csv(self._schema, self._options, layout, names, joined=joined)
            case "text":
                return TextDecoder(self._schema)
            case _:
                return open_jsonl(self._schema, self._options)

"""The decoder of a source's format; for CSV one for each header that its objects have."""

from penstock.pipeline.source.blocks import Decoder
from penstock.pipeline.source.ddl import parse_ddl
from penstock.pipeline.source.delimited import CsvDecoder
from penstock.pipeline.source.headers import layout_of
from penstock.pipeline.source.jsonl import JsonlDecoder
from penstock.pipeline.source.options import ReadOptions
from penstock.pipeline.source.text import TextDecoder

_KEPT_MAX = 64


class Decoders:
    """Gives equal headers the same decoder, so that blocks can be put together of many small objects."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._schema = parse_ddl(options.schema_ddl)
        self._known: dict[bytes, Decoder] = {}  # by header; written by the one thread that reads the partition

    def of(self, header: bytes, uri: str) -> Decoder:
        """The decoder for lines below that header. Raises `ObjectUnreadable` where it is no header for the schema."""
        found = self._known.get(header)
        if found is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            found = self._known[header] = self._make(header, uri)
        return found

    def _make(self, header: bytes, uri: str) -> Decoder:
        match self._options.format:
            case "csv":
                layout = layout_of(header, self._schema, self._options.csv, uri)
                return CsvDecoder(self._schema, self._options.csv, layout)
            case "text":
                return TextDecoder(self._schema)
            case _:
                return JsonlDecoder(self._schema)

"""Read objects as they are: a row has the address, the length and the bytes of one object."""

from collections.abc import Iterator

import pyarrow as pa

from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.blocks import Decoded
from penstock.pipeline.spark.source.contents import whole
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.fit_rows import Fitter, names_read
from penstock.pipeline.spark.source.options import BINARY_DDL, ReadOptions
from penstock.pipeline.spark.source.plan import Piece

_SCHEMA = parse_ddl(BINARY_DDL)


class BinaryObjects:
    """Reads each object as one row. ``content`` is read only if it is declared."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._declared = parse_ddl(options.schema_ddl)

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Decoded]:  # noqa: ARG002 # an object is one piece
        """Yield the row, or a bad one, verified. Raises the store's `ObjectError`."""
        ref = reader.ref
        names = names_read(_SCHEMA.names, self._declared, uri=ref.uri)
        content = whole(reader, self._options, inflated=False) if "content" in names else None
        row = {"path": [ref.uri], "length": [ref.size_bytes], "content": [content]}
        rows = pa.table(row, schema=_SCHEMA).select(names)
        yield Fitter(names, self._declared).fit(rows, 0)

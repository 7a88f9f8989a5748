"""Columns from the paths of objects, as Hive names folders: `day=2026-01-02/region=eu%2Fwest/`.

A value is the text behind the name in one of the object's folders, percent-decoded; if a name occurs twice, the
innermost counts. Names are compared without case. `__HIVE_DEFAULT_PARTITION__` is NULL. Values are read as those of CSV
are (csv_lines.py). They come from the object's key and are used as nothing else.
"""

from urllib.parse import unquote_to_bytes

import pyarrow as pa

from penstock.errors import ObjectCorrupt
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import Layout
from penstock.pipeline.spark.source.csv_records import join
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.options import CsvOptions

_NULL = "__HIVE_DEFAULT_PARTITION__"
_CSV = CsvOptions(header=False)
_SHOWN_CHARS = 100


class PathPartitions:
    """Reads the partitions of objects. Used by one thread."""

    def __init__(self, ddl: str) -> None:
        self.schema = parse_ddl(ddl) if ddl else pa.schema([])
        # with a column before the others, since a line of one empty field is a blank line
        schema = pa.schema([pa.field("", pa.string()), *self.schema])
        layout = Layout(fields=len(schema), indexes=tuple(range(len(schema))))
        self._decoder = CsvDecoder(schema, _CSV, layout, joined=True)
        self._known: dict[tuple[str | None, ...], pa.Table] = {}

    def values(self, ref: ObjectRef) -> pa.Table:
        """Return the values of an object as a table of one row.

        Raises `ObjectCorrupt` if its path lacks a partition or a value does not fit: another attempt has the same path.
        """
        found = _in_path(ref)
        missing = [field.name for field in self.schema if field.name.lower() not in found]
        if missing:
            name = missing[0]
            raise ObjectCorrupt(f"{ref.uri} has no folder {name}=... in its path, and {name} is a partition column")
        texts = tuple(found[field.name.lower()] for field in self.schema)
        if texts not in self._known:
            self._known[texts] = self._decoded(texts, ref)
        return self._known[texts]

    def _decoded(self, texts: tuple[str | None, ...], ref: ObjectRef) -> pa.Table:
        for field, text in zip(self.schema, texts, strict=True):
            if text == "" and not pa.types.is_string(field.type):
                raise ObjectCorrupt(f"{ref.uri} has a folder {field.name}= without a value in its path")
        line = ",".join(["x", *("" if text is None else _quoted(text) for text in texts)])
        decoded = self._decoder.decode(join(f"{line}\n".encode()))
        if decoded.bad:
            reason = decoded.bad[0].detail[:_SHOWN_CHARS]
            raise ObjectCorrupt(f"{ref.uri} has a partition in its path that does not fit: {reason}")
        return decoded.rows.drop_columns("")


def _in_path(ref: ObjectRef) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for folder in ref.key_bytes.split(b"/")[:-1]:
        name, is_partition, value = folder.partition(b"=")
        if name and is_partition:
            found[_text(name, ref).lower()] = None if value == _NULL.encode() else _text(value, ref)
    return found


def _text(part: bytes, ref: ObjectRef) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise ObjectCorrupt(f"{ref.uri} has a folder in its path that is not UTF-8") from error


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'

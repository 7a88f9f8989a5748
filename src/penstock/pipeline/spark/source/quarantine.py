"""The schema of quarantined lines, and the files that the reader writes them to."""

from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.errors import TemporaryError
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("object", pa.string()),
        pa.field("offset", pa.int64()),  # of the line's first byte in the (inflated) object
        pa.field("raw", pa.binary()),  # the line's bytes without its ending
        pa.field("reason", pa.string()),  # invalid UTF-8, malformed, wrong type
        pa.field("detail", pa.string()),  # a short explanation for people
    ]
)
_BUFFERED_BYTES_MAX = 16 << 20
_BUFFERED_LINES_MAX = 50_000


class _Abandoned(Exception):
    """Raised to abandon a half-written file."""


class QuarantineFile:
    """The bad lines of one partition, written to one Parquet file; no file if there are none."""

    def __init__(self, root: Files, directory: str, partition: int) -> None:
        self._root = root
        self._path = f"{directory}/part-{partition:05}-{uuid4().hex}.parquet"
        self._buffered: list[tuple[str, int, bytes, str, str]] = []
        self._buffered_bytes = 0
        self._rows = 0
        self._writer: Any = None  # a ParquetWriter, from the first flush on
        self._footers: list[Any] = []  # the writer's one footer, once it is closed
        self._output = ExitStack()  # owns the writer's output stream

    def add(self, uri: str, offset: int, raw: bytes, reason: str, detail: str) -> None:
        """Add one bad line."""
        self._buffered.append((uri, offset, raw, reason, detail))
        self._buffered_bytes += len(raw)
        if self._buffered_bytes > _BUFFERED_BYTES_MAX or len(self._buffered) >= _BUFFERED_LINES_MAX:
            self._flush()

    def finish(self) -> DataFile | None:
        """Close the file and return it, with its path relative to the table's root; None if there was no bad line."""
        self._flush()
        if self._writer is None:
            return None
        from penstock.sinks.parquet import statistics

        self._writer.close()
        self._output.close()
        written = self._root.stat(self._path)
        if written is None:
            raise TemporaryError(f"{self._root}/{self._path} was written and is not there")
        return DataFile(
            path=self._path,
            size_bytes=written.size_bytes,
            rows=self._rows,
            modified_at=written.modified_at,
            statistics=statistics(self._footers[0], QUARANTINE_SCHEMA),
        )

    def abandon(self) -> None:
        """Discard the file, which no report will name."""
        if self._writer is not None:
            with suppress(_Abandoned), self._output:
                self._writer.close()
                raise _Abandoned

    def _flush(self) -> None:
        if not self._buffered:
            return
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*self._buffered, strict=True), QUARANTINE_SCHEMA, strict=True)
        ]
        self._open().write_table(pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA))
        self._rows += len(self._buffered)
        self._buffered, self._buffered_bytes = [], 0

    def _open(self) -> Any:
        if self._writer is None:
            import pyarrow.parquet as pq  # most partitions have no bad line, and executors should start quickly

            output = self._output.enter_context(self._root.open_output(self._path))
            self._writer = pq.ParquetWriter(output, QUARANTINE_SCHEMA, metadata_collector=self._footers)
        return self._writer

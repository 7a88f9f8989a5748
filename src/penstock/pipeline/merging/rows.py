"""Read columns of a table's files for a merge, row group by row group, also columns that only name partitions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.merging.order import Rows
from penstock.pipeline.rewriting import OpenedFile, StoredColumns, opened
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import LoggedFile
from penstock.storage.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """A Parquet file of a table, or one beside it."""

    path: str
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)


def row_file(file: DataFile | LoggedFile) -> RowFile:
    """Return the file of a manifest or a table's log, as a merge reads it."""
    return RowFile(path=file.path, rows=file.rows, partition_values=file.partition_values, statistics=file.statistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The values that a batch has in each column of its key, sorted. It rules out files and row groups."""

    columns: Mapping[str, pa.Array]

    def may_hold(self, file: RowFile) -> bool:
        """Return False if no key can be in the file, by its partition or its statistics in the log.

        A null partition rules nothing out: folder names have the same text for a null and an empty string.
        """
        least, greatest = (file.statistics.get(name, {}) for name in ("minValues", "maxValues"))
        for name, values in self.columns.items():
            if name in file.partition_values:
                text = file.partition_values[name]
                if text is not None and not self._overlaps(values, text, text):
                    return False
            elif name in least and name in greatest and not self._overlaps(values, least[name], greatest[name]):
                return False
        return True

    def may_be_in_group(self, group: Any, names: Mapping[str, str]) -> bool:
        """Return False if no key can be in the row group, by its statistics. ``names`` are those in the file."""
        by_file = {names[name]: values for name, values in self.columns.items() if name in names}
        for index in range(group.num_columns):
            column = group.column(index)
            values = by_file.get(column.path_in_schema)
            found = column.statistics if values is not None else None
            if found is not None and found.has_min_max:
                try:
                    bounds = found.min, found.max
                except (ValueError, OverflowError):  # cut within a character; outside the years 1 to 9999
                    continue
                if not self._overlaps(values, *bounds):
                    return False
        return True

    @staticmethod
    def _overlaps(values: Any, least: Any, greatest: Any) -> bool:
        """Return True if a value is within the bounds, or if bounds of this type cannot be compared."""
        try:
            low, high = (_scalar(bound, values.type) for bound in (least, greatest))
            within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
            return bool(pc.any(within).as_py())
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads files that have columns of one schema."""

    root: Files
    schema: pa.Schema
    field_ids: Mapping[int, str] = field(default_factory=dict)  # see `StoredColumns`

    def groups(
        self, file: RowFile, names: Sequence[str], *, within: KeyRange | None = None
    ) -> Iterator[tuple[int, Sequence[pa.Array]]]:
        """Yield the columns of each row group that may hold a key, with the number of its first row."""
        with self._opened(file) as found:
            first = 0
            for number in range(found.parquet.num_row_groups):
                group = found.parquet.metadata.row_group(number)
                if within is None or within.may_be_in_group(group, found.names):
                    yield first, self._columns(found, number, file, names)
                first += group.num_rows

    def at(self, files: Sequence[RowFile], file_of: Rows, row_of: Rows, names: Sequence[str]) -> Sequence[pa.Array]:
        """Return columns of single rows, in the requested order. Reads only the row groups that have them."""
        if not len(file_of):
            return [pa.array([], self.schema.field(name).type) for name in names]
        order = np.lexsort((row_of, file_of))
        parts: list[Sequence[pa.Array]] = []
        for number in np.flatnonzero(np.bincount(file_of)):
            wanted = row_of[order][file_of[order] == number]
            parts += self._at(files[int(number)], wanted, names)
        back = pa.array(np.argsort(order, kind="stable"))
        return [pa.concat_arrays([part[column] for part in parts]).take(back) for column in range(len(names))]

    def _at(self, file: RowFile, wanted: Rows, names: Sequence[str]) -> Iterator[Sequence[pa.Array]]:
        with self._opened(file) as found:
            first = 0
            for number in range(found.parquet.num_row_groups):
                end = first + found.parquet.metadata.row_group(number).num_rows
                begin, until = np.searchsorted(wanted, [first, end])
                if begin < until:
                    numbers = pa.array(wanted[begin:until] - first)
                    yield [column.take(numbers) for column in self._columns(found, number, file, names)]
                first = end

    def _opened(self, file: RowFile) -> AbstractContextManager[OpenedFile]:
        return opened(self.root, file.path, StoredColumns(schema=self.schema, field_ids=self.field_ids))

    def _columns(self, found: OpenedFile, number: int, file: RowFile, names: Sequence[str]) -> Sequence[pa.Array]:
        stored = {name: found.names[name] for name in names if name in found.names}
        table = found.parquet.read_row_group(number, columns=list(stored.values()))
        rows = found.parquet.metadata.row_group(number).num_rows
        return [self._column(table, name, file, rows, stored) for name in names]

    def _column(self, table: pa.Table, name: str, file: RowFile, rows: int, stored: Mapping[str, str]) -> pa.Array:
        kind = self.schema.field(name).type
        if name in stored:
            column = table.column(stored[name]).combine_chunks()
            one = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
            return one.cast(kind)
        text = file.partition_values.get(name)
        if text is None:
            return pa.nulls(rows, kind)
        return pa.repeat(_scalar(text, kind), rows)


def key_range(names: Sequence[str], columns: Sequence[pa.Array]) -> KeyRange:
    """Return the range of keys, given by their columns."""
    found = {name: pc.unique(column) for name, column in zip(names, columns, strict=True)}
    return KeyRange(columns=found)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a bound or a partition's value, which may be a text, in the type of its column."""
    if isinstance(value, str) and not pa.types.is_string(kind):
        return pa.scalar(value).cast(kind)
    return pa.scalar(value, kind)

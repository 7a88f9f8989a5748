"""The rows and deletes of one batch, as a publish compares them: keys and order in memory, the rest in the files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.order import Rows, Signs, compare, content_names, key_texts, last_of_each
from penstock.pipeline.merging.rows import KeyRange, RowFile, RowReader, key_range

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeEntries:
    """The last row or delete of each key of a batch."""

    keys: pa.Array  # one text per entry, see `key_texts`
    order: Sequence[pa.Array]
    deletes: Flags
    file_of: Rows  # the number of the file with the row; of a delete, of its file of deletes
    row_of: Rows
    range: KeyRange

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """Rows of one row group, with their keys and what orders them."""

    first: int  # number of the first row in its file
    keys: pa.Array
    order: Sequence[pa.Array]
    key_columns: Sequence[pa.Array]


def keyed_rows(
    reader: RowReader, file: RowFile, merge: Merge, *, within: KeyRange | None = None
) -> Iterator[KeyedRows]:
    """Yield the rows of a file's row groups, without those that cannot have a key in the range."""
    names = list(merge.compared)
    for first, columns in reader.groups(file, names, within=within):
        found = dict(zip(names, columns, strict=True))
        key_columns = [found[name] for name in merge.key]
        yield KeyedRows(
            first=first,
            keys=key_texts(key_columns),
            order=[found[name] for name in merge.order_by],
            key_columns=key_columns,
        )


def read_entries(reader: RowReader, merge: Merge, files: Sequence[RowFile], deletes: Sequence[RowFile]) -> MergeEntries:
    """Read the keys of a batch, and fold rows with the same key to the last one."""
    kinds = [reader.schema.field(name).type for name in merge.order_by]
    key_kinds = [reader.schema.field(name).type for name in merge.key]
    parts: list[KeyedRows] = []
    file_of: list[Rows] = []
    row_of: list[Rows] = []
    flags: list[Flags] = []
    for is_delete, some in ((False, files), (True, deletes)):
        for number, file in enumerate(some):
            for part in keyed_rows(reader, file, merge):
                rows = len(part.keys)
                parts.append(part)
                file_of.append(np.full(rows, number, np.int64))
                row_of.append(np.arange(part.first, part.first + rows, dtype=np.int64))
                flags.append(np.full(rows, is_delete))
    keys = _joined([part.keys for part in parts], pa.large_string())
    order = [_joined([part.order[column] for part in parts], kind) for column, kind in enumerate(kinds)]
    found = _Rows(
        reader=reader,
        files=files,
        order=order,
        deletes=_all(flags, np.bool_),
        file_of=_all(file_of, np.int64),
        row_of=_all(row_of, np.int64),
        content=content_names(reader.schema, merge.compared),
    )
    last = last_of_each(keys, found.decide)
    picked = pa.array(last)
    return MergeEntries(
        keys=keys.take(picked),
        order=[column.take(picked) for column in order],
        deletes=found.deletes[last],
        file_of=found.file_of[last],
        row_of=found.row_of[last],
        range=key_range(
            merge.key,
            [_joined([part.key_columns[column] for part in parts], kind) for column, kind in enumerate(key_kinds)],
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """All rows of a batch, also several of one key."""

    reader: RowReader
    files: Sequence[RowFile]
    order: Sequence[pa.Array]
    deletes: Flags
    file_of: Rows
    row_of: Rows
    content: Sequence[str]

    def decide(self, left: Rows, right: Rows) -> Signs:
        """Compare rows, given by number."""
        ordered = (*self.order, pa.array(self.deletes))
        one, other = ([column.take(pa.array(rows)) for column in ordered] for rows in (left, right))
        signs = compare(one, other, len(left))
        tied = np.flatnonzero((signs == 0) & ~self.deletes[left])
        if len(tied):
            signs[tied] = compare(self._contents(left[tied]), self._contents(right[tied]), len(tied))
        return signs

    def _contents(self, rows: Rows) -> Sequence[pa.Array]:
        return self.reader.at(self.files, self.file_of[rows], self.row_of[rows], self.content)


def _joined(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


def _all(arrays: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(arrays) if arrays else np.array([], kind)

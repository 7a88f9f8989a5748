"""The order of rows in compacted files, so that readers skip files by the statistics of several columns.

By one column, rows are sorted. By several, they follow a Z-order curve: each value becomes its rank among the rows, and
rows are sorted by a number that takes the ranks' bits in turn, the highest first. Ranks, and not values, spread rows
evenly whatever the values' type and distribution (measured: with values, one outlier removes all effect).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from penstock.errors import TableError

COLUMNS_MAX = 8
# of sorted rows, at most
BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20
RANK_BITS_MAX = 20  # of each column, in a Z-order
_KEY_BITS = 63  # of the number that rows are sorted by


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The columns that rows are ordered by."""

    columns: tuple[str, ...]

    @property
    def mark(self) -> str:
        """The part of a file's name that says that its rows have this order."""
        return f"by-{hashlib.sha256(json.dumps(self.columns).encode()).hexdigest()[:12]}"

    def check(self, schema: pa.Schema, partition_by: Sequence[str], *, table: str) -> None:
        """Raise `TableError` if rows of this table cannot be ordered by these columns."""
        for name in self.columns:
            if name not in schema.names:
                raise TableError(
                    f"The table {table} has no column {name} to order by; it has {', '.join(schema.names)}."
                )
            if name in partition_by:
                raise TableError(f"The table {table} is partitioned by {name}; order by other columns.")
            if types.is_nested(schema.field(name).type):
                raise TableError(f"The column {name} of the table {table} is nested; order by other columns.")
        if len(self.columns) > COLUMNS_MAX:
            raise TableError(f"The table {table} can be ordered by {COLUMNS_MAX} columns at most.")

    def sort(self, rows: pa.Table) -> pa.Table:
        """Return the rows in this order; rows of equal rank keep theirs."""
        if not rows.num_rows:
            return rows
        large = rows.cast(pa.schema([field.with_type(_large(field.type)) for field in rows.schema])).combine_chunks()
        [joined] = large.to_batches()
        order = np.argsort(_interleaved([_ranks(large[name]) for name in self.columns], rows.num_rows), kind="stable")
        count = min(BATCH_ROWS, max(1, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
        parts = (joined.take(pa.array(order[start : start + count])) for start in range(0, rows.num_rows, count))
        return pa.Table.from_batches([part.cast(rows.schema) for part in parts], rows.schema)


def _large(kind: pa.DataType) -> pa.DataType:
    """Return the type with offsets of 64 bits: Arrow joins all values of a column to sort it, and its usual types end
    at 2 GiB."""
    if types.is_string(kind):
        return pa.large_string()
    if types.is_binary(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if types.is_map(kind):
        key, item = (field.with_type(_large(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return kind


def _ranks(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return for each row the number of rows with a lower value. Nulls are the lowest."""
    encoded = column.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.zeros(len(encoded.dictionary) + 1, dtype=np.int64)  # of each code, nulls (-1) last in this array
    place[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(1, len(encoded.dictionary) + 1)
    place[-1] = 0
    places = place[codes]
    counts = np.bincount(places, minlength=len(place))
    lower: NDArray[np.int64] = np.cumsum(counts) - counts
    return np.asarray(lower[places], dtype=np.uint64)


def _interleaved(ranks: Sequence[NDArray[np.uint64]], rows: int) -> NDArray[np.uint64]:
    """Return the numbers to sort by. Ranks are spread over the whole range, so that each bit halves the rows."""
    if len(ranks) == 1 or not rows:
        return ranks[0]
    bits = min(RANK_BITS_MAX, _KEY_BITS // len(ranks))
    spread = [(rank << np.uint64(bits)) // np.uint64(rows) for rank in ranks]
    key = np.zeros(rows, dtype=np.uint64)
    for bit in range(bits - 1, -1, -1):
        for rank in spread:
            key = (key << np.uint64(1)) | ((rank >> np.uint64(bit)) & np.uint64(1))
    return key

"""Read the first rows of a table, as plain Python values.

Files are opened one after the other, so that no more are read than the wanted rows need. Arrow's scanner is not used:
it reads ahead in threads, which may crash the process if it ends before them (measured).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.errors import TableError
from penstock.sinks.sink import TableSnapshot
from penstock.storage.s3 import refuse

UNREADABLE = "(a value that cannot be shown)"
_S3_REQUEST = re.compile(r"\bError performing\b")  # in delta-rs's messages about failed requests


def first_rows(table: TableSnapshot, *, columns: Sequence[str], limit: int) -> Sequence[Sequence[Any]]:
    """Return up to ``limit`` rows of a snapshot, each with the values of these columns.

    Values have Python's types; a map is a dictionary. What Python's types cannot hold is text, such as a year above
    9999, and text that is not UTF-8 is bytes. Rows are in the order of the snapshot's files. Raises `TableError` if a
    file cannot be read, and `TemporaryError` if S3 is unavailable.
    """
    where = table.root.uri
    try:
        return _read(table, columns, limit)
    except FileNotFoundError as error:
        raise TableError(
            f"A file of the table {where} does not exist: {_first_line(error)}. If a vacuum has just deleted it, run "
            "the command again."
        ) from error
    except (pa.ArrowException, OSError) as error:
        if not table.root.is_local and _S3_REQUEST.search(str(error)):
            refuse(f"The table {where}", error)
        raise TableError(f"The rows of the table {where} cannot be read: {_first_line(error)}.") from error


def _read(table: TableSnapshot, columns: Sequence[str], limit: int) -> Sequence[Sequence[Any]]:
    dataset = table.dataset()
    fields = [dataset.schema.field(name) for name in columns]
    rows: list[Sequence[Any]] = []
    for fragment in dataset.get_fragments():
        if len(rows) >= limit:
            break
        with fragment.open() as data:
            rows += _of_file(
                pq.ParquetFile(data), fields, ds.get_partition_keys(fragment.partition_expression), limit - len(rows)
            )
    return rows


def _of_file(
    file: pq.ParquetFile, fields: Sequence[pa.Field], partition: Mapping[str, Any], limit: int
) -> Iterator[Sequence[Any]]:
    """Yield the first rows of a file. Columns that it lacks have the partition's value, or nulls."""
    own = set(file.schema_arrow.names)
    left = min(limit, file.metadata.num_rows)
    named = [field.name for field in fields if field.name in own]
    if not named:
        yield from repeat([partition.get(field.name) for field in fields], left)
        return
    for found in file.iter_batches(batch_size=max(left, 1), columns=named):
        batch = found.slice(0, left)
        left -= batch.num_rows
        yield from zip(
            *(
                _values(batch.column(field.name), field.type)
                if field.name in own
                else repeat(partition.get(field.name), batch.num_rows)
                for field in fields
            ),
            strict=True,
        )
        if not left:
            return


def _values(column: pa.Array, kind: pa.DataType) -> Sequence[Any]:
    with suppress(pa.ArrowException):  # a nested type that Arrow cannot cast is shown as the file has it
        column = column.cast(kind)
    return [_with_maps(_plain(value), column.type) for value in column]


def _plain(value: pa.Scalar) -> Any:
    has_nanoseconds = pa.types.is_timestamp(value.type) and value.type.unit == "ns"
    with suppress(ValueError, OverflowError):
        if not has_nanoseconds:  # Arrow would return pandas' type, or fail without pandas
            return value.as_py()
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return value.as_buffer().to_pybytes()
    try:
        return value.cast(pa.string()).as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return UNREADABLE


def _with_maps(value: Any, kind: pa.DataType) -> Any:
    """Return a value with dictionaries in place of Arrow's lists of pairs."""
    if value is None or value is UNREADABLE or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {_key(key): _with_maps(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in kind}
    return [_with_maps(item, kind.value_type) for item in value]


def _key(key: Any) -> Any:
    return str(key) if isinstance(key, dict | list) else key


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")

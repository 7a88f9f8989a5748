"""Fold the rows of a run to the last ones of each key, and write its deletes apart; see `penstock.pipeline.merging`.

Spark keeps the rows that are last by ``order_by``, all of them if several are equal there. The rest of the order has
one implementation, which runs where the batch is compared with the table. Rows that delete are written with the others
and marked by a partition column, so the source is read once. Afterwards the driver writes key and order of the deletes
into a file beside the table, and removes their data files.
"""

import re
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, functions
from pyspark.sql.types import StringType

from penstock.errors import TransformError, UsageError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.order import check_compared
from penstock.pipeline.merging.rows import RowFile, RowReader
from penstock.pipeline.merging.tombstones import write_deletes
from penstock.pipeline.spark.arrow_writer import arrow_schema, column
from penstock.pipeline.spark.source.ddl import OBJECT
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import WrittenFile
from penstock.sinks.partitions import NULL_PARTITION, resolve
from penstock.storage.files import Files

DELETES = "penstock_deletes"  # the partition column of a run's files, which no table has
_KEPT, _DELETED = "false", "true"
_RANK = "penstock_rank"
_NULL_FOLDERS = ("", NULL_PARTITION)  # strings that a folder's name does not tell from null
_BINARY = "UTF8_BINARY"  # the collation of strings that are equal only if their bytes are
# What Spark takes for text or for a name, and the values of a query that stay the same within it: these it calls
# deterministic. Those without parentheses are columns if there is one of that name.
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`", re.DOTALL)
_OF_THE_QUERY = re.compile(
    r"(?<![.\w])(?:(?:now|curdate|current_\w+|localtimestamp|session_user|user|unix_timestamp|version)\s*\(\s*\d*\s*\)"
    r"|(?P<name>current_date|current_time|current_timestamp|localtimestamp|current_user|session_user|user|select)\b)",
    re.IGNORECASE,
)


class ListFiles(Protocol):
    """`penstock.sinks.parquet.list_files` for one table."""

    def __call__(self, directory: str, *, written: Sequence[WrittenFile] | None) -> Sequence[DataFile]: ...


def folded(frame: DataFrame, merge: Merge, partition_by: Sequence[str] = ()) -> DataFrame:
    """Return the last rows of each key, with the column `DELETES` and without the dropped ones.

    Spark fails at a row with a null key. The table stores an empty string, and Hive's name of null, as null in a
    column that it is partitioned by: so Spark fails also at such a key, and orders rows by null in place of it.

    Args:
        partition_by: What the table is partitioned by, transforms included.

    Raises:
        UsageError: The rows lack a column of the merge, a column of the key or the order has an unfit type, or
            ``delete_when`` is not a condition on one row.
        TransformError: The rows have a column that the merge adds itself.
    """
    _check_columns(frame, merge)
    marked = frame.withColumn(DELETES, _condition(frame, merge))
    folders = _folder_texts(frame, partition_by)
    for name in merge.key:
        marked = marked.withColumn(name, _identifying(frame, name, is_folder=name in folders))
    for name in sorted(folders.intersection(merge.order_by).difference(merge.key)):
        marked = marked.withColumn(name, functions.when(~column(name).isin(*_NULL_FOLDERS), column(name)))
    order = [*(column(name).desc_nulls_last() for name in merge.order_by), column(DELETES).desc()]
    window = Window.partitionBy(*map(column, merge.key)).orderBy(*order)
    last = marked.withColumn(_RANK, functions.rank().over(window)).where(column(_RANK) == 1)
    return last.drop(_RANK, *merge.drop)


def list_kept(directory: str, list_: ListFiles, *, written: Sequence[WrittenFile] | None) -> Sequence[DataFile]:
    """Return the files with the rows that stay."""
    folder = f"{directory}/{DELETES}={_KEPT}"
    return list_(folder, written=_below(folder, written))


def move_deletes(
    root: Files,
    directory: str,
    merge: Merge,
    list_: ListFiles,
    *,
    schema: pa.Schema,
    written: Sequence[WrittenFile] | None,
    probe: Probe,
) -> Sequence[DataFile]:
    """Write key and order of the rows that delete into a file beside the table, and remove their data files."""
    folder = f"{directory}/{DELETES}={_DELETED}"
    found = list_(folder, written=_below(folder, written))
    if not found:
        return ()
    _, _, attempt_and_run = directory.partition("/")
    files = [RowFile(path=file.path, rows=file.rows, partition_values=file.partition_values) for file in found]
    reader = RowReader(root=root, schema=schema)
    deletes = write_deletes(root, f"{TOMBSTONES_FOLDER}/{attempt_and_run}", reader, files, merge)
    probe(Step.DELETES_WRITTEN)
    root.delete(file.path for file in found)
    return deletes


def _below(folder: str, written: Sequence[WrittenFile] | None) -> Sequence[WrittenFile] | None:
    return None if written is None else [file for file in written if file.path.startswith(f"{folder}/")]


def _check_columns(frame: DataFrame, merge: Merge) -> None:
    merge.check_names(frame.columns)
    taken = [name for name in frame.columns if name.lower() in (DELETES, _RANK)]
    if taken:
        raise TransformError(f"The rows have the column {taken[0]}, which a merge adds itself: rename it.")
    for name in merge.compared:
        collation = getattr(frame.schema[name].dataType, "collation", _BINARY)
        if collation != _BINARY:
            raise UsageError(
                f"The column {name} of the merge has the collation {collation}, and a merge compares bytes: let the "
                f"transform make another string of it (lower(...) COLLATE {_BINARY}, or CAST({name} AS STRING COLLATE "
                f"{_BINARY}))."
            )
    check_compared(arrow_schema(frame.select(*map(column, merge.compared)).schema), merge)


def _folder_texts(frame: DataFrame, partition_by: Sequence[str]) -> frozenset[str]:
    """Return the string columns whose values are names of folders, which an empty string has none of."""
    fields = resolve(partition_by, frame.columns)
    names = {field.source for field in fields if field.transform is None and field.source in frame.columns}
    return frozenset(name for name in names if isinstance(frame.schema[name].dataType, StringType))


def _identifying(frame: DataFrame, name: str, *, is_folder: bool) -> Column:
    """Return a column of the key that makes Spark raise an error for a value by which the table finds no row again."""
    checked = functions.coalesce(column(name), _raised(frame, name, "is null in a row"))
    if not is_folder:
        return checked
    since = ", which a table partitioned by this column stores as null"
    empty = _raised(frame, name, "is an empty string in a row", since=since)
    reserved = _raised(frame, name, f"is {NULL_PARTITION} in a row", since=since)
    return functions.when(column(name) == "", empty).when(column(name) == NULL_PARTITION, reserved).otherwise(checked)


def _raised(frame: DataFrame, name: str, what: str, *, since: str = "") -> Column:
    where = (
        functions.concat(functions.lit(" of "), column(OBJECT.name))
        if OBJECT.name in frame.columns
        else functions.lit("")
    )
    text = functions.concat(
        functions.lit(f"the key column {name} {what}"),
        functions.coalesce(where, functions.lit("")),
        functions.lit(f"{since}: leave such rows out in the transform, or choose another key"),
    )
    return functions.raise_error(text).cast(frame.schema[name].dataType)


def _condition(frame: DataFrame, merge: Merge) -> Column:
    """Return the column `DELETES`: a text, since it becomes the name of a folder."""
    if merge.delete_when is None:
        return functions.lit(_KEPT)
    try:
        condition = functions.expr(merge.delete_when)
        kind = frame.select(condition.alias("condition")).schema["condition"].dataType.typeName()
    except Exception as error:
        if not _is_refusal(error):
            raise
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"The merge's delete_when {merge.delete_when!r} is not a condition on the rows: {first}"
        ) from error
    if kind != "boolean":
        raise UsageError(f"The merge's delete_when {merge.delete_when!r} is a {kind} and not a condition.")
    _check_is_of_row(frame, merge.delete_when, condition)
    return functions.when(condition, functions.lit(_DELETED)).otherwise(functions.lit(_KEPT))


def _check_is_of_row(frame: DataFrame, text: str, condition: Column) -> None:
    """Raise `UsageError` for a condition whose result depends on more than the row: on other rows, chance or the time.

    Spark's analysis refuses an aggregate of another aggregate, of a window function, and of what is not deterministic.
    """
    try:
        _ = frame.select(functions.count(functions.when(condition, 1))).schema
    except Exception as error:
        if not _is_refusal(error):
            raise
        raise _not_of_row(text) from error
    columns = {name.lower() for name in frame.columns}
    for found in _OF_THE_QUERY.finditer(_QUOTED.sub("''", text)):
        if found["name"] is None or found["name"].lower() not in columns:
            raise _not_of_row(text)


def _not_of_row(text: str) -> UsageError:
    return UsageError(
        f"The merge's delete_when {text!r} does not depend on the values of one row alone: leave out aggregates, "
        "window functions, queries, and what differs from run to run, such as rand() and current_timestamp()."
    )


def _is_refusal(error: Exception) -> bool:
    """Return True for an error of Spark's parser or analysis, in a classic session or through Spark Connect."""
    return type(error).__name__.endswith(("AnalysisException", "ParseException"))

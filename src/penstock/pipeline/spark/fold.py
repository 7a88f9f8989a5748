"""Fold the rows of a run to the last ones of each key, and write its deletes apart; see `penstock.pipeline.merging`.

Spark keeps the rows that are last by ``order_by``, all of them if several are equal there. The rest of the order has
one implementation, which runs where the batch is compared with the table. Rows that delete are written with the others
and marked by a partition column, so the source is read once. Afterwards the driver writes key and order of the deletes
into a file beside the table, and removes their data files.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, functions

from penstock.errors import TableError, TransformError, UsageError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.order import check_types
from penstock.pipeline.merging.rows import RowFile, RowReader
from penstock.pipeline.merging.tombstones import write_deletes
from penstock.pipeline.spark.arrow_writer import arrow_schema, column
from penstock.pipeline.spark.source.ddl import OBJECT
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import WrittenFile
from penstock.storage.files import Files

DELETES = "penstock_deletes"  # the partition column of a run's files, which no table has
_KEPT, _DELETED = "false", "true"
_RANK = "penstock_rank"


class ListFiles(Protocol):
    """`penstock.sinks.parquet.list_files` for one table."""

    def __call__(self, directory: str, *, written: Sequence[WrittenFile] | None) -> Sequence[DataFile]: ...


def folded(frame: DataFrame, merge: Merge) -> DataFrame:
    """Return the last rows of each key, with the column `DELETES` and without the dropped ones.

    Spark fails at a row with a null key.

    Raises:
        UsageError: The rows lack a column of the merge, a column of the key or the order has an unfit type, or
            ``delete_when`` is not a condition.
        TransformError: The rows have a column that the merge adds itself.
    """
    _check_columns(frame, merge)
    for name in merge.key:
        frame = frame.withColumn(name, _never_null(frame, name))
    marked = frame.withColumn(DELETES, _condition(frame, merge))
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
    missing = [name for name in (*merge.compared, *merge.drop) if name not in frame.columns]
    if missing:
        raise UsageError(
            f"The merge names {', '.join(missing)}, and the rows have {', '.join(frame.columns)}: name columns that "
            "the rows have after the transform."
        )
    taken = [name for name in frame.columns if name.lower() in (DELETES, _RANK)]
    if taken:
        raise TransformError(f"The rows have the column {taken[0]}, which a merge adds itself: rename it.")
    try:
        check_types(arrow_schema(frame.select(*map(column, merge.compared)).schema), merge.key, merge.order_by)
    except TableError as error:
        raise UsageError(str(error)) from error


def _never_null(frame: DataFrame, name: str) -> Column:
    """Return a column of the key that makes Spark raise an error for a null: such a row could replace no other one."""
    where = (
        functions.concat(functions.lit(" of "), column(OBJECT.name))
        if OBJECT.name in frame.columns
        else functions.lit("")
    )
    text = functions.concat(
        functions.lit(f"the key column {name} is null in a row"),
        functions.coalesce(where, functions.lit("")),
        functions.lit(": leave such rows out in the transform, or choose another key"),
    )
    kind = frame.schema[name].dataType
    return functions.coalesce(column(name), functions.raise_error(text).cast(kind))


def _condition(frame: DataFrame, merge: Merge) -> Column:
    """Return the column `DELETES`: a text, since it becomes the name of a folder."""
    if merge.delete_when is None:
        return functions.lit(_KEPT)
    try:
        condition = functions.expr(merge.delete_when)
        kind = frame.select(condition.alias("condition")).schema["condition"].dataType.typeName()
    except Exception as error:
        if not type(error).__name__.endswith(("AnalysisException", "ParseException")):
            raise
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"The merge's delete_when {merge.delete_when!r} is not a condition on the rows: {first}"
        ) from error
    if kind != "boolean":
        raise UsageError(f"The merge's delete_when {merge.delete_when!r} is a {kind} and not a condition.")
    return functions.when(condition, functions.lit(_DELETED)).otherwise(functions.lit(_KEPT))

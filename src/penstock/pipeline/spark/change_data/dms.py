"""Rows of files that AWS Database Migration Service writes to S3.

Sources: the chapter "Using Amazon S3 as a target for AWS Database Migration Service" of its user guide at
https://docs.aws.amazon.com/dms/latest/userguide/CHAP_Target.S3.html (operations, names of files), and ``S3Settings`` in
its API reference (``TimestampColumnName`` and its format, ``UseTaskStartTimeForFullLoadTimestamp``).
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's documentation gives it
from pyspark.sql.types import TimestampType

from penstock.errors import UsageError
from penstock.pipeline.spark.arrow_writer import column
from penstock.pipeline.spark.change_data.columns import (
    OPERATION,
    POSITION,
    check_unused,
    is_text,
    joined,
    names_by_lower,
    padded,
    refused,
)

OPERATION_COLUMN: Final = "Op"
OPERATIONS: Final = ("I", "U", "D")
_TIME: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,9})?$"  # yyyy-MM-dd HH:mm:ss.SSSSSS
_SECONDS_CHARS: Final = 19
_FRACTION_DIGITS: Final = 9
_OBJECT: Final = "_object"
_PLACES: Final = ("_offset", "_row")


def rows_of_files(frame: DataFrame, *, timestamp_column: str) -> DataFrame:
    """Return rows without ``Op`` and the timestamp, and with their operation and position.

    A row without ``Op`` is of a full load, or of a task that writes no deletes: it is inserted or updated. Changes of
    one transaction have one timestamp, so their files, which have times as names, and their places in them come second.

    Raises `UsageError` if there is no such timestamp column.
    """
    names = names_by_lower(frame)
    time_name = names.get(timestamp_column.lower())
    if time_name is None:
        raise UsageError(
            f"The rows have the columns {', '.join(frame.columns)}, and no {timestamp_column}, which orders changes: "
            f"set TimestampColumnName={timestamp_column} in the endpoint of DMS and declare the column, or give its "
            "name as Dms(timestamp_column=...)."
        )
    operation_name = names.get(OPERATION_COLUMN.lower())
    kept = [name for name in frame.columns if name not in (operation_name, time_name)]
    check_unused(kept, "DMS")
    operation = F.lit("I") if operation_name is None else F.coalesce(column(operation_name).cast("string"), F.lit("I"))
    return frame.select(
        *(column(name) for name in kept),
        _checked_operation(operation).alias(OPERATION),
        _position(frame, time_name).alias(POSITION),
    )


def _checked_operation(operation: Column) -> Column:
    why = F.concat(
        F.lit("The column Op has "),
        operation,
        F.lit(
            ", and DMS writes I, U or D: files of CSV without names of columns need Op in all of them, so set "
            "IncludeOpForFullLoad=true (or AddColumnName=true)"
        ),
    )
    return refused(~operation.isin(*OPERATIONS), why, operation)


def _position(frame: DataFrame, time_name: str) -> Column:
    time = column(time_name)
    if is_text(frame, time_name):
        text = F.trim(time)
        fraction = F.regexp_extract(text, r"\.(\d+)$", 1)
        moment = F.concat(F.substring(text, 1, _SECONDS_CHARS), F.lit("."), F.rpad(fraction, _FRACTION_DIGITS, "0"))
        unfit = ~F.coalesce(text.rlike(_TIME), F.lit(False))
    elif isinstance(frame.schema[time_name].dataType, TimestampType):
        moment, unfit = padded(F.unix_micros(time)), time.isNull()
    else:
        raise UsageError(
            f"The column {time_name} is of type {frame.schema[time_name].dataType.simpleString()}, and the timestamp "
            "of DMS is a string such as 2026-01-31 10:00:00.123456: declare it STRING or TIMESTAMP."
        )
    places = [column(name) for name in _PLACES if name in frame.columns]
    position = joined(moment, column(_OBJECT), *map(padded, places)) if _OBJECT in frame.columns else moment
    why = F.concat(
        F.lit(f"The column {time_name} has "),
        F.coalesce(time.cast("string"), F.lit("no value")),
        F.lit(", and the timestamp of DMS is like 2026-01-31 10:00:00.123456"),
    )
    return refused(unfit, why, position)

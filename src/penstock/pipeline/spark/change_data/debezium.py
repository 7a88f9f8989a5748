"""Rows of Debezium's change events: the envelope, and events that its SMT ExtractNewRecordState has flattened.

Sources, at https://debezium.io/documentation/reference/stable/: the connectors' pages, chapter "data change events"
(envelope, operations, source blocks, truncate events, replica identity, unavailable values), and the page "New Record
State Extraction" (flattened events).
"""

import base64
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's documentation gives it
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from penstock.errors import UsageError
from penstock.pipeline.spark.arrow_writer import column
from penstock.pipeline.spark.change_data.columns import (
    OPERATION,
    POSITION,
    check_unused,
    joined,
    names_by_lower,
    padded,
    refused,
    struct_in,
)

OPERATIONS: Final = ("c", "u", "d", "r")
_ENVELOPE: Final = frozenset({"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction", "schema"})
_PAYLOAD: Final = "payload"
_UNAVAILABLE: Final = "__debezium_unavailable_value"  # default of the option unavailable.value.placeholder
_UNAVAILABLE_BYTES: Final = base64.b64encode(_UNAVAILABLE.encode()).decode()  # as JSON has it in a column of bytes
_FLAT_PREFIXES: Final = ("__", "__source_")  # of add.fields=lsn and add.fields=source.lsn

_INFORMIX: Final = "informix"
_LSN_CHARS: Final = 40  # wider than a log sequence number of SQL Server and Db2, which is hexadecimal of fixed width

Field = Callable[[str], Column | None]  # returns a field of the source block as text; None if no event has it


def rows_of_envelopes(frame: DataFrame, *, by_time: bool, ignore_tombstones: bool) -> DataFrame:
    """Return the row of each event, its operation and its position; other columns, such as `_object`, are kept.

    The row is ``after``, and of a delete ``before``. Raises `UsageError` if the columns are none of Debezium's events.
    """
    wrapped = struct_in(frame.schema, _PAYLOAD)
    envelope = wrapped if wrapped is not None else frame.schema

    def part(name: str) -> Column:
        return column(_PAYLOAD)[name] if wrapped is not None else column(name)

    before, after = struct_in(envelope, "before"), struct_in(envelope, "after")
    if before is None or after is None or not {"op", "source"} <= set(envelope.fieldNames()):
        raise UsageError(
            f"The rows have the columns {', '.join(frame.columns)}, and events of Debezium have structs before and "
            "after, and source and op, below payload or not: give the schema that Debezium.schema() returns, or use "
            "debezium_flattened if ExtractNewRecordState flattened them."
        )
    kept = [name for name in frame.columns if name not in ({_PAYLOAD, "schema"} if wrapped is not None else _ENVELOPE)]
    check_unused([*after.fieldNames(), *kept], "Debezium")
    operation = part("op")
    position = _position(_source_fields(part("source"), envelope["source"].dataType), by_time=by_time)
    if position is None:
        raise UsageError(_no_position("The column source has none of the fields that order changes"))
    is_event = operation.isNotNull() | part("before").isNotNull() | part("after").isNotNull()
    events = frame.where(is_event) if ignore_tombstones else frame
    is_delete = operation == "d"
    unavailable = [part("after")[field.name] for field in _texts(after)]
    return events.select(
        *(_value(field, before, part("before"), part("after"), is_delete).alias(field.name) for field in after.fields),
        *(column(name) for name in kept),
        _checked_operation(operation, unavailable, is_delete).alias(OPERATION),
        _checked_position(position, operation).alias(POSITION),
    )


def rows_of_flattened(frame: DataFrame, *, by_time: bool) -> DataFrame:
    """Return rows without the columns that ExtractNewRecordState added, their operation and their position.

    Raises `UsageError` if it did not add those that tell deletes and the order.
    """
    names = names_by_lower(frame)

    def field(name: str) -> Column | None:
        found = next((names[prefix + name] for prefix in _FLAT_PREFIXES if prefix + name in names), None)
        return None if found is None else column(found).cast("string")

    operation, deleted = field("op"), field("deleted")
    if operation is None and deleted is None:
        raise UsageError(
            f"The rows have the columns {', '.join(frame.columns)}, and neither __op nor __deleted, so deletes cannot "
            "be found: give ExtractNewRecordState delete.tombstone.handling.mode=rewrite and add.fields=op,lsn (or the "
            "fields of your connector), or use debezium if the events are not flattened."
        )
    position = _position(field, by_time=by_time)
    if position is None:
        raise UsageError(_no_position(f"The rows have the columns {', '.join(frame.columns)}, and none orders changes"))
    kept = [name for name in frame.columns if not name.startswith("__")]
    check_unused(kept, "Debezium")
    is_delete = F.lit(False) if deleted is None else F.coalesce(deleted == "true", F.lit(False))
    named = F.lit("u") if operation is None else F.when(is_delete, F.lit("d")).otherwise(operation)
    row = StructType([one for one in frame.schema.fields if one.name in kept])
    unavailable = [column(one.name) for one in _texts(row)]
    return frame.select(
        *(column(name) for name in kept),
        _checked_operation(
            F.when(is_delete, F.lit("d")).otherwise(named), unavailable, is_delete | (named == "d")
        ).alias(OPERATION),
        _checked_position(position, named).alias(POSITION),
    )


def _value(field: StructField, before: StructType, old: Column, new: Column, is_delete: Column) -> Column:
    """Return one value of the row: of a delete the old one, which is null if the database did not log it."""
    if field.name not in before.fieldNames():
        return F.when(~is_delete, new[field.name])
    return F.when(is_delete, old[field.name].cast(field.dataType)).otherwise(new[field.name])


def _texts(row: StructType) -> Sequence[StructField]:
    """Return the fields that can hold the placeholder of a value that the database did not log."""
    return [field for field in row.fields if isinstance(field.dataType, (StringType, BinaryType))]


def _checked_operation(operation: Column, values: Sequence[Column], is_delete: Column) -> Column:
    """Return the operation; raise for one that changes no single row, and for an update that lacks values."""
    known = operation.isin(*OPERATIONS)
    reason = (
        F.when(
            operation.isNull(),
            F.lit(
                "A row has no Debezium operation: it is a tombstone, or the events have another shape than the schema. "
                "See docs/use/merge.md"
            ),
        )
        .when(
            operation == "t",
            F.lit(
                "A truncate event (op t) deletes all rows of the table, which a merge by key cannot do: empty the "
                "table yourself, and set skipped.operations=t in the connector"
            ),
        )
        .otherwise(F.concat(F.lit("Debezium's operation "), operation, F.lit(" is unknown; known are c, u, d and r")))
    )
    checked = refused(~F.coalesce(known, F.lit(False)), reason, operation)
    if not values:
        return checked
    lacking = F.lit(False)
    for value in values:
        text = value.cast("string")
        lacking = lacking | F.coalesce(text.isin(_UNAVAILABLE, _UNAVAILABLE_BYTES), F.lit(False))
    why = F.lit(
        f"An update has {_UNAVAILABLE} in place of a value that did not change: give the source table REPLICA IDENTITY "
        "FULL, so that events have whole rows"
    )
    return refused(lacking & ~F.coalesce(is_delete, F.lit(False)), why, checked)


def _checked_position(position: Column, operation: Column) -> Column:
    why = F.concat(
        F.lit("An event of Debezium (op "),
        F.coalesce(operation, F.lit("missing")),
        F.lit(") has no position in the database's log, so its order is unknown"),
    )
    return refused(position.isNull(), why, position)


def _source_fields(source: Column, type_: DataType) -> Field:
    """Return a function from a field's name to its text. The block is a struct, or JSON in a string column."""

    def field(name: str) -> Column | None:
        if isinstance(type_, StructType):
            return source[name].cast("string") if name in type_.fieldNames() else None
        return F.get_json_object(source.cast("string"), f"$.{name}")

    return field


def _position(field: Field, *, by_time: bool) -> Column | None:
    """Return a text by which changes of one row sort as the database made them; None if no field tells.

    The source blocks of the connectors have, see their pages: PostgreSQL ``lsn``; MySQL and MariaDB ``file``, ``pos``
    and ``row``; SQL Server and Db2 ``commit_lsn``, ``change_lsn`` and (SQL Server) ``event_serial_no``; Oracle
    ``commit_scn`` and ``scn``. In a snapshot Oracle has no ``commit_scn``.
    """
    by_log = [
        found for found in (_postgresql(field), _mysql(field), _sqlserver(field), _oracle(field)) if found is not None
    ]
    log = F.coalesce(*by_log) if by_log else None
    if not by_time:
        return log
    time = field("ts_ms")
    if time is None:
        return None
    return joined(padded(time)) if log is None else joined(padded(time), log)


def _postgresql(field: Field) -> Column | None:
    lsn = field("lsn")
    return None if lsn is None else padded(lsn)


def _mysql(field: Field) -> Column | None:
    file, pos, row = field("file"), field("pos"), field("row")
    if file is None or pos is None:
        return None
    number = F.regexp_extract(file, r"([0-9]+)$", 1)  # binlog names may grow by a digit, so they are no texts to sort
    place = [padded(number), padded(pos)] if row is None else [padded(number), padded(pos), padded(row)]
    return F.when(file.isNotNull() & pos.isNotNull(), joined(*place))


def _sqlserver(field: Field) -> Column | None:
    commit, change, serial = field("commit_lsn"), field("change_lsn"), field("event_serial_no")
    if commit is None:
        return None
    parts = [padded(part, _LSN_CHARS) for part in (commit, change) if part is not None]
    position = joined(*parts) if serial is None else joined(*parts, padded(serial))
    connector = field("connector")
    # Informix has the same fields, with other numbers in them.
    return position if connector is None else F.when(F.coalesce(connector != _INFORMIX, F.lit(True)), position)


def _oracle(field: Field) -> Column | None:
    scn, commit = field("scn"), field("commit_scn")
    if scn is None:
        return None
    committed = scn if commit is None else F.coalesce(commit, scn)
    return joined(padded(committed), padded(scn))


def _no_position(begins: str) -> str:
    return (
        f"{begins}: lsn (PostgreSQL), file, pos and row (MySQL, MariaDB), commit_lsn, change_lsn and event_serial_no "
        "(SQL Server, Db2) or commit_scn and scn (Oracle). Add them (add.fields), or order by source.ts_ms with "
        "Debezium(order='time')."
    )

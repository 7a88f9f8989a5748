"""`Debezium`: change events of Debezium become rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from penstock.errors import UsageError
from penstock.pipeline.merging.declaration import Merge
from penstock.transforms.naming import transform_name

if TYPE_CHECKING:
    from penstock.pipeline.spark.declaration import Frame

Order = Literal["log", "time"]
ORDERS: tuple[Order, ...] = get_args(Order)
_DELETED = "_op = 'd'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Debezium:
    """A transform for events of Debezium's SQL connectors: PostgreSQL, MySQL, MariaDB, SQL Server, Db2 and Oracle.

    The frame that it returns has the columns of the row (``after``, of a delete ``before``), then those that are no
    part of an event, such as ``_object``, then ``_op`` (c, u, d or r) and ``_position``, a text by which changes of one
    row sort as the database made them.

    The object of an event fails, with a sentence, if the event is a truncate, has no position, or lacks values that an
    update did not change (``__debezium_unavailable_value``).

    Args:
        flattened: The events were flattened by Debezium's SMT ExtractNewRecordState, with
            ``delete.tombstone.handling.mode=rewrite`` and ``add.fields=op,lsn`` or the fields of another connector.
        order: "log": by the position in the database's log. "time": by ``source.ts_ms`` (``__source_ts_ms``) first, for
            a database whose log positions began anew, such as after a failover of MySQL. Its unit is a millisecond.
        ignore_tombstones: Leave out rows that have neither ``op`` nor ``before`` nor ``after``; by default they fail
            their object, since all rows of events in another shape look like that.

    Raises:
        UsageError: An option is unknown. As a transform: the columns are none of Debezium's events.
    """

    flattened: bool = False
    order: Order = "log"
    ignore_tombstones: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(f"Debezium has order={self.order!r}; write one of {', '.join(ORDERS)}.")
        if self.flattened and self.ignore_tombstones:
            raise UsageError(
                "Debezium has flattened=True and ignore_tombstones=True, and a flattened tombstone is a line null, "
                "which is a bad line: leave out ignore_tombstones."
            )

    def __call__(self, frame: "Frame") -> "Frame":
        from penstock.pipeline.spark.change_data.debezium import rows_of_envelopes, rows_of_flattened

        by_time = self.order == "time"
        if self.flattened:
            return rows_of_flattened(frame, by_time=by_time)
        return rows_of_envelopes(frame, by_time=by_time, ignore_tombstones=self.ignore_tombstones)

    @property
    def transform_name(self) -> str:
        """The name that the ledger remembers: of the ready-made transform, else of the class with its options."""
        return transform_name(self, debezium=Debezium(), debezium_flattened=Debezium(flattened=True))

    def merge(self, *, key: str | Sequence[str]) -> Merge:
        """Return the merge for these rows: the last change of each key, and none if that is a delete.

        Raises:
            UsageError: The key is empty, or has a column twice.
        """
        return Merge(key=key, order_by="_position", delete_when=_DELETED, drop="_op")

    def schema(self, columns: str, *, wrapped: bool = False) -> str:
        """Return the schema of the files for the table's columns, both in Spark DDL.

        Args:
            columns: The columns of the source table, such as "id BIGINT, name STRING".
            wrapped: The events are in a field ``payload``, as JsonConverter writes them with ``schemas.enable=true``.

        Raises:
            UsageError: The events are flattened: their files have the table's columns and those of ``add.fields``.
        """
        if self.flattened:
            raise UsageError(
                "Flattened events have the table's columns: declare these, and those that add.fields adds, such as "
                "'id BIGINT, __op STRING, __deleted STRING, __lsn BIGINT'."
            )
        row = f"STRUCT<{columns}>"
        if not wrapped:
            return (
                f"before {row}, after {row}, source STRING, op STRING, ts_ms BIGINT, ts_us BIGINT, ts_ns BIGINT, "
                "transaction STRING"
            )
        return (
            f"payload STRUCT<before {row}, after {row}, source STRING, op STRING, ts_ms BIGINT, ts_us BIGINT, "
            "ts_ns BIGINT, transaction STRING>"
        )

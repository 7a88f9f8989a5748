"""Convert partition fields and their values between Penstock and Iceberg.

Penstock's ledger has a text for each value; see `penstock.sinks.derived` for those of transforms. Iceberg's files have
the value itself: days, months and years are numbers since 1970, binary values are bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from penstock.sinks.derived import ordinal, ordinal_text
from penstock.sinks.partitions import BUCKET, DAY, HOUR, MONTH, TIMES, TRUNCATE, YEAR, PartitionField, names_of, resolve

_EPOCH_DAY = date(1970, 1, 1)
_TIMES: dict[str, type[Transform[Any, Any]]] = {
    YEAR: YearTransform,
    MONTH: MonthTransform,
    DAY: DayTransform,
    HOUR: HourTransform,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """One partition field of an Iceberg table."""

    field: PartitionField
    name: str  # in the table's metadata
    kind: iceberg.IcebergType | None  # of the source column; None: it was dropped
    transform: Transform[Any, Any]

    @property
    def text(self) -> str:
        """The field as Penstock names it."""
        return self.name if self.is_identity else str(self.field)

    @property
    def is_identity(self) -> bool:
        return isinstance(self.transform, IdentityTransform)

    @property
    def is_known(self) -> bool:
        """Return True if Penstock can write the field."""
        return self.kind is not None and (self.is_identity or self.field.transform is not None)

    def value_of(self, text: str | None) -> Any:
        """Return a value as Iceberg's files store it, from its text."""
        if text is None:
            return None
        if self.is_identity:
            return _column_value(text, self.kind)
        if self.field.transform in TIMES:
            return ordinal(text, self.field.transform)
        if self.field.transform == BUCKET or isinstance(self.kind, (iceberg.IntegerType, iceberg.LongType)):
            return int(text)
        if isinstance(self.kind, iceberg.DecimalType):
            return Decimal(text)
        return bytes.fromhex(text) if isinstance(self.kind, iceberg.BinaryType) else text

    def text_of(self, value: Any) -> str | None:
        """Return the text of a value, the reverse of `value_of`."""
        if value is None:
            return None
        if self.is_identity:
            return _column_text(value, self.kind)
        if self.field.transform in TIMES:
            number = (value - _EPOCH_DAY).days if isinstance(value, date) else value
            return ordinal_text(number, self.field.transform)
        if isinstance(value, Decimal):
            return f"{value:f}"  # never with an exponent
        return value.hex() if isinstance(value, bytes) else str(value)

    def typed(self, value: Any) -> Any:
        """Return a value as readers of the column see it; of a transform, its text."""
        if not self.is_identity:
            return self.text_of(value)
        if isinstance(self.kind, iceberg.DateType) and isinstance(value, int):
            return _EPOCH_DAY + timedelta(days=value)
        return value


def fields_of(spec: PartitionSpec, columns: Schema) -> Sequence[TableField]:
    """Return the fields of a table's partitioning, also those that Penstock cannot write."""
    return [_table_field(field, columns) for field in spec.fields]


def new_spec(partition_by: Iterable[str], columns: Schema) -> PartitionSpec:
    """Return the partitioning of a new table."""
    names = [field.name for field in columns.fields]
    fields = resolve(partition_by, names)
    return PartitionSpec(
        *(
            SpecField(
                source_id=columns.find_field(field.source).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=_transform(field),
                name=name,
            )
            for number, (field, name) in enumerate(zip(fields, names_of(fields, names), strict=True))
        )
    )


def _table_field(found: SpecField, columns: Schema) -> TableField:
    source = columns.find_column_name(found.source_id)
    transform = found.transform
    argument = None
    name = next((name for name, kind in _TIMES.items() if isinstance(transform, kind)), None)
    if isinstance(transform, BucketTransform):
        name, argument = BUCKET, transform.num_buckets
    elif isinstance(transform, TruncateTransform):
        name, argument = TRUNCATE, transform.width
    return TableField(
        field=PartitionField(source=source or found.name, transform=name, argument=argument),
        name=found.name,
        kind=None if source is None else columns.find_type(found.source_id),
        transform=transform,
    )


def _transform(field: PartitionField) -> Transform[Any, Any]:
    if field.transform is None:
        return IdentityTransform()
    if field.transform in _TIMES:
        return _TIMES[field.transform]()
    assert field.argument is not None
    return BucketTransform(field.argument) if field.transform == BUCKET else TruncateTransform(field.argument)


def _column_value(text: str, kind: iceberg.IcebergType | None) -> Any:
    if isinstance(kind, iceberg.BooleanType):
        return text == "true"
    if isinstance(kind, (iceberg.IntegerType, iceberg.LongType)):
        return int(text)
    if isinstance(kind, iceberg.DateType):
        return (date.fromisoformat(text) - _EPOCH_DAY).days
    return text


def _column_text(value: Any, kind: iceberg.IcebergType | None) -> str:
    if isinstance(kind, iceberg.BooleanType):
        return str(value).lower()
    if isinstance(kind, iceberg.DateType) and isinstance(value, int):
        return (_EPOCH_DAY + timedelta(days=value)).isoformat()
    return str(value)

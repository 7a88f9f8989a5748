"""Spark's types as Arrow's: what a DataFrame's columns are in the files and in the table.

PySpark's own conversion is private and takes other arguments in every version.
"""

import pyarrow as pa
from pyspark.sql import types as spark_types

from penstock.errors import TransformError

_PLAIN: dict[type[spark_types.DataType], pa.DataType] = {
    spark_types.BooleanType: pa.bool_(),
    spark_types.ByteType: pa.int8(),
    spark_types.ShortType: pa.int16(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.StringType: pa.string(),
    spark_types.BinaryType: pa.binary(),
    spark_types.DateType: pa.date32(),
    spark_types.TimestampType: pa.timestamp("us", tz="UTC"),
    spark_types.TimestampNTZType: pa.timestamp("us"),
}


def arrow_schema(struct: spark_types.StructType) -> pa.Schema:
    """A DataFrame's columns, all nullable. Raises `TransformError` naming a column whose type no table can hold."""
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType, field.name)) for field in struct.fields])


def _arrow_type(kind: spark_types.DataType, column: str) -> pa.DataType:
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark_types.ArrayType):
        return pa.list_(_arrow_type(kind.elementType, f"{column}.element"))
    if isinstance(kind, spark_types.MapType):
        return pa.map_(_arrow_type(kind.keyType, f"{column}.key"), _arrow_type(kind.valueType, f"{column}.value"))
    if isinstance(kind, spark_types.StructType):
        return pa.struct(
            [pa.field(field.name, _arrow_type(field.dataType, f"{column}.{field.name}")) for field in kind.fields]
        )
    found = _PLAIN.get(type(kind))
    if found is None:
        raise TransformError(
            f"The transform returned the column {column} of type {kind.simpleString()}, which the table cannot hold; "
            "cast it to another type or drop it."
        )
    return found

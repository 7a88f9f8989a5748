"""Column expressions that Debezium's and DMS's events share."""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's documentation gives it
from pyspark.sql.types import StringType, StructType

from penstock.errors import UsageError

OPERATION = "_op"
POSITION = "_position"
DIGITS = 20  # of the greatest unsigned number of 64 bits


def names_by_lower(frame: DataFrame) -> Mapping[str, str]:
    """Return the frame's column names by their lower-case form: Spark's names ignore letter case."""
    return {name.lower(): name for name in frame.columns}


def check_unused(names: Iterable[str], system: str) -> None:
    """Raise `UsageError` if the rows have a column with the name of one that the transform adds."""
    if taken := sorted({name.lower() for name in names} & {OPERATION, POSITION}):
        raise UsageError(
            f"The rows of {system} have the column {taken[0]}, and the transform adds one of this name: rename it in a "
            "transform of your own that calls this one."
        )


def is_text(frame: DataFrame, name: str) -> bool:
    """Return True if the column holds strings."""
    return isinstance(frame.schema[name].dataType, StringType)


def struct_in(schema: StructType, name: str) -> StructType | None:
    """Return the type of a struct column; None if there is no such column or it is no struct."""
    found = next((field.dataType for field in schema.fields if field.name == name), None)
    return found if isinstance(found, StructType) else None


def padded(value: Column, digits: int = DIGITS) -> Column:
    """Return a number, as text or not, with leading zeros, so that texts sort as the numbers do; null stays null."""
    return F.lpad(value.cast("string"), digits, "0")


def joined(*parts: Column) -> Column:
    """Return the parts as one text that sorts by the first, then by the second, and so on; null if the first is.

    Another part that is null sorts first. The separator does too, so that a text sorts before its continuations.
    """
    first, *others = parts
    return F.concat(first, *(F.concat(F.lit(" "), F.coalesce(part, F.lit(""))) for part in others))


def refused(condition: Column, reason: Column, value: Column) -> Column:
    """Return the value, and make Spark raise the reason for a row that meets the condition."""
    return F.when(condition, F.raise_error(reason).cast(StringType())).otherwise(value)

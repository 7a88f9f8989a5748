"""Columns of a DataFrame by their names as they are: Spark would take dots and blanks for an expression."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions


def column(name: str) -> Column:
    """The column of exactly that name."""
    return functions.col("`" + name.replace("`", "``") + "`")


def gathered(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Each partition's rows in few tasks, or every task would write a crumb into every partition."""
    return frame.hint("rebalance", *map(column, partition_by)) if partition_by else frame

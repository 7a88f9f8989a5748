"""Read the tables of a declared pipeline as DataFrames."""

from typing import TYPE_CHECKING

from penstock.app.paths import table_paths
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.errors import TableError
from penstock.pipeline.spark.frames import frame_of
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import TableSink
from penstock.storage.aws import Aws

if TYPE_CHECKING:
    from penstock.pipeline.spark.declaration import Frame
    from penstock.pipeline.spark.runtime import Session


def rows_frame(spark: "Session", declaration: PipelineDeclaration, aws: Aws) -> "Frame":
    """Return the rows."""
    where = table_paths(declaration.sink.address, aws=aws)
    sink = open_sink(where.table, scheme=where.scheme, pipeline=declaration.name, partition_by=None)
    return _frame(spark, sink, "its first batch makes")


def quarantine_frame(spark: "Session", declaration: PipelineDeclaration, aws: Aws) -> "Frame":
    """Return the quarantined lines."""
    where = table_paths(declaration.sink.address, aws=aws)
    sink = open_sink(where.quarantine, scheme=where.scheme, pipeline=declaration.name, partition_by=None)
    return _frame(spark, sink, "the first line that cannot be read makes")


def _frame(spark: "Session", sink: TableSink, made_by: str) -> "Frame":
    table = sink.load()
    if table is None:
        raise TableError(f"There is no table at {sink.uri} yet; {made_by} it.")
    return frame_of(spark, table)

"""Read the tables of a declared pipeline as DataFrames."""

from typing import TYPE_CHECKING

from penstock.app.paths import places
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.errors import TableError
from penstock.pipeline.spark.frames import frame_of
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.storage.aws import Aws

if TYPE_CHECKING:
    from penstock.pipeline.spark.declaration import Frame
    from penstock.pipeline.spark.session import Session


def rows_frame(spark: "Session", declaration: PipelineDeclaration, aws: Aws) -> "Frame":
    """Return the rows."""
    where = places(declaration.sink.table, aws=aws)
    return _frame(
        spark, DeltaTableSink(where.table, pipeline=declaration.name, partition_by=None), "its first batch makes"
    )


def quarantine_frame(spark: "Session", declaration: PipelineDeclaration, aws: Aws) -> "Frame":
    """Return the quarantined lines."""
    where = places(declaration.sink.table, aws=aws)
    sink = DeltaTableSink(where.quarantine, pipeline=declaration.name, partition_by=None)
    return _frame(spark, sink, "the first line that cannot be read makes")


def _frame(spark: "Session", sink: DeltaTableSink, who_makes: str) -> "Frame":
    table = sink.load()
    if table is None:
        raise TableError(f"There is no table at {sink.uri} yet; {who_makes} it.")
    return frame_of(spark, table)

"""A declared pipeline as a service: one line of a worker, on the worker's Spark session."""

from dataclasses import dataclass
from os import fspath

from penstock.app.cleanup import SourceReader
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.service import OpenedService, ServiceContext
from penstock.objects.globs import cut
from penstock.pipeline.extra import require_spark
from penstock.sinks.registry import split_address


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineService:
    """A pipeline as a worker serves it. Its line waits for Spark, which starts while the worker serves other queues."""

    pipeline: Pipeline

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def queue_name(self) -> str:
        return self.pipeline.declaration.source.queue

    @property
    def reader(self) -> SourceReader:
        """The source, its cleanup and the table."""
        source, sink = self.pipeline.declaration.source, self.pipeline.declaration.sink
        _, table = split_address(sink.address)
        folder = cut(fspath(source.folder)).folder  # of a pattern the part before its first wildcard
        return SourceReader(name=self.name, source=folder, cleanup=source.cleanup, table=table)

    def open(self, context: ServiceContext, *, weight: int) -> OpenedService:
        require_spark(self.pipeline.declaration.sink.scheme)
        context.check_spark()
        from penstock.app.pipelines.plan import plan_of

        plan = plan_of(self.pipeline.declaration, context, faults_max=None)
        plan.blueprint.check_columns()
        consumer = plan.blueprint.deferred_consumer(context.spark, queue=self.queue_name, weight=weight)
        return OpenedService(consumer=consumer, close=lambda: None)

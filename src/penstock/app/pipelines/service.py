"""A declared pipeline as a service: one line of a worker, on the worker's Spark session."""

from dataclasses import dataclass

from penstock.app.cleanup import SourceReader
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.service import OpenedService, ServiceContext


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
        return SourceReader(name=self.name, source=source.folder, cleanup=source.cleanup, table=sink.table)

    def open(self, host: ServiceContext, *, weight: int) -> OpenedService:
        host.check_spark()
        from penstock.app.pipelines.plan import plan_of

        plan = plan_of(self.pipeline.declaration, host, faults_max=None)
        plan.blueprint.check_columns()
        line = plan.blueprint.late_line(host.spark, queue=self.queue_name, weight=weight)
        caretaker = plan.caretaker(host)
        if caretaker is None:
            return OpenedService(line=line, close=lambda: None)
        caretaker.start()
        return OpenedService(line=line, close=caretaker.end)

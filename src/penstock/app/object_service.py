"""An object handler as a service: a source's objects, one call each, by the protocol of pipelines without Spark."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.app.cleanup.overlaps import Reader
from penstock.app.service import Host, Opened, busy_seconds_max
from penstock.app.sources import source_at
from penstock.errors import UsageError
from penstock.storage.address import check_address
from penstock.worker.line import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectService:
    """A declared function for objects. ``declaration`` is its `ObjectHandlerDeclaration`."""

    declaration: Any
    queue_name: str
    source: str
    concurrency: int | None
    retry_base_seconds: float
    retry_cap_seconds: float

    @property
    def name(self) -> str:
        name: str = self.declaration.name
        return name

    @property
    def reader(self) -> Reader:
        """What it reads; it leaves everything where it is."""
        return Reader(name=self.name, source=self.source)

    def open(self, host: Host, *, weight: int) -> Opened:
        from penstock.objects.notification import parse
        from penstock.pipeline.objects.handler import ObjectHandler, ObjectHandlerTools

        try:
            source = source_at(self.source, host.settings.aws)
        except UsageError as error:
            raise UsageError(f"The object handler {self.name}: {error}") from error
        tools = ObjectHandlerTools(
            ledger=host.ledger(),
            store=source.store,
            parse=partial(parse, buckets_allowed=source.buckets),
            worker=host.worker,
            lease_seconds=host.settings.lease_seconds,
            bus=host.bus,
            backoff_base_seconds=self.retry_base_seconds,
            backoff_cap_seconds=self.retry_cap_seconds,
            busy_seconds_max=busy_seconds_max(host.broker),
            resources=host.resources,
            random=host.random,
            watched=host.outage.watched,
        )
        handler = ObjectHandler(self.declaration, tools)
        line = Line(queue=self.queue_name, handler=handler, weight=weight, in_flight_max=self.concurrency)
        return Opened(line=line, close=lambda: None)


def check_source(name: str, source: str) -> None:
    """Raise `UsageError` for a source that cannot be one."""
    check_address(f"object handler {name}'s source", source)

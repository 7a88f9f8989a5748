"""An object handler as a service: one call per object of a source, with the pipelines' protocol but without Spark."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.app.cleanup import Cleanup, Keep, SourceReader
from penstock.app.service import OpenedService, ServiceContext, busy_seconds_max
from penstock.app.sources import SourceLocation, source_at
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.messaging.clock import Clock
from penstock.messaging.declarations import check_annotations
from penstock.messaging.steps import Probe
from penstock.objects.globs import cut
from penstock.objects.notification import parse_others
from penstock.storage.address import check_address
from penstock.worker.consumer import Consumer, Gates

if TYPE_CHECKING:
    from penstock.ledger import Ledger
    from penstock.pipeline.maintenance.cleanup import SourceCleanup
    from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectService:
    """A declared object handler. ``declaration`` is its `ObjectHandlerDeclaration`."""

    declaration: Any
    queue_name: str
    source: str
    concurrency: int | None
    retry_base_seconds: float
    retry_cap_seconds: float
    source_cleanup: Cleanup = field(default_factory=Keep)  # applied to the objects it has processed

    @property
    def name(self) -> str:
        name: str = self.declaration.name
        return name

    @property
    def reader(self) -> SourceReader:
        """The source and its cleanup."""
        return SourceReader(name=self.name, source=cut(self.source).folder, cleanup=self.source_cleanup)

    def open(self, context: ServiceContext, *, weight: int) -> OpenedService:
        from penstock.app.cleanup_runner import moved_to  # loads the ledger, so not with the declaration
        from penstock.pipeline.objects.handler import ObjectHandler, ObjectHandlerRuntime

        try:
            source = source_at(self.source, context.settings.aws)
        except UsageError as error:
            raise UsageError(f"The object handler {self.name}: {error}") from error
        store_outage = context.stores.of(source)
        tools = ObjectHandlerRuntime(
            ledger=context.ledger(),
            store=source.store,
            parse=partial(
                parse_others,
                buckets_allowed=source.buckets,
                own=moved_to(self.source_cleanup),
                selection=source.selection,
            ),
            worker=context.worker,
            lease_seconds=context.settings.worker_lease,
            bus=context.bus,
            backoff_base_seconds=self.retry_base_seconds,
            backoff_cap_seconds=self.retry_cap_seconds,
            busy_seconds_max=busy_seconds_max(context.broker),
            resources=context.resources,
            clock=context.clock,
            random=context.random,
            ledger_watch=context.outage,
            store_watch=store_outage,
        )
        handler = ObjectHandler(self.declaration, tools)
        consumer = Consumer(
            queue=self.queue_name,
            handler=handler,
            weight=weight,
            in_flight_max=self.concurrency,
            gate=Gates(context.outage.gate(self.queue_name), store_outage.gate(self.queue_name)),
        )
        return OpenedService(consumer=consumer, close=lambda: None)

    def cleaning(
        self, source: SourceLocation, *, ledger: "Ledger", bus: Bus, probe: Probe, clock: Clock
    ) -> "SourceCleanup | None":
        """Return the cleanup of the source; None if objects are kept."""
        from penstock.app.cleanup_runner import all_visible, source_cleanup

        return source_cleanup(
            self.source_cleanup,
            source=source,
            pipeline=self.name,
            own=(),
            shown_to=all_visible,
            ledger=ledger,
            bus=bus,
            probe=probe,
            clock=clock,
        )


def check_source(name: str, source: str) -> None:
    """Raise `UsageError` if the source is not a valid address."""
    check_address(f"object handler {name}'s source", source)


def check_functions(declaration: "ObjectHandlerDeclaration") -> None:
    """Raise `UsageError` if function or cleanup are annotated for other arguments than an object and a context."""
    from penstock.pipeline.objects.stream import IncomingObject

    name = f"The object handler {declaration.name}"
    for subject, function in ((name, declaration.function), (f"{name}, in its cleanup,", declaration.cleanup)):
        if function is not None:
            check_annotations(
                function,
                subject,
                model=IncomingObject,
                example="obj: IncomingObject",
                context="ObjectContext",
                given="it is called with one object",
            )

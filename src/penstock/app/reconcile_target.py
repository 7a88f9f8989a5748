"""The target of a reconcile: a source, the ledger that knows its objects, and the queue of their notifications."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.app.brokers import open_broker
from penstock.app.naming import object_names
from penstock.app.object_service import ObjectService
from penstock.app.paths import declared_table_paths
from penstock.app.pipelines.service import PipelineService
from penstock.app.scope import scope_ledger
from penstock.app.sources import SourceLocation, source_at, source_of
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker
from penstock.storage.files import Files

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.scope import Scope
    from penstock.app.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTarget:
    """A source to reconcile, with its ledger and queue.

    ``own`` are the places that Penstock itself writes, which are no source. ``alone``: compare in this process, because
    an object handler needs no Spark.
    """

    pipeline: str
    source: SourceLocation
    own: Sequence[Files]
    queue: str
    ledger: Ledger
    broker: Broker
    alone: bool = False


def target_in(app: "App", name: str) -> ReconcileTarget:
    """Return the target of a pipeline or object handler of an app.

    Raises `UsageError` if the app has none of that name, and `ConfigurationError` if the ledger holds another app's
    objects under it.
    """
    found = {service.name: service for service in app.services if _has_objects(service)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UsageError(f"The app has no pipeline {name}; what it reads objects with: {known}.")
    object_names(app, app.services, only=name).check(app.ledger)
    return _target_of(app, found[name])


def targets_in(app: "App", services: "Sequence[Service]") -> Sequence[ReconcileTarget]:
    """Return the targets of all pipelines and object handlers among these services."""
    return [_target_of(app, service) for service in services if _has_objects(service)]


@contextmanager
def target_of_table(scope: "Scope", source: str) -> Iterator[ReconcileTarget]:
    """Yield the target of an ingest's table that is fed from this source."""

    where = scope.table
    assert where is not None, "the scope is a table's"
    found = source_of(source, where)
    with ExitStack() as stack:
        ledger = scope_ledger(scope)
        stack.callback(ledger.close)
        broker = open_broker(scope.settings, holder="")
        stack.callback(broker.close)
        yield ReconcileTarget(
            pipeline=where.pipeline,
            source=found,
            own=where.own,
            queue=where.queue(found),
            ledger=ledger,
            broker=broker,
        )


def _has_objects(service: Any) -> bool:
    return isinstance(service, PipelineService | ObjectService)


def _target_of(app: "App", service: Any) -> ReconcileTarget:
    own: Sequence[Files] = ()
    if isinstance(service, PipelineService):
        declared = service.pipeline.declaration
        where = declared_table_paths(declared.name, declared.sink.address, app.settings)
        source, own = source_of(declared.source.folder, where), where.own
    else:
        source = source_at(service.source, app.settings.aws)
    app.ledger.ensure_pipeline(service.name)
    return ReconcileTarget(
        pipeline=service.name,
        source=source,
        own=own,
        queue=service.queue_name,
        ledger=app.ledger,
        broker=app.broker,
        alone=isinstance(service, ObjectService),
    )

"""Build the context in which a worker's services, or a pipeline that runs alone, are opened."""

import random
from functools import partial

from penstock.app.context import AppContext
from penstock.app.kill import killing_probe
from penstock.app.service import ServiceContext
from penstock.app.sources import StoreOutages
from penstock.app.spark import Spark
from penstock.events import Bus
from penstock.handlers.outage import OutageWatch
from penstock.messaging.clock import Clock
from penstock.messaging.tracing import Tracing
from penstock.worker.shutdown import StopSignal


def service_context(
    app: AppContext,
    *,
    sessions: Spark,
    bus: Bus,
    clock: Clock,
    stop: StopSignal,
    tracing: Tracing,
    breaks: bool = True,
) -> ServiceContext:
    """Return the context without resources; the caller adds them once the lifespans are entered."""
    outage = partial(OutageWatch, bus=bus, clock=clock, releases_uncounted=app.broker.capabilities.releases_uncounted)
    return ServiceContext(
        worker=app.worker,
        settings=app.settings,
        broker=app.broker,
        ledger=lambda: app.ledger,
        bus=bus,
        clock=clock,
        random=random.random,
        probe=killing_probe(app.settings.kill_at),
        stop=stop,
        outage=outage(ping=lambda: app.ledger.ping()),
        stores=StoreOutages(outage),
        spark=sessions.session,
        check_spark=sessions.check,
        handled=frozenset(service.queue_name for service in app.services),
        tracing=tracing,
        breaks=breaks,
    )

"""A worker over an app: what is served, who is beside it, and in which order all of it is opened and closed."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app.backends import require_shared_ledger
from penstock.app.dead_ageing import ageing
from penstock.app.housekeeping import Presence
from penstock.app.kill import killing_probe
from penstock.app.lifespans import Lifespans
from penstock.app.listeners import guarded
from penstock.app.reconcile_serving import reconciling
from penstock.app.replaying import FirstTier, check_tiers, first_tiers, replay_lines
from penstock.app.service import Host, Service, needs_ledger, needs_objects
from penstock.app.spark import app_spark
from penstock.app.sqs_queues import check_queues
from penstock.app.transactions_running import CLOSE_SECONDS as RELAY_CLOSE_SECONDS
from penstock.app.transactions_running import relaying
from penstock.errors import ConfigurationError
from penstock.events import Bus, Listener
from penstock.handlers.outage import Outage
from penstock.handlers.ticker import Ticker
from penstock.messaging.clock import SystemClock
from penstock.worker.line import Line
from penstock.worker.places import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shift import Conclusion
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.pipeline.session import Session

LIFESPAN_CLOSE_SECONDS = 2.0


def serve(
    app: "App",
    *,
    stop: StopSignal,
    queues: Mapping[str, int] | None = None,
    until: Callable[[], bool] | None = None,
    listeners: Sequence[Listener] = (),
    settings: WorkerSettings | None = None,
    resident: bool = True,
    spark: "Session | None" = None,
    tiers: Sequence[FirstTier] | None = None,
) -> Conclusion:
    """Run a worker on the app's queues until ``stop``, or until ``until`` (asked when idle) answers True.

    ``queues`` names those to serve with their weights; by default those of the settings, else all that have a handler.
    A worker that is not ``resident`` leaves no trace in the state folder and sends no ticks: for tests. ``spark`` is a
    session for its pipelines that is not stopped; without one they share one of the worker's own. With ``tiers`` it is
    a replayer of these and serves nothing else; without, it replays besides if the settings say so. Raises
    `ConfigurationError` for a queue without a handler or one that is not there, for a ledger of this host beside a
    broker of many, and what stopped the worker.
    """
    services = chosen(app, queues) if tiers is None else ()
    clock = SystemClock()
    if resident:
        recorded = [service.name for service, _ in services if needs_ledger(service)]
        require_shared_ledger(app.settings, recorded=recorded)
        check_queues([service.queue_name for service, _ in services], app.settings, clock=clock, waits=True)
    if tiers is None:
        served = [service.queue_name for service, _ in services]
        tiers = first_tiers(app, served) if resident and app.settings.replay else ()
    check_tiers(tiers, app.settings, clock=clock)
    presence = Presence(settings=app.settings, broker=app.broker, worker=app.worker, stop=stop, clock=clock)
    own = (*listeners, *(presence.listeners if resident else ()))
    bus = Bus(*guarded(app.listeners, tell=Bus(*own).emit), *own)
    sessions = app_spark(app.settings, worker=app.worker, clock=clock, bus=bus, stop=stop, given=spark)
    host = Host(
        worker=app.worker,
        settings=app.settings,
        broker=app.broker,
        ledger=lambda: app.ledger,
        bus=bus,
        clock=clock,
        random=random.random,
        probe=killing_probe(app.settings.kill_at),
        stop=stop,
        outage=Outage(bus=bus, clock=clock),
        spark=sessions.session,
        handled=frozenset(service.queue_name for service in app.services),
        breaks=resident,  # a test would wait for the pauses, and never see a message die
    )
    numbers = settings or worker_settings(app)
    with ExitStack() as stack:
        stack.enter_context(app.incidents.passing_to(bus.emit))
        if resident:
            stack.enter_context(presence.kept(ledger=host.ledger, tell=host.bus.emit, random=host.random))
        event_loop = EventLoop()
        stack.callback(event_loop.close)
        lifespans = Lifespans(
            app.lifespans if services else (),
            loop_of=event_loop.started,
            bus=host.bus,
            close_seconds=LIFESPAN_CLOSE_SECONDS,
        )
        stack.callback(lifespans.close)
        host = replace(host, resources=lifespans.open())
        stack.callback(sessions.close)
        lines = [*_open(services, host, stack), *replay_lines(tiers, host)]
        if resident and until is None:  # else its look, on SQS, hides what is still to be sent
            stack.enter_context(ageing([queue for tier in tiers for queue in (tier.queue, tier.second_tier)], host))
        if resident and services:
            _tick(app, services, host, stack)
            _archive(app, services, host, stack)
            stack.enter_context(reconciling(app, [service for service, _ in services], host))
            stack.enter_context(relaying(app, tell=bus.emit, clock=clock, random=host.random))
        worker = Worker(
            broker=host.broker,
            lines=lines,
            settings=numbers,
            clock=host.clock,
            bus=host.bus,
            probe=host.probe,
            random=host.random,
            event_loop=event_loop,
            address=app.address,
        )
        return worker.run(stop, until)


def chosen(app: "App", queues: Mapping[str, int] | None) -> Sequence[tuple[Service, int]]:
    """The services to run, each with its weight. Raises `ConfigurationError` where a queue has no handler."""
    by_queue = {service.queue_name: service for service in app.services}
    wanted = dict(queues or app.settings.queues) or dict.fromkeys(by_queue, 1)
    if not wanted:
        raise ConfigurationError(
            "The app has no handlers, so there is nothing to serve; declare one with @app.handler."
        )
    missing = sorted(wanted.keys() - by_queue.keys())
    if missing:
        known = ", ".join(sorted(by_queue)) or "none"
        raise ConfigurationError(
            f"The queue {missing[0]} has no handler in this app; queues with one: {known}. Serving it would take its "
            "messages from those who can work on them."
        )
    return [(by_queue[name], weight) for name, weight in wanted.items()]


def worker_settings(app: "App") -> WorkerSettings:
    """The worker's numbers, out of the app's settings. Raises `ConfigurationError` where they do not go together."""
    settings = app.settings
    return WorkerSettings(
        concurrency=settings.concurrency,
        fetch_max=settings.fetch_max,
        lease_seconds=settings.lease_seconds,
        stop_timeout_seconds=settings.stop_timeout_seconds
        - (LIFESPAN_CLOSE_SECONDS if app.lifespans else 0.0)
        - (RELAY_CLOSE_SECONDS if app.relays else 0.0),
        drain_seconds=settings.drain_seconds,
    )


def _open(services: Sequence[tuple[Service, int]], host: Host, stack: ExitStack) -> Sequence[Line]:
    lines: list[Line] = []
    for service, weight in services:
        opened = service.open(host, weight=weight)
        stack.callback(opened.close)
        lines.append(opened.line)
    return lines


def _archive(app: "App", services: Sequence[tuple[Service, int]], host: Host, stack: ExitStack) -> None:
    """Let rows of objects that were processed long ago leave the ledger, where the settings say so."""
    days = app.settings.archive_after_days
    if days is None or not any(needs_objects(service) for service, _ in services):
        return
    from penstock.pipeline.extra import require_arrow

    require_arrow()
    from penstock.app.archive_keeper import keeper_of

    stack.enter_context(keeper_of([service for service, _ in services], host, days=days).beside())


def _tick(app: "App", services: Sequence[tuple[Service, int]], host: Host, stack: ExitStack) -> None:
    """Send what the clock sends, for the queues that are served here."""
    served = {service.queue_name for service, _ in services}
    scheduled = [one for one in app.declarations if one.schedule is not None and one.queue.name in served]
    if not scheduled:
        return
    ticker = Ticker(scheduled, broker=host.broker, clock=host.clock, bus=host.bus, random=host.random)
    thread = threading.Thread(target=ticker.run, name="penstock-ticker", daemon=True)
    thread.start()
    stack.callback(ticker.end)

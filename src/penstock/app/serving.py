"""Serve an app: the queues and background jobs of a worker, and the order in which everything opens and closes.

If the ledger is unavailable when a worker starts, a worker that needs it to begin waits for it, as it does for the
broker: a restart would not help. Also starts the regular reconcile, if the settings ask for one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from penstock.app.backends import check_queues, require_shared_ledger
from penstock.app.hosting import host_of
from penstock.app.housekeeping import Presence
from penstock.app.jobs.dead_letters import ageing
from penstock.app.jobs.task_protection import protections
from penstock.app.lifespans import Lifespans
from penstock.app.naming import register
from penstock.app.pipelines.service import PipelineService
from penstock.app.relays import CLOSE_SECONDS as RELAY_CLOSE_SECONDS
from penstock.app.relays import relaying
from penstock.app.replayer import ReplayedQueue, check_tiers, first_tiers, replay_lines
from penstock.app.service import Service, ServiceContext, needs_ledger, needs_objects
from penstock.app.spark import app_spark
from penstock.app.telemetry import guarded
from penstock.app.tracing import traced
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Listener
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys
from penstock.handlers.outage import OutageWatch
from penstock.handlers.ticker import CLAIM_SECONDS, REMEMBERED_SECONDS, ScheduledKeys, Ticker
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.line import Line
from penstock.worker.liveness import Liveness
from penstock.worker.pools import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.reconcile_target import ReconcileTarget
    from penstock.pipeline.spark.session import Session


_GLANCE_SECONDS = 0.2  # poll interval: a signal handler may run in this thread, so it cannot wait for the event


def await_ledger(
    open_ledger: Callable[[], object], *, outage: OutageWatch, stop: StopSignal, clock: Clock, random: Random
) -> None:
    """Open the ledger, retrying while it is unavailable.

    Raises the error that a person has to fix, and `TemporaryError` after a stop.
    """
    never = threading.Event()
    while True:
        try:
            with outage.asked():
                open_ledger()
            return
        except TemporaryError:
            again_at = clock.monotonic() + outage.pause_seconds(random)
            while not stop.requested and (left_seconds := again_at - clock.monotonic()) > 0:
                clock.wait(never, min(left_seconds, _GLANCE_SECONDS))
            if stop.requested:
                raise


@contextmanager
def reconciling(app: "App", services: Sequence[Service], host: ServiceContext) -> Iterator[None]:
    """Reconcile the pipelines and object handlers among these services periodically, inside the block."""
    every_seconds = host.settings.reconcile_every_seconds
    if every_seconds is None or not any(map(needs_objects, services)):
        yield
        return
    from penstock.app.context import PipelineTools
    from penstock.app.jobs.reconcile import ReconcileDuty
    from penstock.app.reconcile import ReconcileRequest, reconcile
    from penstock.app.reconcile_target import targets_in

    request = ReconcileRequest(older_than_seconds=host.settings.reconcile_older_than_seconds)

    def work(target: "ReconcileTarget", stop: "StopSignal") -> None:
        tools = PipelineTools(stop=stop, clock=host.clock, bus=host.bus, probe=host.probe)
        reconcile(target, request, spark=None if target.alone else host.spark(), tools=tools)

    duty = ReconcileDuty(
        targets_in(app, services),
        work,
        worker=host.worker,
        every_seconds=every_seconds,
        lease_seconds=host.settings.lease_seconds,
        stop=host.stop,
        clock=host.clock,
        random=host.random,
        tell=host.bus.emit,
    )
    duty.start()
    try:
        yield
    finally:
        duty.end()


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
    tiers: Sequence[ReplayedQueue] | None = None,
    pulse: Liveness | None = None,
    metrics_address: Callable[[], str | None] = lambda: None,
) -> WorkerOutcome:
    """Run a worker on the app's queues until ``stop``, or until ``until`` (called when idle) returns True.

    Args:
        app: The app.
        stop: The process's stop signal.
        queues: Queues to serve, with weights. Default: those of the settings, else all with a handler.
        until: End condition; None: run until ``stop``.
        listeners: Further listeners. Unlike the app's own, their exceptions are not caught.
        settings: The worker's numbers. Default: from the app's settings.
        resident: False leaves no trace in the data directory and sends no ticks, for tests.
        spark: Session for the pipelines, which is not stopped. Default: the worker starts its own.
        tiers: Replay only these DLQs and serve nothing else. None: replay as well if the settings ask for it.
        pulse: The worker's liveness, for probes.
        metrics_address: Returns the address of the metrics endpoint.

    Raises:
        ConfigurationError: If a queue has no handler or does not exist, or if the ledger is local to this host beside a
            shared broker. Also raises any error that stopped the worker.
    """
    clock = SystemClock()
    services = chosen(app, queues) if tiers is None else ()
    served = [service.queue_name for service, _ in services]
    ticking = _claims_ticks(app) if resident else frozenset()
    recording = [one for one, _ in services if needs_ledger(one) or one.name in ticking]
    if resident:
        recorded = [service.name for service in recording]
        require_shared_ledger(app.settings, recorded=recorded)
        check_queues(served, app.settings, clock=clock, waits=True)
    if tiers is None:
        tiers = first_tiers(app, served) if resident and app.settings.replay else ()
    check_tiers(tiers, app.settings, clock=clock)
    presence = Presence(
        settings=app.settings,
        broker=app.broker,
        worker=app.worker,
        stop=stop,
        clock=clock,
        metrics_address=metrics_address,
    )
    numbers = settings or worker_settings(app)
    drain_seconds = numbers.budget.drain_seconds
    protection = protections(app.settings, long_seconds=drain_seconds, stop=stop, clock=clock) if resident else ()
    own: Sequence[Listener] = (*listeners, *protection, *(presence.listeners if resident else ()))
    bus = Bus(*guarded(app.listeners, tell=Bus(*own).emit), *own)
    sessions = app_spark(app.settings, worker=app.worker, clock=clock, bus=bus, stop=stop, given=spark)
    # Tests disable the circuit breakers: a test would wait for their pauses, and its messages would not be
    # dead-lettered.
    host = host_of(app, sessions=sessions, bus=bus, clock=clock, stop=stop, tracing=app.tracing, breaks=resident)
    event_loop = EventLoop()
    with ExitStack() as stack:
        stack.enter_context(app.incidents.passing_to(bus.emit))
        for one in protection:
            stack.enter_context(one.beside(bus.emit))
        if resident:
            stack.enter_context(presence.kept(ledger=host.ledger, tell=bus.emit, random=host.random))
        needs_watch = bool(tiers or recording)
        owners = lru_cache(partial(register, app, recording))
        if resident and until is None and needs_watch:
            for service in recording:
                host.outage.gate(service.queue_name)  # so that an outage reports this queue from the start
            waits = bool(tiers) or any(needs_objects(service) or service.name in ticking for service in recording)
            _meet_ledger(host, owners, waits=waits)
            host = replace(host, owners=owners)
        else:
            registered = owners()
            host = replace(host, owners=lambda: registered)
        stack.callback(event_loop.close)
        if services:
            host = replace(host, resources=_resources(app, host, event_loop, stack))
        stack.callback(sessions.close)
        lines = [*_open(services, host, stack), *replay_lines(tiers, host)]
        if resident and until is None:  # otherwise its inspection on SQS would hide messages that are still to be sent
            stack.enter_context(ageing([queue for tier in tiers for queue in (tier.queue, tier.second_tier)], host))
        if resident and services:
            _begin_duties(app, [service for service, _ in services], host, stack)
        if needs_watch:
            stack.enter_context(host.outage.watching())
            stack.enter_context(host.stores.watching())
        worker = Worker(
            broker=host.broker,
            lines=traced(lines, host.tracing, system=host.broker.capabilities.system),
            settings=numbers,
            clock=clock,
            bus=bus,
            probe=host.probe,
            random=host.random,
            pulse=pulse,
            event_loop=event_loop,
            address=app.address,
            metrics_address=metrics_address(),
        )
        return worker.run(stop, until)


def _meet_ledger(host: ServiceContext, owners: Callable[[], object], *, waits: bool) -> None:
    """Open the ledger and register the names in it.

    If the ledger is unavailable, wait for it if ``waits``. Otherwise the queues that need it are paused, and the names
    are registered once it is back. Raises the error that a person has to fix, and `TemporaryError` after a stop.
    """
    if waits:
        await_ledger(host.ledger, outage=host.outage, stop=host.stop, clock=host.clock, random=host.random)
        owners()
        return
    with suppress(TemporaryError), host.outage.asked():
        owners()


def chosen(app: "App", queues: Mapping[str, int] | None) -> Sequence[tuple[Service, int]]:
    """Return the services to run, each with its weight. Raises `ConfigurationError` for a queue without a handler."""
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
    """Return the worker's numbers from the app's settings.

    Raises `ConfigurationError` if they contradict each other.
    """
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


def _resources(app: "App", host: ServiceContext, event_loop: EventLoop, stack: ExitStack) -> Mapping[str, Any]:
    """Enter the app's lifespans and return their resources; the stack leaves them."""
    lifespans = Lifespans(app.lifespans, loop_of=event_loop.started, bus=host.bus, close_seconds=LIFESPAN_CLOSE_SECONDS)
    stack.callback(lifespans.close)
    return lifespans.open()


def _open(services: Sequence[tuple[Service, int]], host: ServiceContext, stack: ExitStack) -> Sequence[Line]:
    lines: list[Line] = []
    for service, weight in services:
        opened = service.open(host, weight=weight)
        stack.callback(opened.close)
        lines.append(opened.line)
    return lines


def _begin_duties(app: "App", services: Sequence[Service], host: ServiceContext, stack: ExitStack) -> None:
    """Start the worker's background jobs; the stack ends them."""
    _tick(app, services, host, stack)
    _archive(services, host, stack)
    _collect_garbage(services, host, stack)
    stack.enter_context(reconciling(app, services, host))
    stack.enter_context(relaying(app, tell=host.bus.emit, clock=host.clock, random=host.random))


def _claims_ticks(app: "App") -> frozenset[str]:
    """Return the handlers whose ticks are claimed in the ledger, because the broker does not deduplicate."""
    if app.broker.capabilities.deduplicates:
        return frozenset()
    return frozenset(one.name for one in app.declarations if one.schedule is not None)


def tick_keys(app: str, host: ServiceContext) -> ScheduledKeys:
    """Return a factory of the keys that claim a scheduled handler's ticks in the ledger."""
    from penstock.handlers.once import LedgerKeys
    from penstock.ledger.records import WorkOwner

    def keys(declaration: HandlerDeclaration) -> IdempotencyKeys:
        return LedgerKeys(
            ledger=host.ledger(),
            handler=declaration.name,
            worker=host.worker,
            lease_seconds=CLAIM_SECONDS,
            retention_seconds=REMEMBERED_SECONDS,
            owner=WorkOwner(app=app, queue=declaration.queue.name, purpose="tick"),
        )

    return keys


def _tick(app: "App", services: Sequence[Service], host: ServiceContext, stack: ExitStack) -> None:
    """Send the ticks of scheduled handlers whose queues are served here."""
    served = {service.queue_name for service in services}
    scheduled = [one for one in app.declarations if one.schedule is not None and one.queue.name in served]
    if not scheduled:
        return
    keys = tick_keys(app.name, host) if _claims_ticks(app) else None
    ticker = Ticker(scheduled, broker=host.broker, clock=host.clock, bus=host.bus, random=host.random, keys=keys)
    thread = threading.Thread(target=ticker.run, name="penstock-ticker", daemon=True)
    thread.start()
    stack.callback(ticker.end)


def _collect_garbage(services: Sequence[Service], host: ServiceContext, stack: ExitStack) -> None:
    """Delete leftovers of dead attempts and compactions in the tables, periodically."""
    if not any(isinstance(service, PipelineService) for service in services):
        return
    from penstock.app.jobs.gc import keeper_of

    keeper = keeper_of(services, host)
    if keeper is not None:
        stack.enter_context(keeper.beside())


def _archive(services: Sequence[Service], host: ServiceContext, stack: ExitStack) -> None:
    """Archive ledger rows of objects that were processed long ago, if the settings ask for it."""
    days = host.settings.archive_after_days
    if days is None or not any(map(needs_objects, services)):
        return
    from penstock.pipeline.extra import require_arrow

    require_arrow()
    from penstock.app.jobs.archive import keeper_of

    stack.enter_context(keeper_of(services, host, days=days).beside())

"""A worker over an app: what is served, who is beside it, and in which order all of it is opened and closed.

A ledger that is away while a worker starts is waited for, as a broker is: a restart would find it no sooner.

The regular reconcile of a worker's pipelines and object handlers, if its settings ask for one.
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


_GLANCE_SECONDS = 0.2  # a signal's handler may run in this very thread, so no event that it sets is waited for


def await_ledger(
    open_ledger: Callable[[], object], *, outage: OutageWatch, stop: StopSignal, clock: Clock, random: Random
) -> None:
    """Open it, again and again while it is away. Raises what a person has to mend; `TemporaryError` after a stop."""
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
    """Reconcile the pipelines and object handlers among these every so often, until the block ends."""
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
    """Run a worker on the app's queues until ``stop``, or until ``until`` (asked when idle) answers True.

    ``queues`` names those to serve with their weights; by default those of the settings, else all that have a handler.
    A worker that is not ``resident`` leaves no trace in the state folder and sends no ticks: for tests. ``spark`` is a
    session for its pipelines that is not stopped; without one they share one of the worker's own. With ``tiers`` it is
    a replayer of these and serves nothing else; without, it replays besides if the settings say so. ``pulse`` is that
    of the worker, for those who ask how it is, and ``metrics_address`` where they do. Raises `ConfigurationError` for a
    queue without a handler or one that is not there, for a ledger of this host beside a broker of many, and what
    stopped the worker.
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
    # A test would wait for the pauses of a breaker, and never see a message die.
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
                host.outage.gate(service.queue_name)  # so that an outage names it from the beginning
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
        if resident and until is None:  # else its look, on SQS, hides what is still to be sent
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
    """Open the ledger and register the names in it. One that is away is waited for, if anything needs it to begin;
    else its queues are paused, and the names are registered when it is back.

    Raises what a person has to mend, and `TemporaryError` after a stop.
    """
    if waits:
        await_ledger(host.ledger, outage=host.outage, stop=host.stop, clock=host.clock, random=host.random)
        owners()
        return
    with suppress(TemporaryError), host.outage.asked():
        owners()


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


def _resources(app: "App", host: ServiceContext, event_loop: EventLoop, stack: ExitStack) -> Mapping[str, Any]:
    """What the app's lifespans yield; they are left with the stack."""
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
    """What a worker does beside its queues, until the stack is left."""
    _tick(app, services, host, stack)
    _archive(services, host, stack)
    _collect_garbage(services, host, stack)
    stack.enter_context(reconciling(app, services, host))
    stack.enter_context(relaying(app, tell=host.bus.emit, clock=host.clock, random=host.random))


def _claims_ticks(app: "App") -> frozenset[str]:
    """Return the handlers whose ticks are claimed in the ledger, since the broker drops no duplicates."""
    if app.broker.capabilities.deduplicates:
        return frozenset()
    return frozenset(one.name for one in app.declarations if one.schedule is not None)


def tick_keys(app: str, host: ServiceContext) -> ScheduledKeys:
    """Return what makes the keys of a scheduled handler's ticks, in the ledger."""
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
    """Send what the clock sends, for the queues that are served here."""
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
    """Delete what dead attempts and compactions left in the tables, now and then."""
    if not any(isinstance(service, PipelineService) for service in services):
        return
    from penstock.app.jobs.gc import keeper_of

    keeper = keeper_of(services, host)
    if keeper is not None:
        stack.enter_context(keeper.beside())


def _archive(services: Sequence[Service], host: ServiceContext, stack: ExitStack) -> None:
    """Let rows of objects that were processed long ago leave the ledger, where the settings say so."""
    days = host.settings.archive_after_days
    if days is None or not any(map(needs_objects, services)):
        return
    from penstock.pipeline.extra import require_arrow

    require_arrow()
    from penstock.app.jobs.archive import keeper_of

    stack.enter_context(keeper_of(services, host, days=days).beside())

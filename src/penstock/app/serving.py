"""Serve an app: run a worker with its queues and background jobs, and open and close everything in order.

If the ledger is unavailable at the start, a worker that cannot begin without it waits, as it does for the broker: a
restart would not help.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from penstock.app.backends import has_ledger_apart, has_local_ledger, require_shared_ledger
from penstock.app.brokers import check_queues
from penstock.app.collector import BATCH_THRESHOLDS, MESSAGE_THRESHOLDS, rare_collections
from penstock.app.housekeeping import Presence
from penstock.app.jobs.elected import ElectedJob, running
from penstock.app.jobs.expiry import UNUSED_ARCHIVE, is_archive_unused
from penstock.app.jobs.monitor.job import monitor_job
from penstock.app.jobs.task_protection import protections
from penstock.app.jobs.worker_jobs import JobOf, worker_jobs
from penstock.app.lifespans import Lifespans
from penstock.app.naming import own_version, register
from penstock.app.relays import CLOSE_SECONDS as RELAY_CLOSE_SECONDS
from penstock.app.relays import relaying
from penstock.app.replayer import ReplayedQueue, check_dlqs, replay_consumers, replayed_dlqs
from penstock.app.service import Service, ServiceContext, needs_ledger, needs_objects
from penstock.app.service_context import service_context
from penstock.app.spark import Spark, app_spark
from penstock.app.telemetry import guarded
from penstock.app.tracing import traced
from penstock.config import shown
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Listener, SettingWithoutEffect
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys
from penstock.handlers.once import LedgerKeys
from penstock.handlers.outage import OutageWatch
from penstock.handlers.ticker import CLAIM_SECONDS, REMEMBERED_SECONDS, ScheduledKeys, Ticker
from penstock.ledger.records import WorkOwner
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock
from penstock.worker.consumer import Consumer
from penstock.worker.lifecycle import AppFacts, WorkerOutcome
from penstock.worker.liveness import Liveness
from penstock.worker.pools import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.monitoring.metrics.meters import Meters
    from penstock.pipeline.spark.runtime import GivenSpark


REPLAY, EXPIRY, MONITOR = "replay", "expiry", "monitor"  # names of background jobs
_STOP_CHECK_SECONDS = 0.2  # a signal handler may run in this thread, so it polls and does not wait for an event


def await_ledger(
    open_ledger: Callable[[], object], *, outage: OutageWatch, stop: StopSignal, clock: Clock, random: Random
) -> None:
    """Open the ledger, retrying while it is unavailable.

    Raises the error that a person has to fix, and `TemporaryError` after a stop.
    """
    never = threading.Event()
    while True:
        try:
            with outage.watch_request():
                open_ledger()
            return
        except TemporaryError:
            again_at = clock.monotonic() + outage.pause_seconds(random)
            while not stop.requested and (left_seconds := again_at - clock.monotonic()) > 0:
                clock.wait(never, min(left_seconds, _STOP_CHECK_SECONDS))
            if stop.requested:
                raise


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
    spark: "GivenSpark | None" = None,
    dlqs: Sequence[ReplayedQueue] | None = None,
    liveness: Liveness | None = None,
    metrics_address: Callable[[], str | None] = lambda: None,
    meters: "Meters | None" = None,
) -> WorkerOutcome:
    """Run a worker on the app's queues until ``stop``, or until ``until`` (called when idle) returns True.

    Args:
        queues: Queues to serve, with weights. Default: those of the settings, else all with a handler.
        until: End condition; None: run until ``stop``.
        listeners: Further listeners. Unlike the app's own, their exceptions are not caught.
        settings: The worker's numbers. Default: from the app's settings.
        resident: False leaves no trace in the data directory and sends no ticks, for tests.
        spark: Session for the pipelines, or a function that returns one; it is neither changed nor stopped. Default:
            that of the app, else as the setting ``spark.session`` says.
        dlqs: Replay only these DLQs and serve nothing else. None: replay as well if the settings turn it on.
        liveness: The worker's liveness, for probes.
        metrics_address: Returns the address of the metrics endpoint.
        meters: The worker's metrics. With them, workers that have a ledger elect one that runs the monitor.

    Returns:
        The outcome, including the threads of background jobs that are left behind.

    Raises:
        ConfigurationError: If a queue has no handler or does not exist, or if the ledger is local to this host beside a
            shared broker. Also raises any error that stopped the worker.
    """
    role = _role_of(app, queues, dlqs=dlqs, bounded=until is not None, resident=resident)
    numbers = settings or worker_settings(app)
    with ExitStack() as stack:
        context, sessions = _register_worker(
            app,
            role,
            stack,
            stop=stop,
            listeners=listeners,
            drain_seconds=numbers.budget.drain_seconds,
            spark=spark,
            metrics_address=metrics_address,
            liveness=liveness,
        )
        has_objects = any(map(needs_objects, role.services))
        stack.enter_context(rare_collections(BATCH_THRESHOLDS if has_objects else MESSAGE_THRESHOLDS))
        context = _with_ledger(app, role, context)
        event_loop = EventLoop()
        stack.callback(event_loop.close)
        context = _with_lifespans(app, role, context, event_loop, stack)
        stack.callback(sessions.close)
        consumers = [*_open(role.consumed, context, stack), *replay_consumers(role.replayed, context)]
        jobs, elected = _start_jobs(app, role, context, stack, meters=meters, metrics_address=metrics_address)
        _watch_outages(role, context, stack)
        worker = Worker(
            broker=context.broker,
            consumers=traced(consumers, context.tracing, system=context.broker.capabilities.system),
            settings=numbers,
            clock=context.clock,
            bus=context.bus,
            probe=context.probe,
            random=context.random,
            liveness=liveness,
            event_loop=event_loop,
            address=app.address,
            metrics_address=metrics_address(),
            jobs=jobs,
            facts=AppFacts(
                name=app.name,
                version=own_version(),
                ledger=str(shown("ledger", app.settings.ledger)) if role.needs_watch else None,
            ),
        )
        outcome = worker.run(stop, until)
    # A thread of a job that is in a library when the interpreter shuts down may crash the process.
    left = [name for job in elected for name in job.threads_left]
    return replace(outcome, threads_left=(*outcome.threads_left, *left))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """The work of a worker."""

    services: Sequence[Service]  # its background jobs are for these, also if it does not consume their queues
    consumed: Sequence[tuple[Service, int]]  # with their weights
    dlqs: Sequence[ReplayedQueue]  # those of its services with automatic replay, by this worker or another
    replayed: Sequence[ReplayedQueue]  # by this worker
    ticking: frozenset[str]  # handlers that claim their ticks in the ledger
    bounded: bool  # it runs until it is done
    resident: bool

    @property
    def recording(self) -> Sequence[Service]:
        """The services that use the ledger."""
        return [service for service in self.services if needs_ledger(service) or service.name in self.ticking]

    @property
    def needs_watch(self) -> bool:
        """True if its queues are paused while the ledger or a store is unavailable."""
        return bool(self.replayed or self.recording)

    @property
    def needs_ledger_to_start(self) -> bool:
        return bool(self.replayed) or any(
            needs_objects(service) or service.name in self.ticking for service in self.recording
        )


def chosen(app: "App", queues: Mapping[str, int] | None) -> Sequence[tuple[Service, int]]:
    """Return the services to run, each with its weight. Raises `ConfigurationError` for a queue without a handler."""
    by_queue = {service.queue_name: service for service in app.services}
    wanted = dict(queues or app.settings.worker_queues) or dict.fromkeys(by_queue, 1)
    if not wanted:
        raise ConfigurationError("The app has no handler, so there is nothing to serve; declare one with @app.handler.")
    missing = sorted(wanted.keys() - by_queue.keys())
    if missing:
        close = get_close_matches(missing[0], sorted(by_queue), n=1)
        known = f"queues with one: {', '.join(sorted(by_queue)) or 'none'}"
        raise ConfigurationError(
            f"The queue {missing[0]} has no handler in this app"
            + (f". Did you mean {close[0]}?" if close else f"; {known}.")
            + " A worker serves only queues that its app handles."
        )
    return [(by_queue[name], weight) for name, weight in wanted.items()]


def worker_settings(app: "App") -> WorkerSettings:
    """Return the worker's numbers from the app's settings.

    Raises `ConfigurationError` if they contradict each other.
    """
    settings = app.settings
    return WorkerSettings(
        concurrency=settings.worker_concurrency,
        fetch_max=settings.worker_max_fetch,
        lease_seconds=settings.worker_lease,
        stop_timeout_seconds=settings.worker_stop_timeout
        - (LIFESPAN_CLOSE_SECONDS if app.lifespans else 0.0)
        - (RELAY_CLOSE_SECONDS if app.relays else 0.0),
        drain_seconds=settings.worker_drain,
    )


def can_monitor(app: "App", services: Sequence[Service], *, replays: bool = False) -> bool:
    """Return True if workers of these services can elect one that runs the monitor.

    The election needs a ledger that all of them share: that of the services or of automatic replay, else a server that
    the settings name. A queue inside the process has no other worker.
    """
    if app.broker.capabilities.in_process or has_ledger_apart(app.settings):
        return False
    return replays or any(map(needs_ledger, services)) or not has_local_ledger(app.settings)


def tick_keys(app: str, context: ServiceContext) -> ScheduledKeys:
    """Return a factory of the keys that claim a scheduled handler's ticks in the ledger."""

    def keys(declaration: HandlerDeclaration) -> IdempotencyKeys:
        return LedgerKeys(
            ledger=context.ledger(),
            handler=declaration.name,
            worker=context.worker,
            lease_seconds=CLAIM_SECONDS,
            retention_seconds=REMEMBERED_SECONDS,
            owner=WorkOwner(app=app, queue=declaration.queue.name, purpose="tick"),
        )

    return keys


def _role_of(
    app: "App",
    queues: Mapping[str, int] | None,
    *,
    dlqs: Sequence[ReplayedQueue] | None,
    bounded: bool,
    resident: bool,
) -> _Role:
    """Return the work of a worker, from arguments and settings.

    With ``dlqs``, only these are replayed. Raises `ConfigurationError` for a missing queue or an unsuitable ledger.
    """
    settings, clock = app.settings, SystemClock()
    served = chosen(app, queues) if dlqs is None else ()
    services = [service for service, _ in served]
    role = _Role(
        services=services,
        consumed=served if settings.serves_handlers or not resident else (),
        dlqs=(),
        replayed=(),
        ticking=_claims_ticks(app) if resident else frozenset(),
        bounded=bounded,
        resident=resident,
    )
    if resident:
        require_shared_ledger(settings, recorded=[service.name for service in role.recording])
        check_queues([service.queue_name for service in services], settings, clock=clock, waits=True)
    if dlqs is not None:
        role = replace(role, dlqs=dlqs, replayed=dlqs)
    elif resident and settings.dead_letters_replay and settings.jobs & {REPLAY, EXPIRY, MONITOR}:
        # The monitor only has to know if workers replay: then they share a ledger, in which it can be elected.
        found = replayed_dlqs(app, [service.queue_name for service in services])
        role = replace(role, dlqs=found, replayed=found if REPLAY in settings.jobs else ())
    check_dlqs(role.dlqs, settings, clock=clock)
    return role


def _register_worker(
    app: "App",
    role: _Role,
    stack: ExitStack,
    *,
    stop: StopSignal,
    listeners: Sequence[Listener],
    drain_seconds: float,
    spark: "GivenSpark | None",
    metrics_address: Callable[[], str | None],
    liveness: Liveness | None,
) -> tuple[ServiceContext, Spark]:
    """Register the worker in the data directory. Return its context, without ledger and resources, and its Spark."""
    clock = SystemClock()
    presence = Presence(
        settings=app.settings,
        broker=app.broker,
        worker=app.worker,
        stop=stop,
        clock=clock,
        metrics_address=metrics_address,
        liveness=liveness,
    )
    protection = protections(app.settings, long_seconds=drain_seconds, stop=stop, clock=clock) if role.resident else ()
    own: Sequence[Listener] = (*listeners, *protection, *(presence.listeners if role.resident else ()))
    bus = Bus(*guarded(app.listeners, emit=Bus(*own).emit), *own)
    given = app.spark if spark is None else spark
    sessions = app_spark(app.settings, worker=app.worker, clock=clock, bus=bus, stop=stop, given=given)
    # Tests disable the circuit breakers: a test would wait for their pauses, and its messages would not be
    # dead-lettered.
    context = service_context(
        app, sessions=sessions, bus=bus, clock=clock, stop=stop, tracing=app.tracing, breaks=role.resident
    )
    stack.enter_context(app.incidents.passing_to(bus.emit))
    for listener in protection:
        stack.enter_context(listener.beside(bus.emit))
    if role.resident:
        stack.enter_context(presence.register(ledger=context.ledger, emit=bus.emit, random=context.random))
    return context, sessions


def _with_ledger(app: "App", role: _Role, context: ServiceContext) -> ServiceContext:
    """Open the ledger and register the names of the services in it."""
    owners = lru_cache(partial(register, app, role.recording))
    if role.resident and not role.bounded and role.needs_watch:
        for service in role.recording:
            context.outage.gate(service.queue_name)  # so that an outage reports this queue from the start
        context = replace(context, owners=owners)
        _open_ledger(context, owners, waits=role.needs_ledger_to_start)
        return context
    registered = owners()
    return replace(context, owners=lambda: registered)


def _with_lifespans(
    app: "App", role: _Role, context: ServiceContext, event_loop: EventLoop, stack: ExitStack
) -> ServiceContext:
    """Enter the app's lifespans, unless no handler runs here; the stack leaves them."""
    if not role.consumed:
        return context
    lifespans = Lifespans(
        app.lifespans, loop_of=event_loop.ensure_started, bus=context.bus, close_seconds=LIFESPAN_CLOSE_SECONDS
    )
    stack.callback(lifespans.close)
    return replace(context, resources=lifespans.open())


def _open(consumed: Sequence[tuple[Service, int]], context: ServiceContext, stack: ExitStack) -> Sequence[Consumer]:
    consumers: list[Consumer] = []
    for service, weight in consumed:
        opened = service.open(context, weight=weight)
        stack.callback(opened.close)
        consumers.append(opened.consumer)
    return consumers


def _start_jobs(
    app: "App",
    role: _Role,
    context: ServiceContext,
    stack: ExitStack,
    *,
    meters: "Meters | None",
    metrics_address: Callable[[], str | None],
) -> tuple[Sequence[str], Sequence[ElectedJob]]:
    """Start the worker's background jobs, ticks and relays; the stack ends them.

    Return the names of all jobs, and the elected ones. Raises `ConfigurationError` for a worker without any work.
    """
    replay = (REPLAY,) if role.replayed else ()
    if not role.resident or (role.bounded and not role.services):
        return replay, ()
    jobs = worker_jobs(
        app,
        role.services,
        context,
        # An inspection on SQS would hide messages that a bounded replay still has to send.
        dlqs=() if role.bounded else role.dlqs,
        monitor=_monitor(app, role, context, meters=meters, metrics_address=metrics_address),
    )
    names = [*replay, *(job.name for job in jobs)]
    if not (names or role.consumed):
        raise ConfigurationError(
            "The setting worker.jobs is only, and no background job has work in this app; see dead_letters.replay, "
            "objects.reconcile_every, objects.archive_after, tables.compact_every and metrics.address."
        )
    if not role.bounded and is_archive_unused(context.settings):
        context.bus.emit(SettingWithoutEffect(setting="dead_letters.archive", reason=UNUSED_ARCHIVE))
    if role.consumed:
        _tick(app, role.services, context, stack)
        stack.enter_context(relaying(app, emit=context.bus.emit, clock=context.clock, random=context.random))
    stack.enter_context(running(jobs, clock=context.clock, emit=context.bus.emit))
    return names, jobs


def _monitor(
    app: "App",
    role: _Role,
    context: ServiceContext,
    *,
    meters: "Meters | None",
    metrics_address: Callable[[], str | None],
) -> JobOf | None:
    if meters is None or role.bounded or not can_monitor(app, role.services, replays=bool(role.dlqs)):
        return None

    return partial(monitor_job, app, context, meters, metrics_address=metrics_address)


def _watch_outages(role: _Role, context: ServiceContext, stack: ExitStack) -> None:
    if role.needs_watch:
        stack.enter_context(context.outage.watching())
        stack.enter_context(context.stores.watching())


def _open_ledger(context: ServiceContext, owners: Callable[[], object], *, waits: bool) -> None:
    """Open the ledger and register the names in it.

    If the ledger is unavailable, wait for it if ``waits``. Otherwise the queues that need it are paused, and the names
    are registered once it is back. Raises the error that a person has to fix, and `TemporaryError` after a stop.
    """
    if waits:
        await_ledger(
            context.ledger, outage=context.outage, stop=context.stop, clock=context.clock, random=context.random
        )
        owners()
        return
    with suppress(TemporaryError), context.outage.watch_request():
        owners()


def _claims_ticks(app: "App") -> frozenset[str]:
    """Return the handlers that claim their ticks in the ledger, because the broker does not deduplicate."""
    if app.broker.capabilities.deduplicates:
        return frozenset()
    return frozenset(declaration.name for declaration in app.declarations if declaration.schedule is not None)


def _tick(app: "App", services: Sequence[Service], context: ServiceContext, stack: ExitStack) -> None:
    """Send the ticks of scheduled handlers whose queues are served here."""
    served = {service.queue_name for service in services}
    scheduled = [
        declaration
        for declaration in app.declarations
        if declaration.schedule is not None and declaration.queue.name in served
    ]
    if not scheduled:
        return
    keys = tick_keys(app.name, context) if _claims_ticks(app) else None
    ticker = Ticker(
        scheduled, broker=context.broker, clock=context.clock, bus=context.bus, random=context.random, keys=keys
    )
    thread = threading.Thread(target=ticker.run, name="penstock-ticker", daemon=True)
    thread.start()
    stack.callback(ticker.end)

"""Events of workers and the services they need, of supervisors, and of the monitor."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """The worker starts to serve its queues."""

    queues: tuple[str, ...]
    concurrency: int
    broker: str | None = None  # its address without the password, if known
    metrics: str | None = None  # HOST:PORT of the endpoint for metrics and health, if there is one
    weights: Mapping[str, int] = field(default_factory=dict)  # by queue
    app: str | None = None  # its name, if an app runs the worker
    version: str | None = None  # of Penstock, if it is installed
    ledger: str | None = None  # its address without the password, if the worker uses one
    jobs: tuple[str, ...] = ()  # its background jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    """The worker stopped receiving; messages in flight continue."""

    reason: str
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """The worker cannot continue and stops; messages in flight are finished or released."""

    error_type: str
    error: str
    traceback: str  # without local variables


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """The worker stopped, after a failure or not; ``outcome`` is drained, interrupted or forced."""

    outcome: str
    released: tuple[str, ...]  # ids of messages that their handlers did not finish or start
    unsettled: tuple[str, ...] = ()  # ids of released or finished messages whose settlement the broker did not apply


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksDumped(Event):
    """A user requested a dump of every thread's stack."""

    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailed(Event):
    """A handler's batch raised or lost its claim, and has no settlements. Its messages are released with a delay."""

    handler: str
    message_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Event):
    """A background job failed; it is retried after a wait."""

    job: str  # its name; for a job of a handler or pipeline, the name of the handler or pipeline
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingWithoutEffect(Event):
    """A setting has no effect in this worker, for a reason such as another setting that is missing. Emitted once."""

    setting: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFailed(Event):
    """One step of releasing a batch raised; the following steps ran nevertheless."""

    handler: str
    step: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHookFailed(Event):
    """An error hook raised ``count`` times since the last such event; its reports are lost.

    ``hook`` is the user's own, on_error, or a service named in the settings.
    """

    hook: str
    error: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReportsDropped(Event):
    """An error hook was too slow. The ``count`` oldest reports since the last such event are lost."""

    hook: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsExportFailed(Event):
    """Metrics could not be sent to a configured destination. Emitted again after ten minutes if this lasts."""

    exporter: str  # otel, emf or cloudwatch
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesExportFailed(Event):
    """No collector accepted spans, although one is configured. Emitted again after ten minutes if this lasts."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHalted(Event):
    """A handler raised an error that no retry can fix. This worker stops serving its queue, and serves the others."""

    queue: str
    handler: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLeftBehind(Event):
    """A thread did not end in time, so the process will exit without it."""

    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LifespanFailed(Event):
    """A lifespan raised or timed out while closing its resources. The other lifespans were closed nevertheless."""

    lifespan: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A user's listener raised. Emitted once per listener, which is still called for later events."""

    listener: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited(Event):
    """A supervised worker process ended. ``exit_code`` is negative for a signal, as in subprocess."""

    process: int
    exit_code: int
    restart_in_seconds: float | None  # None: it is not restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """A worker process did not end within the stop timeout, so its supervisor killed it."""

    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProtected(Event):
    """ECS neither scales in nor replaces this task while the worker is busy with long work.

    The protection is renewed while that lasts, but this event is emitted once.
    """

    expires_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProtectionFailed(Event):
    """ECS's agent did not grant protection, for the first time in a row; the request is repeated."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerUnavailable(Event):
    """The ledger is unavailable or accepts no claims. The queues that need it are paused until it is available."""

    error: str
    queues: tuple[str, ...] = ()  # paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAvailable(Event):
    """The ledger is available again, and the paused queues are served."""

    outage_seconds: float
    queues: tuple[str, ...] = ()  # that were paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnavailable(Event):
    """The store of a source or a table is unavailable. The queues that need it are paused until it is available."""

    store: str  # its address in the declaration of the source or table
    error: str
    queues: tuple[str, ...] = ()  # paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAvailable(Event):
    """The store is available again, and the paused queues are served."""

    store: str
    outage_seconds: float
    queues: tuple[str, ...] = ()  # that were paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardStarted(Event):
    """The worker serves the dashboard at this address, a URL."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorStarted(Event):
    """The monitor polls these sources, queues and pipelines, and serves metrics at ``address``."""

    address: str
    sources: tuple[str, ...]  # some of broker, ledger and tables
    queues: tuple[str, ...]
    pipelines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPollFailed(Event):
    """The monitor cannot poll a source, so its gauges are absent. Emitted once until it recovers.

    ``source`` is broker, cloudwatch, ledger or tables.
    """

    source: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPollRecovered(Event):
    """The monitor can poll the source again."""

    source: str
    outage_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySetAside(Event):
    """The file of the history was damaged, or that of another program; it was renamed, and a new one was begun."""

    file: str
    aside: str  # its new path
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnwritable(Event):
    """The history cannot be written, so charts have a gap. Emitted once until it can be."""

    file: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecovered(Event):
    """The history can be written again."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveEmpty(Event):
    """A receive waited and returned nothing, on a broker that does not report the age of messages."""

    queue: str

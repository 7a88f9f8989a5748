"""What happens to workers themselves, and to what they stand on.

What the monitor meets, and what is seen of queues whose ages nobody tells.
"""

from dataclasses import dataclass

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """The worker begins to serve."""

    queues: tuple[str, ...]
    concurrency: int
    broker: str | None = None  # its address, for people, where that is known
    metrics: str | None = None  # HOST:PORT where it answers for its metrics and its health, if it does


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    """No more messages are fetched; what is in flight goes on."""

    reason: str
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """The worker cannot go on, and ends; what is in flight goes on or is given back."""

    error_type: str
    error: str
    traceback: str  # without local variables


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """The worker ended, by a failure or without; ``outcome`` is drained, given_back or forced."""

    outcome: str
    given_back: tuple[str, ...]  # message ids
    unsettled: tuple[str, ...] = ()  # of these, and of what had ended: the ids that the broker did not take


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksDumped(Event):
    """Somebody asked what every thread is doing."""

    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailed(Event):
    """A handler's batch ended without settlements: it raised, or lost its claim. Its deliveries go back, delayed."""

    handler: str
    message_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFailed(Event):
    """A handler's upkeep failed; it is tried again after a wait."""

    handler: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBackFailed(Event):
    """One step of giving a batch back raised; the steps after it were taken nevertheless."""

    handler: str
    step: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHookFailed(Event):
    """An error hook raised ``count`` times since this was told last; what it was called with is lost. ``hook`` is the
    user's own, on_error, or one of the services that the settings name."""

    hook: str
    error: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReportsDropped(Event):
    """An error hook was too slow for what failed: the ``count`` oldest reports since this was told last are lost."""

    hook: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsExportFailed(Event):
    """Metrics could not be sent to one of the places that the settings name; told again after ten minutes, if that
    lasts."""

    outlet: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesExportFailed(Event):
    """No collector took spans, of a process whose settings say where they go; told again after ten minutes, if that
    lasts."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHalted(Event):
    """A handler met what no further try can mend. Its queue is served no more by this worker; the others are."""

    queue: str
    handler: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLeftBehind(Event):
    """A thread did not end in time, so the process has to be left without it."""

    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LifespanFailed(Event):
    """A lifespan raised, or took too long, while it put its resources away; the others were left nevertheless."""

    lifespan: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A listener of the user's raised. Told once for each; it goes on being called."""

    listener: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded(Event):
    """A worker process that a supervisor watches has ended. ``exit_code`` is negative for a signal, as subprocess has
    it."""

    process: int
    exit_code: int
    restart_in_seconds: float | None  # None: it is not started again


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """A worker process did not end within the stop timeout, so its supervisor killed it."""

    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProtected(Event):
    """ECS will not scale this task in, nor replace it, while the worker works on something long; it is asked again for
    as long as that goes on, and told once."""

    expires_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProtectionFailed(Event):
    """ECS's agent could not be asked for protection, the first time in a row; it is asked again."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAway(Event):
    """The ledger does not answer, or takes no claims. The queues that need it are paused until it answers."""

    error: str
    queues: tuple[str, ...] = ()  # that are paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBack(Event):
    """The ledger answers again, and the queues that were paused are served."""

    away_seconds: float
    queues: tuple[str, ...] = ()  # that were paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway(Event):
    """The store of a source's objects, or of a table, cannot be used. The queues that need it are paused until it
    answers."""

    store: str  # its address, as the source or table names it
    error: str
    queues: tuple[str, ...] = ()  # that are paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    """The store answers again, and the queues that were paused are served."""

    store: str
    away_seconds: float
    queues: tuple[str, ...] = ()  # that were paused in this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorStarted(Event):
    """The monitor looks at these, and answers at ``address``."""

    address: str
    sources: tuple[str, ...]  # of broker, ledger and tables, those that it asks
    queues: tuple[str, ...]
    pipelines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookFailed(Event):
    """The monitor cannot see something: its gauges are gone until it can. Told once while it lasts.

    ``source`` is broker, cloudwatch, ledger or tables.
    """

    source: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRecovered(Event):
    """The monitor sees it again."""

    source: str
    away_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeenEmpty(Event):
    """A receive that waited for a message of the queue brought none, on a broker that tells no ages."""

    queue: str

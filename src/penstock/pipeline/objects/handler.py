"""The interface of an object handler to the worker: each message's objects are processed one after another."""

import random as system_random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulid import ULID

from penstock.errors import InvalidMessage
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.backoff import RETRY_BASE_SECONDS, RETRY_CAP_SECONDS, Random
from penstock.messaging.call import NO_RESOURCES, CallTime, ExecutionControl
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, ServiceWatch, Unwatched
from penstock.objects.store import ObjectStore
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import BatchExecution
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.notifications import NotificationDelivery, Parse
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration
from penstock.pipeline.objects.engine import ObjectEngine, ObjectEngineRuntime
from penstock.pipeline.reporting import BatchEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHandlerRuntime:
    """The collaborators and settings that an object handler gets from the app."""

    ledger: Ledger
    store: ObjectStore
    parse: Parse  # e.g. `partial(penstock.objects.notification.parse, buckets_allowed=...)`
    worker: str  # this process's name in the ledger
    lease_seconds: float  # of claims; the worker's heartbeat must be more frequent
    bus: Bus
    backoff_base_seconds: float = RETRY_BASE_SECONDS
    backoff_cap_seconds: float = RETRY_CAP_SECONDS
    busy_seconds_max: float | None = None  # longest delay before a busy object is retried; None: until its lease ends
    faults_max: int | None = None  # infrastructure faults in a row before the worker stops; None: no limit
    scratch: Path | None = None  # for content too large for memory; None: the system's temporary folder
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)  # from the app's lifespans
    clock: Clock = field(default_factory=SystemClock)
    random: Random = system_random.random
    new_attempt_id: Callable[[], str] = lambda: str(ULID())
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)
    store_watch: ServiceWatch = field(default_factory=Unwatched)  # for the object store


class ObjectHandler:
    """An object handler as a `penstock.messaging.handler.BatchHandler`, owned by a consumer of the worker.

    Each execution handles one delivery in one slot of the worker.
    """

    def __init__(self, declaration: ObjectHandlerDeclaration, runtime: ObjectHandlerRuntime) -> None:
        self._declaration = declaration
        self._runtime = runtime
        self._events = BatchEvents(declaration.name, runtime.bus)
        self._engine_runtime = ObjectEngineRuntime(
            declaration=declaration,
            ledger=runtime.ledger,
            store=runtime.store,
            scratch=runtime.scratch,
            events=self._events,
            resources=runtime.resources,
            store_watch=runtime.store_watch,
        )
        self._settings = AttemptSettings(
            pipeline=declaration.name,
            worker=runtime.worker,
            lease_seconds=runtime.lease_seconds,
            objects_max=1,  # each object has its own claim, run and commit
            attempts_max=declaration.attempts_max,
            backoff_base_seconds=runtime.backoff_base_seconds,
            backoff_cap_seconds=runtime.backoff_cap_seconds,
            timeout_seconds=declaration.timeout_seconds,
            busy_seconds_max=runtime.busy_seconds_max,
            emits_batches=False,
            has_table=False,
        )
        self._streak = FailureStreak(faults_max=runtime.faults_max)
        self._known = False  # to the ledger; several threads may set it, all to True

    @property
    def name(self) -> str:
        return self._declaration.name

    @property
    def place(self) -> ExecutionPlace:
        return ExecutionPlace.POOL

    @property
    def timeout_seconds(self) -> float | None:
        return self._declaration.timeout_seconds

    def weigh(self, delivery: Delivery) -> int:
        """Return the total bytes of the objects that the notification names, or 0 if it cannot be parsed."""
        try:
            return sum(ref.size_bytes for ref in self._runtime.parse(delivery.message.body).objects)
        except InvalidMessage:
            return 0

    def begin(self, deliveries: Sequence[Delivery]) -> BatchExecution:
        control = ExecutionControl(ends_at_stop=self._declaration.on_stop == "release")
        time = CallTime(self._runtime.clock)
        runtime = PipelineRuntime(
            ledger=self._runtime.ledger,
            engine=ObjectEngine(self._engine_runtime, control, time),
            parse=self._runtime.parse,
            publish=_nothing_to_publish,
            streak=self._streak,
            bus=self._runtime.bus,
            clock=self._runtime.clock,
            random=self._runtime.random,
            new_attempt_id=self._runtime.new_attempt_id,
            ledger_watch=self._runtime.ledger_watch,
            store_watch=self._runtime.store_watch,
        )
        return _Execution(deliveries, self._settings, runtime, control, time, self._ensure_known)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"claims": self.free_expired}

    def free_expired(self) -> None:
        """Release the objects of attempts with an expired lease."""
        self._ensure_known()
        for attempt_id in self._runtime.ledger.abandon_expired(self._declaration.name):
            self._events.emit_abandoned(attempt_id, "its lease ran out")

    def _ensure_known(self) -> None:
        if not self._known:
            self._runtime.ledger.ensure_pipeline(self._declaration.name)
            self._known = True


class _Execution(BatchExecution):
    """A batch of objects that passes a stop of the worker on to the user's function."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        settings: AttemptSettings,
        runtime: PipelineRuntime,
        control: ExecutionControl,
        time: CallTime,
        prepare: Callable[[], None],
    ) -> None:
        super().__init__(deliveries, settings, runtime)
        self._control = control
        self._time = time
        self._prepare = prepare

    def _suspects(self) -> Sequence[NotificationDelivery]:
        self._prepare()
        return super()._suspects()

    def left_seconds(self, timeout_seconds: float) -> float:
        return self._time.left_seconds(timeout_seconds)

    def drain(self) -> None:
        self._control.stop()

    def interrupt(self) -> None:
        self._control.end()
        super().interrupt()


def _nothing_to_publish() -> None:
    """Do nothing: the effects of a function are visible at once."""

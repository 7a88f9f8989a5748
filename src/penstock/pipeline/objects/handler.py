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
from penstock.messaging.backoff import Random
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
from penstock.pipeline.objects.engine import EngineTools, ObjectEngine
from penstock.pipeline.reporting import BatchEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHandlerTools:
    """The collaborators and settings that an object handler gets from the app."""

    ledger: Ledger
    store: ObjectStore
    parse: Parse  # e.g. `partial(penstock.objects.notification.parse, buckets_allowed=...)`
    worker: str  # this process's name in the ledger
    lease_seconds: float  # of claims; the worker's heartbeat must be more frequent
    bus: Bus
    backoff_base_seconds: float = 1.0
    backoff_cap_seconds: float = 300.0
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
    """A `penstock.messaging.handler.BatchHandler`. Each execution handles one delivery in one worker slot."""

    def __init__(self, declaration: ObjectHandlerDeclaration, tools: ObjectHandlerTools) -> None:
        self._declaration = declaration
        self._tools = tools
        self._telling = BatchEvents(declaration.name, tools.bus)
        self._engine_tools = EngineTools(
            declaration=declaration,
            ledger=tools.ledger,
            store=tools.store,
            scratch=tools.scratch,
            telling=self._telling,
            resources=tools.resources,
            store_watch=tools.store_watch,
        )
        self._settings = AttemptSettings(
            pipeline=declaration.name,
            worker=tools.worker,
            lease_seconds=tools.lease_seconds,
            objects_max=1,  # each object has its own claim, run and commit
            attempts_max=declaration.attempts_max,
            backoff_base_seconds=tools.backoff_base_seconds,
            backoff_cap_seconds=tools.backoff_cap_seconds,
            timeout_seconds=declaration.timeout_seconds,
            busy_seconds_max=tools.busy_seconds_max,
            tells_batches=False,
        )
        self._streak = FailureStreak(faults_max=tools.faults_max)
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
            return sum(ref.size_bytes for ref in self._tools.parse(delivery.message.body).objects)
        except InvalidMessage:
            return 0

    def begin(self, deliveries: Sequence[Delivery]) -> BatchExecution:
        control = ExecutionControl(gives_back=self._declaration.on_stop == "give_back")
        time = CallTime(self._tools.clock)
        around = PipelineRuntime(
            ledger=self._tools.ledger,
            engine=ObjectEngine(self._engine_tools, control, time),
            parse=self._tools.parse,
            publish=_nothing_to_publish,
            streak=self._streak,
            bus=self._tools.bus,
            clock=self._tools.clock,
            random=self._tools.random,
            new_attempt_id=self._tools.new_attempt_id,
            ledger_watch=self._tools.ledger_watch,
            store_watch=self._tools.store_watch,
        )
        return _Execution(deliveries, self._settings, around, control, time, self._ensure_known)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"claims": self.free_expired}

    def free_expired(self) -> None:
        """Release the objects of attempts whose lease has expired."""
        self._ensure_known()
        for attempt_id in self._tools.ledger.abandon_expired(self._declaration.name):
            self._telling.abandoned(attempt_id, "its lease ran out")

    def _ensure_known(self) -> None:
        if not self._known:
            self._tools.ledger.ensure_pipeline(self._declaration.name)
            self._known = True


class _Execution(BatchExecution):
    """A batch of objects that passes a stop of the worker on to the user's function."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        settings: AttemptSettings,
        around: PipelineRuntime,
        control: ExecutionControl,
        time: CallTime,
        prepare: Callable[[], None],
    ) -> None:
        super().__init__(deliveries, settings, around)
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

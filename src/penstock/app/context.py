"""What pipelines, and what they run on, need of the app that they are declared in.

From a broker, which is opened before there is a worker, to whoever hears of events once there is one.

What every part of a pipeline's work is handed. Imports nothing of Spark: object handlers are reconciled without.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.config import Settings
from penstock.events import Bus, Event, Listener
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.monitoring.errors.hook import ErrorHook
from penstock.worker.shutdown import StopSignal


class EventForwarder:
    """A listener that passes on to another. What comes while nobody hears is for nobody."""

    def __init__(self) -> None:
        self._listener: Listener | None = None  # written by the thread that serves

    def __call__(self, event: Event) -> None:
        listener = self._listener
        if listener is not None:
            listener(event)

    @contextmanager
    def passing_to(self, listener: Listener) -> Iterator[None]:
        """Until the block ends; then to whoever heard before."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before


class HasQueue(Protocol):
    """A service, as far as it matters here."""

    @property
    def queue_name(self) -> str:
        """What it is fed from."""
        ...


class AppContext(Protocol):
    """The app."""

    @property
    def settings(self) -> Settings:
        """Its settings."""
        ...

    @property
    def broker(self) -> Broker:
        """Its broker, opened."""
        ...

    @property
    def incidents(self) -> EventForwarder:
        """What its broker tells of."""
        ...

    @property
    def ledger(self) -> Any:
        """Its `penstock.ledger.Ledger`, opened."""
        ...

    @property
    def name(self) -> str:
        """What the ledger calls it."""
        ...

    @property
    def is_named(self) -> bool:
        """Return True if somebody gave it that name."""
        ...

    @property
    def worker(self) -> str:
        """Who this process is."""
        ...

    @property
    def listeners(self) -> Sequence[Listener]:
        """Who hears its events."""
        ...

    @property
    def on_error(self) -> ErrorHook | None:
        """The user's hook for failures."""
        ...

    @property
    def services(self) -> Sequence[HasQueue]:
        """What is declared in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTools:
    """What every part of a pipeline's work is handed."""

    stop: StopSignal
    clock: Clock
    bus: Bus
    probe: Probe
    tracing: Tracing = NO_TRACING

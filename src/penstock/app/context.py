"""The context that pipelines and their tools get from the app that declares them.

`AppContext` is the part of `App` that they use. `EventForwarder` connects the broker, which is opened before there is a
worker, to the worker's listeners. `PipelineTools` carries the common arguments of all pipeline work. Does not import
Spark: object handlers are reconciled without it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.config import Settings
from penstock.events import Bus, Event, Listener
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.monitoring.errors.hook import ErrorHook
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.pipeline.spark.runtime import GivenSpark


class EventForwarder:
    """A listener that forwards to another one. Events are dropped while none is set."""

    def __init__(self) -> None:
        self._listener: Listener | None = None  # written by the thread that serves

    def __call__(self, event: Event) -> None:
        listener = self._listener
        if listener is not None:
            listener(event)

    @contextmanager
    def passing_to(self, listener: Listener) -> Iterator[None]:
        """Forward to ``listener`` inside the block, then to the previous one again."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before


class HasQueue(Protocol):
    """A service, as far as this module uses it."""

    @property
    def queue_name(self) -> str:
        """The queue that the service consumes."""
        ...


class AppContext(Protocol):
    """The part of an `App` that services and pipelines use."""

    @property
    def settings(self) -> Settings:
        """The app's settings."""
        ...

    @property
    def broker(self) -> Broker:
        """The app's broker, opened on first use."""
        ...

    @property
    def incidents(self) -> EventForwarder:
        """The forwarder of the broker's events."""
        ...

    @property
    def ledger(self) -> Any:
        """The app's `penstock.ledger.Ledger`, opened on first use."""
        ...

    @property
    def spark(self) -> "GivenSpark | None":
        """The Spark session that the app was given, or the function that returns it."""
        ...

    @property
    def name(self) -> str:
        """The app's name in the ledger."""
        ...

    @property
    def is_named(self) -> bool:
        """True if the name was set explicitly."""
        ...

    @property
    def worker(self) -> str:
        """The worker id of this process."""
        ...

    @property
    def listeners(self) -> Sequence[Listener]:
        """The user's listeners."""
        ...

    @property
    def on_error(self) -> ErrorHook | None:
        """The user's hook for failures."""
        ...

    @property
    def services(self) -> Sequence[HasQueue]:
        """The declared services."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTools:
    """Arguments that every part of a pipeline's work receives."""

    stop: StopSignal
    clock: Clock
    bus: Bus
    probe: Probe
    tracing: Tracing = NO_TRACING

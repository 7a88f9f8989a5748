"""The live view: repeated status, throughput of queues, and errors of unavailable servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.app.flows import FlowTracker, QueueFlow
from penstock.app.queues import QueueStatus
from penstock.app.scope import Scope
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.status.model import Status
from penstock.operations.status.status import StatusReader


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """One reading. Without a status, ``error`` names the cause."""

    at: float  # epoch seconds
    status: Status | None
    flows: Mapping[str, QueueFlow] = field(default_factory=dict)  # by queue
    error: str | None = None

    def queue(self, name: str) -> QueueStatus | None:
        """Return the status of a queue; None if the reading has none of that name."""
        return None if self.status is None else next((one for one in self.status.queues if one.queue == name), None)

    @property
    def summary(self) -> str:
        """Return the summary in one line."""
        return self.status.summary if self.status is not None else f"unavailable: {self.error}"


class StatusWatch:
    """Repeated readings of a scope. For one thread."""

    def __init__(self, scope: Scope, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._reader = StatusReader(scope, clock=self._clock)
        self._flows = FlowTracker()

    def read(self) -> StatusFrame:
        """Read the status. It contains the error of an unavailable server; raises errors that waiting does not fix."""
        try:
            status = self._reader.read()
        except TemporaryError as error:
            return StatusFrame(at=self._clock.now(), status=None, error=str(error))
        flows = self._flows.since(status, at=self._clock.monotonic())
        return StatusFrame(at=self._clock.now(), status=status, flows=flows)

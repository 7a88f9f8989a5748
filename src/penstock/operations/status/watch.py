"""The live view: repeated status, throughput of queues, and errors of unavailable servers.

The throughput of a queue is computed from two readings. Workers report settled messages in their records; arrivals
follow from that and from the change in the number of messages. If some workers are invisible, only the change is known.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.app.scope import Scope
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.status.model import Status
from penstock.operations.status.status import StatusReader

WINDOW_SECONDS = 10.0  # rates cover at least this long: records are written every two seconds
SAMPLES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFlow:
    """The throughput of one queue in messages per second; None if unknown."""

    in_per_second: float | None
    out_per_second: float | None
    net_per_second: float | None  # arrivals minus settled messages
    drained_in_seconds: float | None  # None: never at the current rate


UNKNOWN = QueueFlow(in_per_second=None, out_per_second=None, net_per_second=None, drained_in_seconds=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedStatus:
    at: float  # monotonic
    status: Status


class FlowTracker:
    """Remember recent readings."""

    def __init__(self) -> None:
        self._samples: deque[_TimedStatus] = deque(maxlen=SAMPLES_MAX)

    def since(self, status: Status, *, at: float) -> Mapping[str, QueueFlow]:
        """Return the flow of each queue up to this reading (monotonic time); unknown for the first."""
        while len(self._samples) > 1 and at - self._samples[1].at >= WINDOW_SECONDS:
            self._samples.popleft()
        before = self._samples[0] if self._samples else None
        self._samples.append(_TimedStatus(at=at, status=status))
        if before is None or at <= before.at:
            return {queue.queue: UNKNOWN for queue in status.queues}
        known = {queue.queue: queue for queue in before.status.queues}
        return {
            queue.queue: _flow(
                queue,
                known.get(queue.queue),
                seconds=at - before.at,
                out=_out(before.status, status, queue.queue) if status.workers_seen else None,
            )
            for queue in status.queues
        }


def _flow(now: QueueStatus, before: QueueStatus | None, *, seconds: float, out: float | None) -> QueueFlow:
    if before is None:
        return UNKNOWN
    net = (now.messages - before.messages) / seconds
    return QueueFlow(
        in_per_second=None if out is None else max(net + out, 0.0),
        out_per_second=out,
        net_per_second=net,
        drained_in_seconds=0.0 if now.messages == 0 else now.messages / -net if net < 0 else None,
    )


def _out(before: Status, now: Status, queue: str) -> float:
    """Return the settled messages per second in all workers' records.

    Each counts from its start, with its own timestamp.
    """
    known = {record.worker: record for record in before.records}
    return sum(_out_of(known.get(record.worker), record, queue) for record in now.records)


def _out_of(before: WorkerRecord | None, now: WorkerRecord, queue: str) -> float:
    since = now.started_at if before is None else before.beat_at
    settled = now.settled.get(queue, 0) - (0 if before is None else before.settled.get(queue, 0))
    return settled / (now.beat_at - since) if now.beat_at > since and settled > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """One reading. Without a status, ``error`` names the cause."""

    at: float  # epoch seconds
    status: Status | None
    flows: Mapping[str, QueueFlow] = field(default_factory=dict)  # by queue
    error: str | None = None

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

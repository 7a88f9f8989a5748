"""The throughput of queues, from repeated readings.

It is computed from two readings. Workers report settled messages in their records; arrivals follow from that and from
the change in the number of messages. If some workers are invisible, only the change is known.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.app.registry import WorkerRecord
from penstock.app.system_health import QueueHealth

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


class FlowReading(Protocol):
    """A reading of queues and workers, such as a `Status`."""

    @property
    def queues(self) -> Sequence[QueueHealth]: ...

    @property
    def records(self) -> Sequence[WorkerRecord]: ...

    @property
    def workers_seen(self) -> bool:
        """Return True if every worker that may receive is among the records."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedReading:
    at: float  # monotonic
    reading: FlowReading


class FlowTracker:
    """Remember recent readings. For one thread."""

    def __init__(self) -> None:
        self._samples: deque[_TimedReading] = deque(maxlen=SAMPLES_MAX)

    def since(self, reading: FlowReading, *, at: float) -> Mapping[str, QueueFlow]:
        """Return the flow of each queue up to this reading (monotonic time); unknown for the first."""
        while len(self._samples) > 1 and at - self._samples[1].at >= WINDOW_SECONDS:
            self._samples.popleft()
        before = self._samples[0] if self._samples else None
        self._samples.append(_TimedReading(at=at, reading=reading))
        if before is None or at <= before.at:
            return {queue.queue: UNKNOWN for queue in reading.queues}
        known = {queue.queue: queue for queue in before.reading.queues}
        return {
            queue.queue: _flow(
                queue,
                known.get(queue.queue),
                seconds=at - before.at,
                out=_out(before.reading, reading, queue.queue) if reading.workers_seen else None,
            )
            for queue in reading.queues
        }


def _flow(now: QueueHealth, before: QueueHealth | None, *, seconds: float, out: float | None) -> QueueFlow:
    if before is None:
        return UNKNOWN
    net = (now.messages - before.messages) / seconds
    return QueueFlow(
        in_per_second=None if out is None else max(net + out, 0.0),
        out_per_second=out,
        net_per_second=net,
        drained_in_seconds=0.0 if now.messages == 0 else now.messages / -net if net < 0 else None,
    )


def _out(before: FlowReading, now: FlowReading, queue: str) -> float:
    """Return the settled messages per second in all workers' records.

    Each counts from its start, with its own timestamp.
    """
    known = {record.worker: record for record in before.records}
    return sum(_out_of(known.get(record.worker), record, queue) for record in now.records)


def _out_of(before: WorkerRecord | None, now: WorkerRecord, queue: str) -> float:
    since = now.started_at if before is None else before.beat_at
    settled = now.settled.get(queue, 0) - (0 if before is None else before.settled.get(queue, 0))
    return settled / (now.beat_at - since) if now.beat_at > since and settled > 0 else 0.0

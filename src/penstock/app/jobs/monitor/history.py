"""Record the monitor's samples in the history of the data directory, for the dashboard's charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.app.brokers import has_workers_elsewhere
from penstock.app.flows import UNKNOWN, FlowTracker, QueueFlow
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, PipelinePoint, QueuePoint
from penstock.app.jobs.monitor.sample import MonitorSample, visible_age_seconds
from penstock.app.registry import WorkerRecord, Workers
from penstock.app.system_health import PipelineHealth, QueueHealth
from penstock.config import Settings
from penstock.events import Listener
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _MonitorReading:
    queues: Sequence[QueueHealth]
    records: Sequence[WorkerRecord]
    workers_seen: bool


class MonitorHistory:
    """The history that one monitor writes. For one thread."""

    def __init__(self, settings: Settings, *, clock: Clock, emit: Listener) -> None:
        self._workers = Workers(Path(settings.data_dir))
        self._sees_all_hosts = not has_workers_elsewhere(settings)
        self._clock = clock
        self._flows = FlowTracker()
        self._writer = HistoryWriter(settings.data_dir, emit=emit)

    def write(self, sample: MonitorSample) -> None:
        """Record a sample. Does not raise."""
        flows = self._flows.since(self._reading(sample), at=self._clock.monotonic())
        self._writer.write(history_sample(sample, flows))

    def _reading(self, sample: MonitorSample) -> _MonitorReading:
        try:
            records, silent = self._workers.records(), self._workers.silent()
        except OSError:  # rates are unknown without the records, and all else is recorded
            return _MonitorReading(queues=sample.queues, records=(), workers_seen=False)
        return _MonitorReading(queues=sample.queues, records=records, workers_seen=self._sees_all_hosts and not silent)


def history_sample(sample: MonitorSample, flows: Mapping[str, QueueFlow]) -> HistorySample:
    """Return what the history keeps of a sample."""
    dead_letters: dict[str, int] = {}
    for one in sample.dead_letters:
        dead_letters[one.queue] = dead_letters.get(one.queue, 0) + one.dead_letters
    return HistorySample(
        at=sample.at,
        queues={
            one.queue: QueuePoint(
                visible=one.visible,
                in_flight=one.in_flight,
                delayed=one.delayed,
                oldest_visible_age_seconds=visible_age_seconds(one),
                dead_letters=dead_letters.get(one.queue),
                settled_per_second=flows.get(one.queue, UNKNOWN).out_per_second,
                arrived_per_second=flows.get(one.queue, UNKNOWN).in_per_second,
            )
            for one in sample.queues
        },
        pipelines={one.pipeline: _pipeline(one, sample) for one in sample.pipelines},
    )


def _pipeline(one: PipelineHealth, sample: MonitorSample) -> PipelinePoint:
    return PipelinePoint(
        processed=one.objects.get(ObjectState.PROCESSED),
        waiting=one.objects_left,
        failed=one.objects.get(ObjectState.DEAD),
        batches=one.batches_committed,
        unpublished=sample.batches_unpublished.get(one.pipeline),
        publish_lag_seconds=sample.publish_lags_seconds.get(one.pipeline),
    )

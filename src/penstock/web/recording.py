"""Record what the sampler reads in the history of the data directory, for charts without a monitor."""

from penstock.app.flows import UNKNOWN, QueueFlow
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, PipelinePoint, QueuePoint
from penstock.app.queues import QueueStatus
from penstock.events import Listener
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import PipelineStatus
from penstock.operations.status.watch import StatusFrame


class FrameRecorder:
    """Write readings to the history; called by the sampler's thread."""

    def __init__(self, data_dir: str, *, emit: Listener) -> None:
        self._writer = HistoryWriter(data_dir, emit=emit)

    def __call__(self, frame: StatusFrame) -> None:
        if frame.status is not None and self._writer.is_due(frame.at):
            self._writer.write(history_sample(frame))


def history_sample(frame: StatusFrame) -> HistorySample:
    """Return what the history keeps of a reading; nothing without a status."""
    status = frame.status
    if status is None:
        return HistorySample(at=frame.at)
    return HistorySample(
        at=frame.at,
        queues={one.queue: _queue(one, frame.flows.get(one.queue, UNKNOWN)) for one in status.queues},
        pipelines={one.pipeline: _pipeline(one) for one in status.pipelines},
    )


def _queue(one: QueueStatus, flow: QueueFlow) -> QueuePoint:
    return QueuePoint(
        visible=one.visible,
        in_flight=one.in_flight,
        delayed=one.delayed,
        oldest_visible_age_seconds=0.0 if one.visible == 0 else one.oldest_visible_message_age_seconds,
        dead_letters=one.dead_letters,
        settled_per_second=flow.out_per_second,
        arrived_per_second=flow.in_per_second,
    )


def _pipeline(one: PipelineStatus) -> PipelinePoint:
    return PipelinePoint(
        processed=one.objects.get(ObjectState.PROCESSED),
        waiting=one.objects_left,
        failed=one.objects.get(ObjectState.DEAD),
        batches=one.batches_committed,
        unpublished=one.batches_unpublished,
    )

"""An hour of history for the seeded shop, so that its charts and sparklines have lines."""

import math
from dataclasses import replace
from time import time

from penstock.app.app import App
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, PipelinePoint, QueuePoint
from penstock.app.scope import scope_of
from penstock.operations.status.status import read_status
from penstock.operations.status.watch import StatusFrame
from penstock.web.recording import history_sample

HOUR_SECONDS, STEP_SECONDS = 3_600, 30
GAP = range(1_500, 1_800)  # seconds ago without a sample: a gap in the charts


def seed_history(app: App) -> None:
    """Write the last hour, which ends with the present status of the app."""
    now = time()
    latest = history_sample(StatusFrame(at=now, status=read_status(scope_of(app))))
    writer = HistoryWriter(app.settings.data_dir, emit=lambda _: None)
    for ago_seconds in range(HOUR_SECONDS - STEP_SECONDS, 0, -STEP_SECONDS):
        if ago_seconds not in GAP:
            writer.write(_earlier(latest, at=now - ago_seconds, progress=1 - ago_seconds / HOUR_SECONDS))


def _earlier(latest: HistorySample, *, at: float, progress: float) -> HistorySample:
    return HistorySample(
        at=at,
        queues={name: _queue(point, progress, phase=len(name)) for name, point in latest.queues.items()},
        pipelines={name: _pipeline(point, progress) for name, point in latest.pipelines.items()},
    )


def _queue(point: QueuePoint, progress: float, *, phase: int) -> QueuePoint:
    wave = 1 + 0.25 * math.sin(12 * progress + phase)
    share = min(1.0, (0.2 + 0.8 * progress) * wave)
    age = point.oldest_visible_age_seconds
    return replace(
        point,
        visible=round((point.visible or 0) * share),
        oldest_visible_age_seconds=None if age is None else age * progress,
        dead_letters=round((point.dead_letters or 0) * min(1.0, 0.6 + progress / 2)),
        settled_per_second=12 * wave if point.visible else 0.0,
        arrived_per_second=14 * wave if point.visible else 0.0,
    )


def _pipeline(point: PipelinePoint, progress: float) -> PipelinePoint:
    return replace(
        point,
        processed=round((point.processed or 0) * (0.3 + 0.7 * progress)),
        waiting=round(30 * (1 - progress)) + (point.waiting or 0),
        batches=round((point.batches or 0) * (0.3 + 0.7 * progress)),
    )

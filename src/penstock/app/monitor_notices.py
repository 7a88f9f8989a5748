"""What the monitor tells people by itself: objects that wait for longer than they should.

Objects that are missing from the ledger are told by the reconcile that found them.
"""

from collections.abc import Iterable

from penstock.app.monitor_look import PipelineLook
from penstock.events import Listener, ObjectsOverdue
from penstock.messaging.clock import Clock

TOLD_EVERY_SECONDS = 3_600.0  # while it lasts


class Notices:
    """When it begins, and once an hour while it lasts. For one thread."""

    def __init__(self, *, after_seconds: float, clock: Clock, tell: Listener) -> None:
        self._after_seconds = after_seconds
        self._clock = clock
        self._tell = tell
        self._told_at: dict[str, float] = {}  # by pipeline, monotonic

    def hear(self, pipelines: Iterable[PipelineLook]) -> None:
        """Of a look that could be taken."""
        now = self._clock.monotonic()
        for one in pipelines:
            if not one.overdue:
                self._told_at.pop(one.pipeline, None)
                continue
            told_at = self._told_at.get(one.pipeline)
            if told_at is None or now - told_at >= TOLD_EVERY_SECONDS:
                self._told_at[one.pipeline] = now
                self._tell(
                    ObjectsOverdue(
                        pipeline=one.pipeline,
                        overdue=one.overdue,
                        oldest_age_seconds=one.oldest_unprocessed_age_seconds,
                        after_seconds=self._after_seconds,
                    )
                )

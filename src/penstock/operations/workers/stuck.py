"""Find the signs that a worker is stuck, in its record."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.app.registry import WorkerRecord

HEARTBEAT_SECONDS_MAX = 15.0  # records are written every 2 seconds; a busy disk may delay one
LAG_SECONDS_MAX = 5.0
HELD_SECONDS_MAX = 600.0  # without a timeout of the handler
TIMEOUT_GRACE_SECONDS = 30.0  # from a timeout until the message is released


class StuckSign(StrEnum):
    """A sign that a worker is stuck, the strongest first."""

    HANGING = "hanging"  # a thread hangs or has ended
    SILENT = "silent"  # no heartbeat
    BLOCKED = "blocked"  # its timers run late
    HOLDING = "holding"  # it holds a message for too long


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWorker:
    """One sign that a worker is stuck, with its extent."""

    sign: StuckSign
    seconds: float = 0.0
    limit_seconds: float = 0.0
    detail: str = ""  # of a hanging thread
    queue: str = ""  # of the message that is held for too long
    message_id: str = ""
    others: int = 0  # further messages of that queue that are held for too long


def stuck_signs(record: WorkerRecord, *, now: float, timeouts: Mapping[str, float]) -> Sequence[StuckWorker]:
    """Return the signs that a worker is stuck, the strongest first; empty if it seems well.

    Args:
        record: The worker's record.
        now: Epoch seconds of the same host's clock.
        timeouts: Timeouts of handlers in seconds, by queue.
    """
    return [*_of_process(record, now=now), *_of_messages(record, now=now, timeouts=timeouts)]


def is_silent(record: WorkerRecord, *, now: float) -> bool:
    """Return True if the worker has written no heartbeat for too long."""
    return now - record.beat_at > HEARTBEAT_SECONDS_MAX


def _of_process(record: WorkerRecord, *, now: float) -> Iterator[StuckWorker]:
    for trouble in record.troubles:
        yield StuckWorker(sign=StuckSign.HANGING, detail=trouble)
    if is_silent(record, now=now):
        yield StuckWorker(sign=StuckSign.SILENT, seconds=now - record.beat_at, limit_seconds=HEARTBEAT_SECONDS_MAX)
    if record.lag_seconds is not None and record.lag_seconds > LAG_SECONDS_MAX:
        yield StuckWorker(sign=StuckSign.BLOCKED, seconds=record.lag_seconds, limit_seconds=LAG_SECONDS_MAX)


def _of_messages(record: WorkerRecord, *, now: float, timeouts: Mapping[str, float]) -> Iterator[StuckWorker]:
    """Yield one sign for each queue with a message that is held for too long: its oldest."""
    for queue in dict.fromkeys(held.queue for held in record.held):
        limit_seconds = timeouts[queue] + TIMEOUT_GRACE_SECONDS if queue in timeouts else HELD_SECONDS_MAX
        overdue = [held for held in record.held if held.queue == queue and now - held.since > limit_seconds]
        if overdue:
            oldest = min(overdue, key=lambda held: held.since)
            yield StuckWorker(
                sign=StuckSign.HOLDING,
                seconds=now - oldest.since,
                limit_seconds=limit_seconds,
                queue=queue,
                message_id=oldest.message_id,
                others=len(overdue) - 1,
            )

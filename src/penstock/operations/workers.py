"""Select and signal the workers of a data directory, and find those that seem stuck.

Only processes whose lock proves that they are alive are signalled, and only on this host. `stuck_signs` is a pure
function of a worker's record.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum

from penstock.app.registry import WorkerRecord, Workers, is_local
from penstock.app.scope import scope_ledger
from penstock.errors import TemporaryError, UsageError
from penstock.operations.inspection import ScopeView

DRAIN = "drain"  # the action in the audit log
HEARTBEAT_SECONDS_MAX = 15.0  # records are written every 2 seconds; a busy disk may delay one
LAG_SECONDS_MAX = 5.0
HELD_SECONDS_MAX = 600.0  # without a timeout of the handler
TIMEOUT_GRACE_SECONDS = 30.0  # from a timeout until the message is released


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalResult:
    """The workers that were signalled, and those of other hosts or containers, which cannot be."""

    asked: Sequence[str]
    elsewhere: Sequence[str]


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


def selected_workers(records: Sequence[WorkerRecord], worker: str | None, *, all_: bool) -> Sequence[WorkerRecord]:
    """Return the workers meant by an id or process id, or by ``all_``. If only one runs, it needs neither.

    Raises `UsageError` if no worker is meant, or if it is not clear which one.
    """
    if all_ and worker is not None:
        raise UsageError("Give --worker or --all, not both.")
    if worker is not None:
        records = [record for record in records if worker in (record.worker, str(record.pid))]
        if not records:
            raise UsageError(
                f"No worker {worker} with this data directory runs on this host; `penstock admin workers list` shows "
                "those that do."
            )
    elif len(records) > 1 and not all_:
        names = ", ".join(record.worker for record in records)
        raise UsageError(f"There are {len(records)} workers: {names}; name one with --worker, or give --all.")
    return records


def signal_workers(workers: Workers, records: Sequence[WorkerRecord], number: signal.Signals) -> SignalResult:
    """Send a signal to those of these workers that live on this host."""
    asked: list[str] = []
    elsewhere: list[str] = []
    for record in records:
        if not is_local(record):
            elsewhere.append(record.worker)
        elif workers.signal(record, number):
            asked.append(record.worker)
    return SignalResult(asked=asked, elsewhere=elsewhere)


def drain_worker(seen: ScopeView, worker: str, *, who: str) -> None:
    """Make a worker of this host stop fetching, and record it in the audit log. It finishes its messages and stays up.

    Raises `UsageError` if no such worker runs here, and `TemporaryError` if the ledger is unavailable; then no signal
    was sent.
    """
    record = next((record for record in seen.workers.records() if record.worker == worker), None)
    if record is None:
        raise UsageError(f"No worker {worker} with this data directory runs on this host. It may have ended meanwhile.")
    if not is_local(record):
        raise UsageError(f"The worker {worker} runs on another host or in another container. Drain it there.")
    with closing(scope_ledger(seen.scope)) as ledger:  # a view's may be an empty one in memory
        details = {"worker": worker, "host": record.host, "pid": record.pid, "in_flight": record.in_flight}
        entry = ledger.audits.begin(DRAIN, queue=", ".join(record.queues), who=who, details=details)
        asked = seen.workers.signal(record, signal.SIGTSTP)
        with suppress(TemporaryError):  # the signal was sent; the entry stays without an outcome
            ledger.audits.end(entry, messages=0, outcome="done" if asked else "failed")
    if not asked:
        raise UsageError(f"The worker {worker} ended before it could be asked to drain.")


def stuck_signs(record: WorkerRecord, *, now: float, timeouts: Mapping[str, float]) -> Sequence[StuckWorker]:
    """Return the signs that a worker is stuck, the strongest first; empty if it seems well.

    Args:
        record: The worker's record.
        now: Epoch seconds of the same host's clock.
        timeouts: Timeouts of handlers in seconds, by queue.
    """
    return [*_of_process(record, now=now), *_of_messages(record, now=now, timeouts=timeouts)]


def _of_process(record: WorkerRecord, *, now: float) -> Iterator[StuckWorker]:
    for trouble in record.troubles:
        yield StuckWorker(sign=StuckSign.HANGING, detail=trouble)
    silent_seconds = now - record.beat_at
    if silent_seconds > HEARTBEAT_SECONDS_MAX:
        yield StuckWorker(sign=StuckSign.SILENT, seconds=silent_seconds, limit_seconds=HEARTBEAT_SECONDS_MAX)
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

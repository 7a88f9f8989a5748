"""Select the workers of a data directory, and signal them.

Only processes whose lock proves that they are alive are signalled, and only on this host.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.app.registry import WorkerRecord, Workers, is_local
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalResult:
    """The workers that were signalled, and those that were not: of other hosts or containers, or suspended."""

    asked: Sequence[str]
    elsewhere: Sequence[str]
    suspended: Sequence[WorkerRecord] = ()  # they would lose the request


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
    """Send a signal to those of these workers that live on this host. A suspended one gets no SIGTSTP."""
    asked: list[str] = []
    elsewhere: list[str] = []
    suspended: list[WorkerRecord] = []
    for record in records:
        if not is_local(record):
            elsewhere.append(record.worker)
        elif number == signal.SIGTSTP and is_suspended(record.pid):
            suspended.append(record)
        elif workers.signal(record, number):
            asked.append(record.worker)
    return SignalResult(asked=asked, elsewhere=elsewhere, suspended=suspended)


def is_suspended(pid: int) -> bool:
    """Return True if a signal has suspended the process: SIGCONT then discards a pending SIGTSTP. Linux only."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
    except OSError:
        return False
    return fields[:1] in {"T", "t"}


def suspended_text(record: WorkerRecord) -> str:
    """Return why a suspended worker was not asked to drain, and what to do."""
    return (
        f"The worker {record.worker} is suspended and would lose the request: continue it with kill -CONT "
        f"{record.pid}, or end it with kill -KILL {record.pid}."
    )

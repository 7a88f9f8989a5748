"""Select the workers of a data directory, and signal them.

Only processes whose lock proves that they are alive are signalled, and only on this host.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.app.registry import WorkerRecord, Workers, is_local
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalResult:
    """The workers that were signalled, and those of other hosts or containers, which cannot be."""

    asked: Sequence[str]
    elsewhere: Sequence[str]


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

"""Drain a worker, with an entry in the audit log."""

import signal
from contextlib import closing, suppress
from pathlib import Path

from penstock.app.registry import is_local
from penstock.app.scope import scope_ledger
from penstock.errors import TemporaryError, UsageError
from penstock.operations.inspection import ScopeView

DRAIN = "drain"  # the action in the audit log


def drain_worker(seen: ScopeView, worker: str, *, who: str) -> None:
    """Make a worker of this host stop fetching, and record it in the audit log. It finishes its messages and stays up.

    Raises `UsageError` if no such worker runs here or its process is suspended, and `TemporaryError` if the ledger is
    unavailable; then no signal was sent.
    """
    record = next((record for record in seen.workers.records() if record.worker == worker), None)
    if record is None:
        raise UsageError(f"No worker {worker} with this data directory runs on this host. It may have ended meanwhile.")
    if not is_local(record):
        raise UsageError(f"The worker {worker} runs on another host or in another container. Drain it there.")
    if _is_suspended(record.pid):
        raise UsageError(
            f"The worker {worker} is suspended and would lose the request: continue it with kill -CONT "
            f"{record.pid}, or end it with kill -KILL {record.pid}."
        )
    with closing(scope_ledger(seen.scope)) as ledger:  # a view's may be an empty one in memory
        details = {"worker": worker, "host": record.host, "pid": record.pid, "in_flight": record.in_flight}
        entry = ledger.audits.begin(DRAIN, queue=", ".join(record.queues), who=who, details=details)
        asked = seen.workers.signal(record, signal.SIGTSTP)
        with suppress(TemporaryError):  # the signal was sent; the entry stays without an outcome
            ledger.audits.end(entry, messages=0, outcome="done" if asked else "failed")
    if not asked:
        raise UsageError(f"The worker {worker} ended before it could be asked to drain.")


def _is_suspended(pid: int) -> bool:
    """Return True if a signal has suspended the process: SIGCONT then discards a pending SIGTSTP. Linux only."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
    except OSError:
        return False
    return fields[:1] in {"T", "t"}

"""Drain a worker, with an entry in the audit log."""

import signal
from contextlib import closing, suppress

from penstock.app.registry import is_local
from penstock.app.scope import scope_ledger
from penstock.errors import TemporaryError, UsageError
from penstock.operations.inspection import ScopeView
from penstock.operations.workers.signals import is_suspended, suspended_text

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
    if is_suspended(record.pid):
        raise UsageError(suspended_text(record))
    with closing(scope_ledger(seen.scope)) as ledger:  # a view's may be an empty one in memory
        details = {"worker": worker, "host": record.host, "pid": record.pid, "in_flight": record.in_flight}
        entry = ledger.audits.begin(DRAIN, queue=", ".join(record.queues), who=who, details=details)
        asked = seen.workers.signal(record, signal.SIGTSTP)
        with suppress(TemporaryError):  # the signal was sent; the entry stays without an outcome
            ledger.audits.end(entry, messages=0, outcome="done" if asked else "failed")
    if not asked:
        raise UsageError(f"The worker {worker} ended before it could be asked to drain.")

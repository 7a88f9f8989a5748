"""Say what reads objects that were enqueued again, if no worker does."""

from penstock.operations.inspection import ScopeView


def ingest_hint(seen: ScopeView) -> str | None:
    """Return a sentence that names the command that reads enqueued objects of a table made by ``ingest``.

    None for the pipelines of an app, and while an ingest of the table runs.
    """
    if seen.scope.table is None or seen.workers.records() or seen.workers.silent():
        return None
    row = seen.ledger.pipeline(seen.scope.table.pipeline)
    transform = None if row is None else row.transform
    options = f"its options (--transform {transform}, ...)" if transform else "its options, such as --transform"
    return f"No worker runs: the next `penstock ingest` of this table reads them. Give it {options} again."

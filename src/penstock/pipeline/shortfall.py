"""Rows that committed batches wrote and that the table no longer shows.

The position in the table survives a RESTORE and an overwrite by another writer, so publishing goes on as if nothing had
happened. The rows are compared instead: the table may have more than its batches wrote, and not fewer. If it has fewer,
its log says which commit removed which files. A deliberate change of rows (DELETE, UPDATE, MERGE) is no shortfall.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.sinks.delta import DeltaTableSink
from penstock.sinks.delta_log import commits
from penstock.sinks.manifest import decode

COMMITS_MAX = 1_000  # of the log, the newest
BATCHES_NAMED_MAX = 10
EDITS = frozenset({"DELETE", "UPDATE", "MERGE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What is missing, in a sentence. ``is_explained``: the log says which commit removed it."""

    text: str
    is_explained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removal:
    version: int
    operation: str


def shortfall(
    ledger: Ledger,
    sink: DeltaTableSink,
    *,
    pipeline: str,
    written: Callable[[int], int],
    manifest_of: Callable[[BatchRow], str],
) -> Shortfall | None:
    """Return what the table lacks of its batches; None if it lacks nothing, or if its log does not count rows.

    ``written`` returns how many rows all batches up to one wrote.
    """
    table = sink.load()
    if table is None or (shown := table.rows()) is None:
        return None
    missing = written(table.position.seq) - shown
    if missing <= 0:
        return None
    removed = _removed(sink)
    if removed and all(one.operation in EDITS for one in removed.values()):
        return None
    if not removed:
        text = f"the table {sink.uri} shows {missing:,} rows fewer than its batches wrote, and its log does not say why"
        return Shortfall(text=text, is_explained=False)
    last = max(removed.values(), key=lambda one: one.version)
    numbers = _batches(ledger, pipeline, removed, manifest_of)
    text = (
        f"version {last.version} of the table {sink.uri} ({last.operation}, by another writer) removed rows: "
        f"{missing:,} rows that batches wrote are no longer in the table{numbers}; restore version {last.version - 1}, "
        "or read the objects of these batches again; until then their objects stay in their source"
    )
    return Shortfall(text=text, is_explained=True)


def _removed(sink: DeltaTableSink) -> Mapping[str, _Removal]:
    """Return the files that a commit removed with their rows, and that no later commit added again."""
    present: set[str] = set()
    removed: dict[str, _Removal] = {}
    for commit in islice(commits(sink.root), COMMITS_MAX):  # newest first
        added = {file.path for file in commit.added}
        for path in commit.removed:
            if path not in present and path not in added:
                removed.setdefault(path, _Removal(version=commit.version, operation=commit.operation))
        present |= added
    return removed


def _batches(
    ledger: Ledger, pipeline: str, removed: Mapping[str, _Removal], manifest_of: Callable[[BatchRow], str]
) -> str:
    """Return which batches wrote these files, in words; empty where merged files hide it."""
    numbers = [
        batch.seq
        for batch in ledger.batches_after(pipeline, 0)
        if any(file.path in removed for file in decode(manifest_of(batch)))
    ]
    if not numbers:
        return ""
    named = ", ".join(map(str, numbers[:BATCHES_NAMED_MAX]))
    more = f" and {len(numbers) - BATCHES_NAMED_MAX:,} more" if len(numbers) > BATCHES_NAMED_MAX else ""
    return f" (batches {named}{more})" if len(numbers) > 1 else f" (batch {named})"

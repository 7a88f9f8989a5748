"""Whether a table still has the rows of batches that it once showed: asked before objects leave their source.

The position in the table cannot say: it survives a RESTORE and an overwrite by another writer. The files of the batches
can. Each is in the newest snapshot, or the log says which commit removed it. A commit that merged files (it changed no
data) or edited rows (DELETE, UPDATE, MERGE) put the rows that stay into files that it added, so these are followed in
turn. A file that any other commit removed, and that no later one added again, has taken its rows along.

Old commits are deleted from the log. If it no longer says what became of a file, rows are counted: the table, without
what other writers are known to have appended, has to show as many as its batches wrote. If it shows fewer, the rows of
the batch may be among the missing ones, and that is treated as if they were.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from penstock.errors import PublishHalted
from penstock.pipeline.shortfall import EDITS
from penstock.sinks.delta import DeltaTableSink, LoadedDelta
from penstock.sinks.delta_log import LogCommit, commit_at, versions

RESTORE = "RESTORE"
MEANT = "run penstock cleanup with --although-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    """The files that one batch brought to one table."""

    seq: int
    paths: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A commit, as far as it matters here."""

    version: int
    operation: str
    removed: Collection[str]  # and not added again by the same commit
    added: Mapping[str, int]  # rows, by path
    keeps_rows: bool  # those of the removed files are in the added ones, or were meant to go
    is_append: bool  # by another writer


class KeptRows:
    """Looks into one table. For one thread at a time; it remembers the commits that it has read."""

    def __init__(self, sink: DeltaTableSink) -> None:
        self._sink = sink
        self._read: dict[int, _Change] = {}  # by version: a commit never changes

    def check(self, batches: Sequence[BatchFiles], *, written: Callable[[int], int]) -> None:
        """Raise `PublishHalted` if rows of one of these batches may have left the table, which once showed all of them.

        ``written`` returns how many rows all batches up to one wrote.
        """
        paths = {path for batch in batches for path in batch.paths}
        table = self._sink.load() if paths else None
        shown = set() if table is None else {file.path for file in table.files()}
        gone = paths - shown
        if not gone:
            return
        lost, unknown = self._fates(gone, shown)
        for batch in batches:
            for removal in (lost[path] for path in batch.paths if path in lost):
                raise PublishHalted(
                    f"Version {removal.version} of the table {self._sink.uri} ({removal.operation}, by another writer) "
                    f"removed rows of batch {batch.seq}. So its objects, and those of later batches, stay in their "
                    f"source: restore version {removal.version - 1} of the table; or, if it was meant, {MEANT}."
                )
        if unknown and not self._shows_all(table, shown, written):
            seq = next(batch.seq for batch in batches if not unknown.isdisjoint(batch.paths))
            raise PublishHalted(
                f"The table {self._sink.uri} may have lost rows of batch {seq}: it shows fewer rows than its batches "
                "wrote, and its log no longer says what became of files of this batch. So its objects, and those of "
                "later batches, stay in their source. Let the log reach back further than the cleanup waits (the "
                f"table's property delta.logRetentionDuration); or, if the rows were meant to go, {MEANT}."
            )

    def _fates(self, gone: Set[str], shown: Set[str]) -> tuple[Mapping[str, _Change], Set[str]]:
        """Return which of the files took rows along, with the commit that removed them; and those whose removal is not
        in the log. A file may have come back by a RESTORE and have left again: one way that kept its rows is enough."""
        there = set(shown)  # and those whose rows are in files that are there
        lost: dict[str, _Change] = {}
        for change in self._changes():  # newest first, so that what became of the files that it added is known
            if there.issuperset(gone):
                break
            absent = [path for path in change.added if path not in there] if change.keeps_rows else []
            if change.keeps_rows and not absent:
                there.update(change.removed)
            cause = next((lost[path] for path in absent if path in lost), change)
            for path in change.removed:
                if path not in there:
                    lost.setdefault(path, cause)
        lost = {path: change for path, change in lost.items() if path not in there}
        return lost, gone - there - lost.keys()

    def _shows_all(self, table: LoadedDelta | None, shown: Collection[str], written: Callable[[int], int]) -> bool:
        """Return True if the rows of the table say that none is missing."""
        rows = None if table is None else table.rows()
        if table is None or rows is None:
            return False
        appends = (change.added for change in self._changes() if change.is_append)
        strange = sum(count for added in appends for path, count in added.items() if path in shown)
        return rows - strange >= written(table.position.seq)

    def _changes(self) -> Iterator[_Change]:
        """Newest first, as far back as the log reaches."""
        found = versions(self._sink.root)
        if found and self._read and found[0] < max(self._read):
            self._read.clear()  # another table has come in its place
        for version in found:
            if version not in self._read:
                commit = commit_at(self._sink.root, version)
                if commit is None:  # cleaned up meanwhile, and so are all before it
                    return
                self._read[version] = self._change(commit)
            yield self._read[version]

    def _change(self, commit: LogCommit) -> _Change:
        added = {file.path: file.rows for file in commit.added}
        removed = [path for path in (*commit.removed, *commit.merged) if path not in added]
        merges = not commit.removed and commit.operation != RESTORE
        ours = self._sink.app in commit.transactions
        return _Change(
            version=commit.version,
            operation=commit.operation or "unknown operation",
            removed=removed,
            added={} if ours and not removed else added,
            keeps_rows=merges or commit.operation in EDITS,
            is_append=bool(added) and not removed and not ours,
        )

"""Check that a table still has the rows of batches that it once showed, before their objects leave the source.

The table's position does not prove that: it survives a RESTORE and an overwrite by another writer. The files of the
batches do. Each is in the newest snapshot, or the log names the commit that removed it. A commit that merged files (it
changed no data) or edited rows (DELETE, UPDATE, MERGE) put the remaining rows into files that it added, so these files
are looked up in turn. If any other commit removed a file, and no later one added it again, its rows are gone.

Old commits are deleted from the log. If the commit that removed a file is no longer there, rows are counted: the table,
without what other writers are known to have appended, must show as many as its batches wrote. If it shows fewer, the
rows of the batch are assumed to be gone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from penstock.errors import PublishHalted
from penstock.pipeline.shortfall import EDITS
from penstock.sinks.delta import DeltaTableSink, LoadedDelta
from penstock.sinks.delta_log import LogCommit, commit_at, versions

RESTORE = "RESTORE"
SKIP_HINT = "run penstock cleanup with --although-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    """The files that one batch brought to one table."""

    seq: int
    paths: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The effect of one commit on files."""

    version: int
    operation: str
    removed: Collection[str]  # and not added again by the same commit
    added: Mapping[str, int]  # rows, by path
    keeps_rows: bool  # True if they are in the added files, apart from rows that were deleted on purpose
    is_append: bool  # by another writer


class KeptRows:
    """The check of one table. For one thread at a time; commits that were read are cached."""

    def __init__(self, sink: DeltaTableSink) -> None:
        self._sink = sink
        self._read: dict[int, _Change] = {}  # cache, by version: a commit never changes

    def check(self, batches: Sequence[BatchFiles], *, written: Callable[[int], int]) -> None:
        """Raise `PublishHalted` if rows of one of these batches may have left the table, which once showed all of them.

        ``written`` returns how many rows all batches up to a sequence number wrote.
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
                    f"source: restore version {removal.version - 1} of the table; or, if it was meant, {SKIP_HINT}."
                )
        if unknown and not self._shows_all(table, shown, written):
            seq = next(batch.seq for batch in batches if not unknown.isdisjoint(batch.paths))
            raise PublishHalted(
                f"The table {self._sink.uri} may have lost rows of batch {seq}: it shows fewer rows than its batches "
                "wrote, and its log no longer says what became of files of this batch. So its objects, and those of "
                "later batches, stay in their source. Let the log reach back further than the cleanup waits (the "
                f"table's property delta.logRetentionDuration); or, if the rows were meant to go, {SKIP_HINT}."
            )

    def _fates(self, gone: Set[str], shown: Set[str]) -> tuple[Mapping[str, _Change], Set[str]]:
        """Return the files whose rows are gone, with the commit that removed them; and the files whose removal is not
        in the log. A RESTORE may add a file again, and a later commit remove it: one removal that kept its rows is
        enough.
        """
        there = set(shown)  # and files whose rows are in files that are there
        lost: dict[str, _Change] = {}
        for change in self._changes():  # newest first: the fate of the files that it added is known
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
        """Return True if the table shows as many rows as its batches wrote; see the module's docstring."""
        rows = None if table is None else table.rows()
        if table is None or rows is None:
            return False
        appends = (change.added for change in self._changes() if change.is_append)
        foreign_rows = sum(count for added in appends for path, count in added.items() if path in shown)
        return rows - foreign_rows >= written(table.position.seq)

    def _changes(self) -> Iterator[_Change]:
        """Yield the commits of the log, newest first."""
        found = versions(self._sink.root)
        if found and self._read and found[0] < max(self._read):
            self._read.clear()  # another table has replaced it
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

"""Read a table's log, to compare the table with its ledger.

`tail_of` returns the end of the log, back to where table and ledger agree: the commits that the ledger may have
forgotten.

`shortfall` detects rows that committed batches wrote and that the table no longer shows. The position in the table
survives a RESTORE and an overwrite by another writer, so publishing would go on as if nothing had happened. Rows are
counted instead: the table may have more rows than its batches wrote, but not fewer. If it has fewer, its log says which
commit removed which files. A deliberate change of rows (DELETE, UPDATE, MERGE) is no shortfall. If batches replaced
rows (`REPLACES_ROWS`), the number that should be left is not known: only the log is evidence then.

`RowLossCheck` checks the files of single batches before their objects leave the source. Each file is in the newest
snapshot, or the log names the commit that removed it. A commit that merged files (it changed no data) or edited rows
(DELETE, UPDATE, MERGE) put the remaining rows into files that it added, so these files are looked up in turn. If any
other commit removed a file, and no later one added it again, its rows are gone.

Old commits are deleted from the log. If the commit that removed a file is no longer there, rows are counted: the table,
without the rows that other writers are known to have appended, must show as many as its batches wrote. If it shows
fewer, or batches replaced rows, the rows of the batch are assumed to be gone.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice

from penstock.errors import PublishHalted, TableError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.wording import counted, worded
from penstock.pipeline.batch_record import attempt_of
from penstock.sinks.manifest import DataFile, decode
from penstock.sinks.sink import Position, SparseHistory, TableCommit, TableHistory, TableSink, TableSnapshot

Knows = Callable[[int, int | None], bool]  # (batch number, attempt token): True if the ledger has that batch

# Returns how many rows all batches up to a number wrote; None if batches replaced some, so the count is no evidence.
Written = Callable[[int], int | None]

COMMITS_MAX = 1_000  # commits of the log that are read, newest first
BATCHES_NAMED_MAX = 10
EDITS = frozenset({"DELETE", "UPDATE", "MERGE"})

RESTORE = "RESTORE"
SKIP_HINT = "run penstock admin cleanup with --although-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCommit:
    """One commit that made batches visible: those after ``after_seq`` up to ``seq``, as files by attempt."""

    after_seq: int
    seq: int
    token: int | None  # attempt token of batch ``seq``
    version: int
    committed_at: float | None  # epoch seconds
    files: Mapping[str, Sequence[DataFile]]
    republished_after: int | None = None  # see `penstock.sinks.sink.Append`


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTail:
    """The commits of one table since it last agreed with the ledger."""

    uri: str
    table: TableSnapshot | None
    agrees_at: int  # the last batch that both have; 0: none
    shown: Sequence[VisibleCommit]  # oldest first
    whole: bool = True  # True if the log reaches back to the agreement, or to the pipeline's first batch

    @property
    def position(self) -> Position:
        return self.table.position if self.table is not None else Position(seq=0, attempt_token=None)


def tail_of(sink: TableSink, knows: Knows) -> TableTail:
    """Read the log backwards until ledger and table agree. Raise `TableError` if it cannot be read."""
    table = sink.load()
    if table is None or not table.position.seq:
        return TableTail(uri=sink.uri, table=table, agrees_at=0, shown=())
    history = sink.history
    if history is None:
        raise TableError(f"The table {sink.uri} keeps no earlier versions, so its ledger cannot be repaired from it.")
    newer: list[VisibleCommit] = []
    oldest = table.version + 1
    for commit in history.commits():
        oldest = commit.version
        position = commit.position
        if position is None:
            continue
        if knows(position.seq, position.attempt_token):
            return TableTail(uri=sink.uri, table=table, agrees_at=position.seq, shown=_linked(newer, position.seq))
        newer.append(_shown(commit, position))
    if oldest == 0:
        return TableTail(uri=sink.uri, table=table, agrees_at=0, shown=_linked(newer, 0))
    return _from_snapshot(history, sink.uri, table, newer, oldest, knows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A description of the missing rows. ``is_explained``: the log names the commit that removed them."""

    text: str
    is_explained: bool


def shortfall(
    ledger: Ledger,
    sink: TableSink,
    *,
    pipeline: str,
    written: Written,
    manifest_of: Callable[[BatchRow], str],
) -> Shortfall | None:
    """Return the rows of its batches that the table lacks; None if it lacks none, or if its log does not count rows."""
    table = sink.load()
    if table is None or (shown := table.rows()) is None:
        return None
    expected = written(table.position.seq)
    missing = None if expected is None else expected - shown
    if missing is not None and missing <= 0:
        return None
    removed = _removed(sink)
    if all(one.operation in EDITS for one in removed.values()) and (removed or missing is None):
        return None
    if not removed:
        rows = counted(missing or 0, "row")
        text = f"the table {sink.uri} shows {rows} fewer than its batches wrote, and its log does not say why"
        return Shortfall(text=text, is_explained=False)
    if missing is None:
        removed = {path: one for path, one in removed.items() if one.operation not in EDITS}
    last = max(removed.values(), key=lambda one: one.version)
    numbers = _batches(ledger, pipeline, removed, manifest_of)
    rows = "rows that batches wrote are"
    if missing is not None:
        rows = worded(missing, "{} row that batches wrote is", "{} rows that batches wrote are")
    text = (
        f"version {last.version} of the table {sink.uri} ({last.operation}, by another writer) removed rows: "
        f"{rows} no longer in the table{numbers}; restore version {last.version - 1}, "
        "or read the objects of these batches again; until then their objects stay in their source"
    )
    return Shortfall(text=text, is_explained=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    """The files of one batch in one table."""

    seq: int
    paths: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The effect of one commit on files."""

    version: int
    operation: str
    removed: Collection[str]  # and not added again by the same commit
    added: Mapping[str, int]  # rows, by path
    keeps_rows: bool  # True if the added files hold the rows, except rows deleted on purpose
    is_append: bool  # by another writer


class RowLossCheck:
    """A check of one table for lost rows. Used by one thread at a time. Caches the commits that it has read."""

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink
        self._read: dict[int, _Change] = {}  # by version; a commit never changes

    def check(self, batches: Sequence[BatchFiles], *, written: Written) -> None:
        """Raise `PublishHalted` if the table may have lost rows of these batches, all of which it once showed."""
        paths = {path for batch in batches for path in batch.paths}
        table = self._sink.load() if paths else None
        shown = set() if table is None else {file.path for file in table.files()}
        missing = paths - shown
        if not missing:
            return
        lost, unknown = self._fates(missing, shown)
        for batch in batches:
            for removal in (lost[path] for path in batch.paths if path in lost):
                raise PublishHalted(
                    f"Version {removal.version} of the table {self._sink.uri} ({removal.operation}, by another writer) "
                    f"removed rows of batch {batch.seq}. So its objects, and those of later batches, stay in their "
                    f"source: restore version {removal.version - 1} of the table; or, if it was meant, {SKIP_HINT}."
                )
        if unknown and not self._shows_all(table, shown, written):
            seq = next(batch.seq for batch in batches if not unknown.isdisjoint(batch.paths))
            history = self._sink.history
            setting = "" if history is None else f" (the table's property {history.retention_property})"
            rows = "it shows fewer rows than its batches wrote"
            if table is not None and written(table.position.seq) is None:
                rows = "batches replaced rows, so their number is no evidence"
            raise PublishHalted(
                f"The table {self._sink.uri} may have lost rows of batch {seq}: {rows}, and its log no longer says "
                "what became of files of this batch. So its objects, and those of later batches, stay in their source. "
                f"Let the log reach back further than the cleanup waits{setting}; or, if the rows were meant to go, "
                f"{SKIP_HINT}."
            )

    def _fates(self, missing: Set[str], shown: Set[str]) -> tuple[Mapping[str, _Change], Set[str]]:
        """Return the files whose rows are gone, each with the commit that removed it, and the files whose removal is
        not in the log.

        A RESTORE may add a file again, and a later commit remove it: one removal that kept its rows is enough.
        """
        there = set(shown)  # files in the snapshot, and files whose rows are in such files
        lost: dict[str, _Change] = {}
        for change, has_gap in self._all_changes():  # newest first, so that the fate of the files it added is known
            if there.issuperset(missing):
                break
            absent = [path for path in change.added if path not in there] if change.keeps_rows else []
            if change.keeps_rows and not absent:
                there.update(change.removed)
            # a commit in the gap may have merged the absent files
            default = None if has_gap and absent else change
            cause = next((lost[path] for path in absent if path in lost), default)
            if cause is None:
                continue
            for path in change.removed:
                if path not in there:
                    lost.setdefault(path, cause)
        lost = {path: change for path, change in lost.items() if path not in there}
        return lost, missing - there - lost.keys()

    def _shows_all(self, table: TableSnapshot | None, shown: Collection[str], written: Written) -> bool:
        """Return True if the table shows as many rows as its batches wrote; see the module's docstring."""
        rows = None if table is None else table.rows()
        expected = None if table is None else written(table.position.seq)
        if rows is None or expected is None:
            return False
        appends = (change.added for change in self._changes() if change.is_append)
        foreign_rows = sum(count for added in appends for path, count in added.items() if path in shown)
        return rows - foreign_rows >= expected

    def _all_changes(self) -> Iterator[tuple[_Change, bool]]:
        """Yield the known commits, newest first; True: commits after it may be unknown."""
        for change in self._changes():
            yield change, False
        history = self._sink.history
        if isinstance(history, SparseHistory):
            for commit in history.earlier_removals():
                yield self._change(commit), True

    def _changes(self) -> Iterator[_Change]:
        """Yield the commits of the log, newest first."""
        history = self._sink.history
        if history is None:
            return
        found = history.versions()
        if found and self._read and found[0] < max(self._read):
            self._read.clear()  # the table was replaced by another
        for version in found:
            if version not in self._read:
                commit = history.commit_at(version)
                if commit is None:  # cleaned up meanwhile, with all earlier commits
                    return
                self._read[version] = self._change(commit)
            yield self._read[version]

    def _change(self, commit: TableCommit) -> _Change:
        added = {file.path: file.rows for file in commit.added}
        removed = [path for path in (*commit.removed, *commit.merged) if path not in added]
        merges = not commit.removed and commit.operation != RESTORE
        ours = commit.position is not None
        return _Change(
            version=commit.version,
            operation=commit.operation or "unknown operation",
            removed=removed,
            added={} if ours and not removed else added,
            keeps_rows=merges or commit.operation in EDITS,
            is_append=bool(added) and not removed and not ours,
        )


def _from_snapshot(
    history: TableHistory, uri: str, table: TableSnapshot, newer: Sequence[VisibleCommit], oldest: int, knows: Knows
) -> TableTail:
    """Return the tail of a table whose log was cleaned up: the oldest version left represents all earlier commits, as
    far as its file names still contain attempt ids."""
    snapshot = history.load_version(oldest)
    position = snapshot.position
    newer = [shown for shown in newer if shown.version > oldest]
    if not position.seq or knows(position.seq, position.attempt_token):
        return TableTail(uri=uri, table=table, agrees_at=position.seq, shown=_linked(newer, position.seq))
    files = [
        DataFile(
            path=file.path,
            size_bytes=file.size_bytes,
            rows=0,
            modified_at=0.0,
            partition_values={name: None if v is None else str(v) for name, v in file.partition_values.items()},
        )
        for file in snapshot.files()
    ]
    first = VisibleCommit(
        after_seq=0,
        seq=position.seq,
        token=position.attempt_token,
        version=oldest,
        committed_at=None,
        files=_by_attempt(files),
    )
    shown = (first, *_linked(newer, position.seq))
    return TableTail(uri=uri, table=table, agrees_at=0, shown=shown, whole=False)


def _shown(commit: TableCommit, position: Position) -> VisibleCommit:
    return VisibleCommit(
        after_seq=0,  # set by `_linked`
        seq=position.seq,
        token=position.attempt_token,
        version=commit.version,
        committed_at=commit.committed_at,
        files=_by_attempt(commit.added),
        republished_after=commit.republished_after,
    )


def _by_attempt(files: Sequence[DataFile]) -> Mapping[str, Sequence[DataFile]]:
    found: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if attempt_id := attempt_of(file.path):
            found[attempt_id].append(file)
    return dict(found)


def _linked(newest_first: Sequence[VisibleCommit], after_seq: int) -> Sequence[VisibleCommit]:
    """Return the commits oldest first, each beginning where the previous one ends.

    A commit that published lost batches again repeats the position of the commit before it, so the two become one.
    """
    linked: list[VisibleCommit] = []
    for commit in reversed(newest_first):
        last = linked[-1] if linked else None
        if commit.republished_after is not None and last is not None and last.seq == commit.seq:
            begin = min(last.after_seq, commit.republished_after)
            linked[-1] = replace(last, after_seq=begin, files={**commit.files, **last.files})
        else:
            linked.append(replace(commit, after_seq=after_seq))
        after_seq = commit.seq
    return linked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removal:
    version: int
    operation: str


def _removed(sink: TableSink) -> Mapping[str, _Removal]:
    """Return the files that a commit removed with their rows and that no later commit added again."""
    present: set[str] = set()
    removed: dict[str, _Removal] = {}
    commits = () if sink.history is None else sink.history.commits()
    for commit in islice(commits, COMMITS_MAX):  # newest first
        added = {file.path for file in commit.added}
        for path in commit.removed:
            if path not in present and path not in added:
                removed.setdefault(path, _Removal(version=commit.version, operation=commit.operation))
        present |= added
    return removed


def _batches(
    ledger: Ledger, pipeline: str, removed: Mapping[str, _Removal], manifest_of: Callable[[BatchRow], str]
) -> str:
    """Return the numbers of the batches that wrote these files, as text; empty if merged files hide them."""
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

"""Notice commits that another writer overwrote, and put back what they showed.

Penstock puts a commit on condition that its number is free. delta-spark on plain S3 (S3SingleDriverLogStore) looks
whether the file exists and then puts it without a condition. Its commit may therefore arrive after ours and replace it:
our rows leave the table without an error. If the replaced commit was our last one, the table's position falls back and
`penstock.pipeline.publish` publishes its batches as usual. If we had committed a later one, the position is past the
lost batches. This module covers that case.

**What is remembered.** The ledger holds, per pipeline and table, the last `COMMITS_KEPT` versions of the log: number,
size and tag of the file (S3's ETag; inode and time of change in a folder), the batches that the commit shows, and for
commits of other writers engine, operation and time. It is written when a check found everything in order, so
it lags behind the table by the commits since: the next check reads them first. A process that dies in between loses
nothing else. A memory that is lost or wrong costs reads and no rows, because a row is only trusted while
the file's tag is the remembered one, and the row was made from exactly the bytes with that tag.

**How it is checked.** A publish loads the table and then lists the log from the first remembered version on, once per
call unless there is something to put back or another writer came first. The listing has the tags of up to 1,000 files,
so one request checks all remembered commits. Versions that are new or have another tag are read: usually the commit of
the publish before. If there are none, the check ends there.

**What is lost.** A batch up to the table's position is complete if each of its files, as the ledger names them, has an
action in the log since the batch was first committed: the commit that added it, or any later one that removed it. A
removed file is not missed: its rows are in another file (compaction, UPDATE) or left on purpose (DELETE, RESTORE). A
file without any action is lost with the commit that added it. So commits that were overwritten before any publish
remembered them are found too.

If the last commit was replaced, the position falls back and its batches are published as usual, without the files that
a later commit of the log already merged or removed (`acted`). The memory is written after that, not before: it would
hide the reason to look.

**How it is put back.** The lost files are added, oldest batch first, by a commit on the snapshot that was checked or
not at all. It repeats the table's position and says which batches it republishes. Two publishers that do this at once
conflict, and the second finds the actions of the first. One that dies before its commit changed nothing. One that dies
after it leaves a memory that still has the old tags, so the next publish checks the same batches and finds them
complete. Only then are the new tags remembered. Adding a file that some readers already see (from a checkpoint made
before the commit was overwritten) changes nothing for them: an action replaces the earlier one of the same path.

**The other writer's commit** counts as made. If a checkpoint from before it hides its changes from readers that begin
there, the changes without later actions are committed again (`repeats`). If it, or a lost compaction of ours, makes a
later compaction of ours wrong (that one merged a file which is no longer there at its version), that compaction is
undone: its merged file goes, and the files that it merged and that are still due come back (`conflicts`).

**Commits that replaced rows** (`penstock.pipeline.replacing`) are remembered with the batch and the folder of the files
that were written again, before another commit of ours follows. If one is lost, the files that it removed are in the
table again, beside later commits that were made on what was left of them. They leave the table once more, in one commit
with what was left and with the lost files of the batch, as far as no later commit moved it (`unreplaced`). If the
commit in its place removed one of these files, their rows are in files of the other writer, and publishing halts.

**Batches that are merged** (`penstock.pipeline.merging`) may not add the files that they wrote, so their manifests say
nothing here. Each of their commits replaces rows, and its folder names the files that it added.

**Limits.** An overwritten commit is noticed by the next publish to the table; until then its rows are missing. A put
that arrives more than `COMMITS_KEPT` versions late is not noticed. If others made more than that many commits between
two publishes, or cleaned up the log in between, the versions before are not checked. Two drivers of other programs that
overwrite each other's commits are not repaired.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from penstock.errors import PublishConflict, PublishHalted, TableError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.ledger.table_commits import SeenCommit
from penstock.pipeline.batch_record import COMPACTED_FOLDER
from penstock.pipeline.replacing import Replacement, load_replacement
from penstock.sinks.manifest import DataFile, decode
from penstock.sinks.sink import (
    CommitLog,
    LogEntry,
    LoggedCommit,
    LoggedFile,
    LogListing,
    Position,
    TableCommit,
    TableHistory,
    TableSink,
    TableSnapshot,
)

COMMITS_KEPT = 300  # per table; with the checksum files of other writers, all of them fit into one listing
COMMITS_SEARCHED = 50  # for the writer that changed a table
UNKNOWN_ENGINE = "unknown"
UNDO = "penstock undo"  # begins the engine of a commit that undoes a compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFile:
    """A file of a batch whose commit was overwritten."""

    seq: int
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Changes of another writer's commit that a checkpoint hides."""

    version: int
    paths: Collection[str]
    hides_columns: bool  # the commit also set columns, properties or features


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A compaction of ours that merged files which are no longer in the version before it."""

    version: int
    removed: Sequence[LoggedFile]  # its merged files; empty if it cannot be undone, because others have rewritten them
    added: Sequence[DataFile]  # the files that it merged, without those that are no longer there


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreplaced:
    """A commit of ours that replaced rows and was overwritten: the replaced rows are in the table again."""

    version: int
    seq: int  # the batch that replaces rows
    folder: str
    removed: Sequence[LoggedFile]  # the files that came back
    added: Sequence[DataFile]  # what was left of them, unless a later commit has moved or removed it
    moved: bool  # a later commit moved or removed some of that
    contradicted: bool  # the commit in its place removed one of these files, so its rows are somewhere else now


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of one check."""

    lost: Sequence[LostFile] = ()
    unreplaced: Sequence[Unreplaced] = ()
    repeats: Sequence[Repeat] = ()
    conflicts: Sequence[Conflict] = ()
    foreign: Sequence[SeenCommit] = ()  # commits of other writers that were read for this check
    news: Sequence[SeenCommit] = ()  # what to remember
    first: int = 0  # the versions to keep
    last: int = 0
    acted: Collection[str] = ()  # files of batches after the position that the log knows nevertheless
    is_settled: bool = True  # False: the position fell back, so batches have to be published before this is remembered

    def of_batch(self, seq: int | None) -> Unreplaced | None:
        """Return the lost commit by which a batch after the position replaced rows, if later commits build on it."""
        return next((one for one in self.unreplaced if one.seq == seq and (one.moved or self.acted)), None)

    @property
    def overwriting(self) -> SeenCommit | None:
        """The newest commit that took the place of one of ours."""
        return next((commit for commit in reversed(self.foreign) if commit.lost_from is not None), None)


def named(commit: SeenCommit) -> str:
    """Return the commit of another writer for messages, such as "version 7 (OPTIMIZE by Apache-Spark/3.5.0 ...)"."""
    return f"version {commit.version} ({commit.operation or 'unknown operation'} by {commit.engine})"


def gone(table: str, commit: SeenCommit, seq: int, folder: str) -> PublishHalted:
    """Return the error for a commit that took the place of one of ours whose files no longer exist."""
    return PublishHalted(
        f"In the table {table}, {named(commit)} took the place of a commit of Penstock, whose files in "
        f"{folder} are gone. Let that writer restore version {commit.version - 1}, and process the objects of "
        f"batch {seq} and later again."
    )


class CommitWatch:
    """The check of one table's log for one pipeline. Stateless apart from the ledger, so any thread may use it."""

    def __init__(
        self,
        ledger: Ledger,
        sink: TableSink,
        log: CommitLog,
        *,
        pipeline: str,
        manifest_of: Callable[[BatchRow], str],
    ) -> None:
        self._ledger = ledger
        self._sink = sink
        self.log = log
        self._pipeline = pipeline
        self._manifest_of = manifest_of

    @property
    def history(self) -> TableHistory | None:
        return self._sink.history

    @property
    def sink(self) -> TableSink:
        return self._sink

    def changed_by(self) -> str | None:
        """Return the version, operation and engine that last set columns, properties or features, if not Penstock.

        Works for tables that cannot be loaded. None if it is unknown.
        """
        found = sorted(self.log.listing(after=-1).commits, reverse=True)
        for version in found[:COMMITS_SEARCHED]:
            logged = self.log.read(version)
            if logged is not None and logged.commit.sets_columns:
                return None if logged.commit.is_ours else named(_row_of(logged, after_seq=0, seq=0, was=None))
        return None

    def foreign(self) -> Sequence[SeenCommit]:
        """Return the remembered commits of other writers, oldest first."""
        seen = self._ledger.table_commits.seen(self._pipeline, self._sink.uri)
        return [commit for commit in seen if commit.engine is not None]

    def inspect(self, table: TableSnapshot, position: Position) -> Inspection:
        """Check the log up to this snapshot, whose position is given. Changes nothing.

        Raises `PublishConflict` if the log changed meanwhile, and `TableError` if it cannot be read.
        """
        seen = self._ledger.table_commits.seen(self._pipeline, self._sink.uri)
        window = self._window(seen, table.version)
        if window is None:
            return self._anew(table, position)
        if not window.kept and not window.unread:
            return Inspection(first=table.version, last=table.version)
        return self._of_window(window, table, position) if window.unread else _nothing_new(window, position)

    def remember(self, inspection: Inspection) -> None:
        """Store what an inspection found. Call it once nothing is left to put back."""
        if inspection.news:
            self._ledger.table_commits.remember(
                self._pipeline, self._sink.uri, inspection.news, first=inspection.first, last=inspection.last
            )

    # Which versions to read

    def _window(self, seen: Sequence[SeenCommit], version: int) -> "_Window | None":
        """Return the remembered versions and those to read; None if the memory does not reach up to the log."""
        listing = self.log.listing(after=seen[0].version - 1 if seen else -1)
        if seen and max(listing.commits, default=-1) < seen[-1].version:  # another table is here now
            seen, listing = (), self.log.listing(after=-1)
        kept = [commit for commit in seen if commit.version in listing.commits and commit.version <= version]
        if seen and not kept and seen[0].version > version:  # others have published since this snapshot was loaded
            return _Window(kept=(), unread=(), listing=listing)
        after = kept[-1].version if kept else -1
        new = range(after + 1, version + 1)
        if len(new) > COMMITS_KEPT or any(one not in listing.commits for one in new):
            return None
        changed = [one.version for one in kept if listing.commits[one.version] != _entry_of(one)]
        return _Window(kept=kept, unread=[*changed, *new], listing=listing)

    def _anew(self, table: TableSnapshot, position: Position) -> Inspection:
        """Return an inspection that begins at the snapshot, and checks nothing before it."""
        logged = self.log.read(table.version)
        if logged is None:
            return Inspection()
        shows = logged.commit.position is not None
        after_seq = max(position.seq - 1, 0) if shows else position.seq
        row = _row_of(logged, after_seq=after_seq, seq=position.seq, was=None)
        return Inspection(
            news=[row], foreign=_foreign([row]), first=table.version - COMMITS_KEPT + 1, last=table.version
        )

    def _of_window(self, window: "_Window", table: TableSnapshot, position: Position) -> Inspection:
        rows, read = self._walk(window)
        lowest = min(_lowest_suspect(window), position.seq)
        scan = self._scan(rows, read, table.version, down_to_seq=lowest, floor=min(read))
        is_foreign = any(rows[version].engine is not None for version in read)
        batches = self._batches(lowest, None if is_foreign else position.seq)
        due = [(seq, file) for seq, file in batches if seq <= position.seq]
        ahead = [(seq, file) for seq, file in batches if seq > position.seq]
        rows = _with_losses(rows, scan, due, ahead)
        kept = {commit.version: commit for commit in window.kept}
        news = [row for version, row in sorted(rows.items()) if row != kept.get(version)]
        foreign = _foreign([commit for commit in news if commit.version in read])
        acted = {file.path for _, file in ahead if file.path in scan.acted}
        lost: Sequence[LostFile] = ()
        if scan.is_complete and foreign:
            lost = [LostFile(seq=seq, file=file) for seq, file in due if file.path not in scan.acted]
        written = {file.path: file for _, file in batches}
        unreplaced: list[Unreplaced] = []
        for row, plan in self._overwritten_plans(foreign, scan, position, acted):
            written |= {file.path: file for file in (*plan.added, *plan.fresh)}
            if not scan.replaces_again(row):
                unreplaced.append(_unreplaced(row, plan, scan, table))
        return Inspection(
            lost=lost,
            unreplaced=unreplaced,
            repeats=list(self._repeats(foreign, scan, window.listing, table)),
            conflicts=list(self._conflicts(foreign, scan, table, written)),
            foreign=foreign,
            news=news,
            first=table.version - COMMITS_KEPT + 1,
            last=table.version,
            acted=acted,
            is_settled=not acted and all(commit.seq <= position.seq for commit in window.kept),
        )

    def _walk(self, window: "_Window") -> "tuple[Mapping[int, SeenCommit], Mapping[int, LoggedCommit]]":
        """Return the window's versions as they are now, and the commits that were read for that."""
        kept = {commit.version: commit for commit in window.kept}
        unread = set(window.unread)
        running = window.kept[0].after_seq if window.kept else 0
        rows: dict[int, SeenCommit] = {}
        read: dict[int, LoggedCommit] = {}
        for version in sorted(unread.union(kept)):
            if version not in unread:
                rows[version] = _after(kept[version], running)
            else:
                read[version] = self._read(version)
                after, seq = _shown(read[version].commit, running)
                rows[version] = _row_of(read[version], after_seq=after, seq=seq, was=kept.get(version))
            running = rows[version].seq
        return rows, read

    def _read(self, version: int) -> LoggedCommit:
        logged = self.log.read(version)
        if logged is None:
            raise PublishConflict(f"{self._sink.uri}: version {version} was cleaned up while the log was checked")
        return logged

    def _scan(
        self,
        rows: Mapping[int, SeenCommit],
        read: Mapping[int, LoggedCommit],
        newest: int,
        *,
        down_to_seq: int,
        floor: int,
    ) -> "_Scan":
        """Return the commits since the first that may name a file of a batch after ``down_to_seq``."""
        found: list[TableCommit] = []
        known = _highest(rows)
        for version in range(newest, max(newest - 2 * COMMITS_KEPT, -1), -1):
            if version < floor and known.get(version, down_to_seq + 1) <= down_to_seq:
                return _Scan(commits=found[::-1], is_complete=True)
            logged = read.get(version) or self.log.read(version)
            if logged is None:
                return _Scan(commits=found[::-1], is_complete=False)
            found.append(logged.commit)
            position = logged.commit.position
            if version < min(known) and position is not None and position.seq <= down_to_seq:
                return _Scan(commits=found[::-1], is_complete=True)
        return _Scan(commits=found[::-1], is_complete=found[-1].version == 0)

    def _batches(self, after_seq: int, up_to_seq: int | None) -> Sequence[tuple[int, DataFile]]:
        """Return the files of these batches, each with its batch's number. None: up to the last one."""
        if up_to_seq is not None and after_seq >= up_to_seq:
            return ()
        later = self._ledger.batches_after(self._pipeline, after_seq)
        batches = takewhile(lambda batch: up_to_seq is None or batch.seq <= up_to_seq, later)
        return [(batch.seq, file) for batch in batches for file in decode(self._manifest_of(batch))]

    def _overwritten_plans(
        self, foreign: Sequence[SeenCommit], scan: "_Scan", position: Position, acted: Collection[str]
    ) -> "Iterator[tuple[SeenCommit, Replacement]]":
        """Yield the commits that took the place of one that replaced rows, each with how it did that.

        Left out are plans that are gone and not needed: the batch is published anew and no later commit builds on what
        was written for it, or another commit already replaced its rows.
        """
        for row in foreign:
            if row.replacing is None:
                continue
            plan = load_replacement(self._sink.root, row.rewritten_in) if row.rewritten_in else Replacement()
            if plan is not None:
                yield row, plan
                continue
            is_anew = row.replacing > position.seq and not acted and not scan.moves(row.rewritten_in, row.version)
            if not is_anew and not scan.replaces_again(row):
                raise gone(self._sink.uri, row, row.replacing, row.rewritten_in)

    # Which changes of others are hidden or contradict ours

    def _repeats(
        self, foreign: Sequence[SeenCommit], scan: "_Scan", listing: LogListing, table: TableSnapshot
    ) -> Iterator[Repeat]:
        hidden = [one for one in foreign if any(checkpoint >= one.version for checkpoint in listing.checkpoints)]
        shown = {file.path for file in table.files()} if hidden else set[str]()
        for one in hidden:
            commit = scan.commit(one.version)
            later = scan.later(one.version)
            added = {file.path for file in commit.named}
            removed = {*commit.removed, *commit.merged} - added
            unseen = ((added - shown) | (removed & shown)).difference(later.paths)
            if unseen:
                yield Repeat(
                    version=one.version, paths=unseen, hides_columns=commit.sets_columns and not later.sets_columns
                )

    def _conflicts(
        self, foreign: Sequence[SeenCommit], scan: "_Scan", table: TableSnapshot, written: Mapping[str, DataFile]
    ) -> Iterator[Conflict]:
        """Yield the compactions of ours that follow one of these commits and contradict it.

        A merged file that no commit added before is fine if a batch wrote it, or the publish of a batch that replaces
        rows: its commit was overwritten, and its rows are in the merged file only. A compaction's file in that case was
        lost with its commit, so the files that it was made of are in the table too.
        """
        history = self._sink.history
        first = min((one.version for one in foreign), default=None)
        if history is None or first is None:
            return
        for commit in scan.commits:
            if commit.version > first and _is_compaction(commit) and not scan.undoes(commit.version):
                earlier = scan.earlier_paths(commit.version)
                unadded = [path for path in commit.merged if path not in earlier and path in written]
                conflict = _conflict(commit, history, table, [written[path] for path in unadded])
                if conflict is not None:
                    yield conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The versions that a check covers."""

    kept: Sequence[SeenCommit]  # remembered and still in the log
    unread: Sequence[int]  # new ones, and remembered ones with another tag
    listing: LogListing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    """The actions of the commits after a version."""

    paths: Collection[str]
    sets_columns: bool


@dataclass(slots=True, kw_only=True)
class _Scan:
    """Commits of the log without a gap, oldest first."""

    commits: Sequence[TableCommit]
    is_complete: bool  # True if no earlier commit can name a file of the batches in question
    acted: Collection[str] = field(init=False)  # files with an action

    def __post_init__(self) -> None:
        self.acted = {path for commit in self.commits for path in _paths(commit)}

    def commit(self, version: int) -> TableCommit:
        return next(commit for commit in self.commits if commit.version == version)

    def earlier_paths(self, version: int) -> Collection[str]:
        return {path for commit in self.commits if commit.version < version for path in _paths(commit)}

    def later(self, version: int) -> _Later:
        after = [commit for commit in self.commits if commit.version > version]
        return _Later(
            paths={path for commit in after for path in _paths(commit)},
            sets_columns=any(commit.sets_columns for commit in after),
        )

    def replaces_again(self, row: SeenCommit) -> bool:
        """Return True if another commit replaces the rows that the one at this version should have replaced."""
        return any(commit.replacing == row.replacing and commit.version != row.version for commit in self.commits)

    def moves(self, folder: str, version: int) -> bool:
        """Return True if a commit after this version moved or removed a file of the folder."""
        return any(path.startswith(f"{folder}/") for path in self.later(version).paths)

    def undoes(self, version: int) -> bool:
        return any(commit.engine.startswith(f"{UNDO} {version} ") for commit in self.commits)


def _unreplaced(row: SeenCommit, plan: Replacement, scan: _Scan, table: TableSnapshot) -> Unreplaced:
    shown = {file.path for file in table.files()}
    at = scan.commit(row.version)
    gone_there = {*at.removed, *at.merged}
    after = [commit for commit in scan.commits if commit.version > row.version]
    gone_later = {path for commit in after for path in (*commit.removed, *commit.merged)}
    added_by_others = {file.path for commit in (at, *after) if not commit.is_ours for file in commit.named}
    back = [one for one in plan.files if one.removed.path in shown and one.removed.path not in added_by_others]
    return Unreplaced(
        version=row.version,
        seq=row.replacing or 0,
        folder=plan.folder,
        removed=[one.removed for one in back],
        added=[
            file
            for file in (*(file for one in back for file in one.added), *plan.fresh)
            if file.path not in gone_later and file.path not in shown
        ],
        moved=any(file.path in gone_later for file in (*plan.added, *plan.fresh)),
        contradicted=any(one.removed.path in gone_there for one in plan.files),
    )


def _paths(commit: TableCommit) -> Iterator[str]:
    yield from (file.path for file in commit.named)
    yield from commit.removed
    yield from commit.merged


def _nothing_new(window: _Window, position: Position) -> Inspection:
    last = window.kept[-1].version
    is_settled = window.kept[-1].seq <= position.seq
    return Inspection(first=last - COMMITS_KEPT + 1, last=last, is_settled=is_settled)


def _entry_of(commit: SeenCommit) -> LogEntry:
    return LogEntry(version=commit.version, tag=commit.tag, size_bytes=commit.size_bytes)


def _shown(commit: TableCommit, running: int) -> tuple[int, int]:
    """Return the batch after which the commit shows batches, and the last one, given the position before it."""
    if commit.position is None:
        return running, running
    after = running if commit.republished_after is None else min(running, commit.republished_after)
    return after, max(running, commit.position.seq)


def _after(commit: SeenCommit, running: int) -> SeenCommit:
    """Return a remembered commit, given the position before it: an earlier commit may have been overwritten."""
    if commit.after_seq == commit.seq:
        return replace(commit, after_seq=running, seq=running)
    return replace(commit, after_seq=min(commit.after_seq, running))


def _row_of(logged: LoggedCommit, *, after_seq: int, seq: int, was: SeenCommit | None) -> SeenCommit:
    """Return what to remember of a commit. ``was``: what was remembered of its version."""
    commit = logged.commit
    lost = (None, None) if was is None else (was.lost_from, was.lost_to)
    replaces = commit if commit.is_ours or was is None else was  # what the overwritten commit replaced is remembered
    if was is not None and was.engine is None and not commit.is_ours and was.seq > was.after_seq:
        lost = (was.after_seq + 1, was.seq)
    return SeenCommit(
        version=commit.version,
        tag=logged.entry.tag,
        size_bytes=logged.entry.size_bytes,
        after_seq=after_seq,
        seq=seq,
        engine=None if commit.is_ours else commit.engine or UNKNOWN_ENGINE,
        operation=commit.operation,
        committed_at=commit.committed_at,
        lost_from=lost[0],
        lost_to=lost[1],
        replacing=replaces.replacing,
        rewritten_in=replaces.rewritten_in,
    )


def _highest(rows: Mapping[int, SeenCommit]) -> Mapping[int, int]:
    """Return the last batch with a file that a version, or one before it, may name: also batches that were lost."""
    found: dict[int, int] = {}
    highest = 0
    for version, row in sorted(rows.items()):
        highest = max(highest, row.seq, row.lost_to or 0)
        found[version] = highest
    return found


def _lowest_suspect(window: _Window) -> int:
    """Return the batch after which batches may be lost."""
    unread = set(window.unread)
    suspects = [commit.after_seq for commit in window.kept if commit.version in unread]
    if not window.kept or max(unread) > window.kept[-1].version:
        suspects.append(window.kept[-1].seq if window.kept else 0)
    return min(suspects)


def _foreign(commits: Sequence[SeenCommit]) -> Sequence[SeenCommit]:
    return [commit for commit in commits if commit.engine is not None]


def _with_losses(
    rows: Mapping[int, SeenCommit],
    scan: _Scan,
    due: Sequence[tuple[int, DataFile]],
    ahead: Sequence[tuple[int, DataFile]],
) -> Mapping[int, SeenCommit]:
    """Note on each commit of another writer which batches' commit it took the place of.

    A batch was displaced if one of its files has no action though it is due, or if the first action is not the commit
    of the batch. That commit was at the first version of another writer after the last commit of an earlier batch, or
    at a later one.
    """
    if not scan.is_complete:
        return rows
    first_by = _first_actions(scan)
    displaced = {seq for seq, file in due if not first_by.get(file.path, False)}
    displaced |= {seq for seq, file in ahead if file.path in first_by}
    found = dict(rows)
    for seq in displaced:
        before = max((commit.version for commit in scan.commits if _shows_only_before(commit, seq)), default=-1)
        version = next((v for v, row in sorted(rows.items()) if v > before and row.engine is not None), None)
        if version is not None:
            row = found[version]
            found[version] = replace(
                row, lost_from=min(seq, row.lost_from or seq), lost_to=max(seq, row.lost_to or seq)
            )
    return found


def _first_actions(scan: _Scan) -> Mapping[str, bool]:
    """Return the files with an action; True if the first one is that of the batch's own commit."""
    found: dict[str, bool] = {}
    for commit in scan.commits:
        is_own = commit.position is not None and commit.republished_after is None
        for file in commit.named:
            found.setdefault(file.path, is_own)
        for path in (*commit.removed, *commit.merged):
            found.setdefault(path, False)
    return found


def _shows_only_before(commit: TableCommit, seq: int) -> bool:
    position = commit.position
    return position is not None and position.seq < seq and commit.republished_after is None


def _is_compaction(commit: TableCommit) -> bool:
    return commit.is_ours and bool(commit.merged) and commit.engine.startswith(f"penstock {COMPACTED_FOLDER}/")


def _conflict(
    commit: TableCommit, history: TableHistory, table: TableSnapshot, unadded: Sequence[DataFile]
) -> Conflict | None:
    """Return the conflict of a compaction. ``unadded``: files of batches that no commit before it adds any more."""
    try:
        files = [_data_file(file) for file in history.load_version(commit.version - 1).logged_files()]
        before = {file.path: file for file in [*files, *unadded]}
        if before.keys() >= set(commit.merged):
            return None
        now = history.load_version(table.version).logged_files()
    except TableError:  # the log no longer has these versions
        return None
    merged = {file.path for file in commit.added}
    removed = [file for file in now if file.path in merged]
    return Conflict(
        version=commit.version,
        removed=removed if len(removed) == len(merged) else (),
        added=[before[path] for path in commit.merged if path in before],
    )


def _data_file(file: LoggedFile) -> DataFile:
    return DataFile(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        modified_at=file.modified_at,
        partition_values=file.partition_values,
    )

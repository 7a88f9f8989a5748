"""Delete files that were written below ``compacted/`` and that no commit ever added to their table.

Compactions write there, and publishes that replace rows; see `penstock.pipeline.rewriting`. One that dies before its
commit leaves a folder that no version of the table's log names. No ledger knows these folders, so gc deletes one in two
passes (`collect_leftovers`):

1. It writes a mark into the folder, then loads the table and notes the version in a second file.
2. A later pass deletes the folder if the table has a higher version by then, and its log still does not name it.

The writer loads the table, then looks for the mark, then commits the version after the loaded one unless another writer
has it. If it did not see the mark, it had loaded no later version than the noted one. So its commit is at the latest
the version after the noted one, which exists when the second pass deletes. Either that version was this writer's, and
the log names the folder, or it was another one's, and the commit fails. The writer also checks that its files exist,
since gc deletes them before the mark. So no version of the table names a file that gc deletes, however long a process
or a request was paused. The minimum age only keeps gc from giving up folders that are being written.

A folder also stays if the ledger remembers a commit that named it, since that commit may have been overwritten: a
publish then needs its files to put it back, see `penstock.pipeline.overwritten`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.ledger import Ledger
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.batch_record import COMPACTED_FOLDER
from penstock.pipeline.maintenance.gc import is_attempt_id
from penstock.pipeline.maintenance.interruption import PassEnded, interruptible
from penstock.pipeline.rewriting import MARK
from penstock.sinks.sink import TableSink
from penstock.storage.files import FileInfo, Files

NOTED = "_given_up_at"  # the table's version, loaded after the mark was written
AGE_SECONDS_MIN = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """The number of deleted items; in a dry run, of those that would be deleted."""

    folders: int = 0
    files: int = 0
    bytes: int = 0


def collect_leftovers(
    sink: TableSink,
    ledger: Ledger,
    *,
    clock: Clock,
    probe: Probe = no_probe,
    dry_run: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Leftovers:
    """Mark old folders that no commit named as given up, and delete those that an earlier pass has marked.

    ``stopped`` is called before each folder or commit; True ends the pass there.
    """
    deleted: list[Sequence[FileInfo]] = []
    with suppress(PassEnded):
        _collect_leftovers(sink, ledger, deleted, clock=clock, probe=probe, dry_run=dry_run, stopped=stopped)
    return Leftovers(
        folders=len(deleted),
        files=sum(len(files) for files in deleted),
        bytes=sum(file.size_bytes for files in deleted for file in files),
    )


def _collect_leftovers(
    sink: TableSink,
    ledger: Ledger,
    deleted: list[Sequence[FileInfo]],
    *,
    clock: Clock,
    probe: Probe,
    dry_run: bool,
    stopped: Callable[[], bool],
) -> None:
    """Do the work of `collect_leftovers`, and append the deleted files of each folder. Raises `PassEnded`."""
    root, history = sink.root, sink.history
    if history is None:  # files are only written again for tables with a history
        return
    old = _old_folders(root, clock, stopped)
    if not old:
        return
    table = history.load()
    added = (file.path for commit in interruptible(history.commits(), stopped) for file in commit.added)
    named = {path for path in added if path.startswith(f"{COMPACTED_FOLDER}/")}
    named |= set() if table is None else {file.path for file in table.logged_files()}
    remembered = ledger.table_commits.folders(sink.uri)
    for folder, files in interruptible(old.items(), stopped):
        if table is None or folder in remembered or _is_named(folder, named):
            continue
        noted = _noted(root, folder)
        if noted is None:
            if not dry_run:
                _abandon(sink, folder)
                probe(Step.LEFTOVER_MARKED)
        elif table.version > noted:
            deleted.append([file for file in files if not file.path.startswith(f"{folder}/{MARK}")])
            if not dry_run:
                _delete(root, folder, files, probe)


def _old_folders(root: Files, clock: Clock, stopped: Callable[[], bool]) -> Mapping[str, Sequence[FileInfo]]:
    """Return the files of each folder that was last written to long ago."""
    found: dict[str, Sequence[FileInfo]] = {}
    for name in interruptible(root.names(COMPACTED_FOLDER), stopped):
        if not (name.endswith("/") and is_attempt_id(name.rstrip("/"))):
            continue  # not a folder of ours
        folder = f"{COMPACTED_FOLDER}/{name.rstrip('/')}"
        files = list(root.list(folder))
        written = [file.modified_at for file in files if not file.path.startswith(f"{folder}/{MARK}")]
        if clock.now() - max(written, default=0.0) > AGE_SECONDS_MIN:
            found[folder] = files
    return found


def _is_named(folder: str, named: Collection[str]) -> bool:
    return any(path.startswith(f"{folder}/") for path in named)


def _noted(root: Files, folder: str) -> int | None:
    try:
        return int(root.read(f"{folder}/{NOTED}"))
    except (FileNotFoundError, ValueError):  # missing, or not fully written
        return None


def _abandon(sink: TableSink, folder: str) -> None:
    """Write the mark, then the table's version as loaded after it."""
    sink.root.write(f"{folder}/{MARK}", b"")
    table = sink.load()
    if table is not None:
        sink.root.write(f"{folder}/{NOTED}", str(table.version).encode())


def _delete(root: Files, folder: str, files: Sequence[FileInfo], probe: Probe) -> None:
    """Delete the data first and the mark last: a writer that resumes in between still finds the mark."""
    probe(Step.DELETING)
    marks = [f"{folder}/{MARK}", f"{folder}/{NOTED}"]
    root.delete(file.path for file in files if file.path not in marks)
    root.delete(marks)
    root.prune(folder)
    probe(Step.DELETED)

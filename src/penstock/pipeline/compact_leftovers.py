"""Deleting what compactions left that died before their commit.

No ledger knows a compaction, so gc takes two passes over a folder below ``compacted/`` that no version of the table's
log names:

1. It writes a mark into the folder, then loads the table and notes the version in a second file.
2. A later pass deletes the folder if the table has a higher version by then, and its log still does not name it.

A compaction loads the table, then looks for the mark, then commits the version after the loaded one if nobody else has
it. If it did not see the mark, it had loaded no later version than the noted one. So its commit is the version after
the noted one at the latest, which exists when the second pass deletes: it was this compaction's, and the log names the
folder, or it was another's, and the commit fails. It also looks for its files, which are gone before the mark is. So
no version of the table names a file that gc deletes. This holds however long a process or a request was halted. The age
only keeps gc from giving up compactions that are at work.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ulid import ULID

from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.layout import COMPACTED_FOLDER
from penstock.sinks.delta import DeltaTableSink
from penstock.sinks.delta_log import added_below
from penstock.storage.files import FileInfo, Files

MARK = "_given_up"  # its presence tells the compaction that it must not commit
NOTED = "_given_up_at"  # the version of the table that was loaded after the mark was there
AGE_SECONDS_MIN = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What a pass deleted, or would delete."""

    folders: int = 0
    files: int = 0
    bytes: int = 0


def is_given_up(root: Files, folder: str, files: Collection[str]) -> bool:
    """Return True if gc has given up the compaction that wrote these files, which must not commit then.

    The mark is looked for first: gc deletes it last.
    """
    return root.stat(f"{folder}/{MARK}") is not None or any(root.stat(file) is None for file in files)


def collect_leftovers(
    sink: DeltaTableSink, *, clock: Clock, probe: Probe = no_probe, dry_run: bool = False
) -> Leftovers:
    """Give up old compactions that never committed, and delete those that an earlier pass gave up."""
    root = sink.root
    old = _old_folders(root, clock)
    if not old:
        return Leftovers()
    deleted: list[Sequence[FileInfo]] = []
    table = sink.load()
    named = added_below(root, COMPACTED_FOLDER)
    named |= set() if table is None else {file.path for file in table.logged_files()}
    for folder, files in old.items():
        if table is None or _is_named(folder, named):
            continue
        noted = _noted(root, folder)
        if noted is None:
            if not dry_run:
                _give_up(sink, folder)
                probe(Step.LEFTOVER_MARKED)
        elif table.version > noted:
            deleted.append([file for file in files if not file.path.startswith(f"{folder}/{MARK}")])
            if not dry_run:
                _delete(root, folder, files, probe)
    return Leftovers(
        folders=len(deleted),
        files=sum(len(files) for files in deleted),
        bytes=sum(file.size_bytes for files in deleted for file in files),
    )


def _old_folders(root: Files, clock: Clock) -> Mapping[str, Sequence[FileInfo]]:
    """By folder, the files of those that nobody has written to for long."""
    found: dict[str, Sequence[FileInfo]] = {}
    for name in root.names(COMPACTED_FOLDER):
        if not (name.endswith("/") and _is_ulid(name.rstrip("/"))):
            continue  # not of our making
        folder = f"{COMPACTED_FOLDER}/{name.rstrip('/')}"
        files = list(root.list(folder))
        written = [file.modified_at for file in files if not file.path.startswith(f"{folder}/{MARK}")]
        if clock.now() - max(written, default=0.0) > AGE_SECONDS_MIN:
            found[folder] = files
    return found


def _is_ulid(name: str) -> bool:
    try:
        return str(ULID.from_str(name)) == name
    except ValueError:
        return False


def _is_named(folder: str, named: Collection[str]) -> bool:
    return any(path.startswith(f"{folder}/") for path in named)


def _noted(root: Files, folder: str) -> int | None:
    try:
        return int(root.read(f"{folder}/{NOTED}"))
    except (FileNotFoundError, ValueError):  # none, or one that was not written to its end
        return None


def _give_up(sink: DeltaTableSink, folder: str) -> None:
    """Write the mark, and then the version that the table has after it."""
    sink.root.write(f"{folder}/{MARK}", b"")
    table = sink.load()
    if table is not None:
        sink.root.write(f"{folder}/{NOTED}", str(table.version).encode())


def _delete(root: Files, folder: str, files: Sequence[FileInfo], probe: Probe) -> None:
    """Delete the data first and the mark last: a compaction that wakes up in between still finds it."""
    probe(Step.DELETING)
    marks = [f"{folder}/{MARK}", f"{folder}/{NOTED}"]
    root.delete(file.path for file in files if file.path not in marks)
    root.delete(marks)
    root.prune(folder)
    probe(Step.DELETED)

"""Garbage collection: delete files that no batch will ever name.

Safe without any timing assumption. An attempt is first abandoned in the ledger, durably, and can then never commit;
only after that are its files deleted. Open attempts are not touched, whichever process owns them. A slow writer may
refill a folder after it was emptied, so every sweep lists again. Nothing else in Penstock deletes data files of a
table, except leftovers of compactions (see `compact`).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.errors import TableError, TemporaryError
from penstock.events import AttemptAbandoned, Bus
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.batch_record import DATA_FOLDER, TOMBSTONES_FOLDER, attempt_of, forget
from penstock.pipeline.maintenance.interruption import PassEnded, interruptible
from penstock.sinks.manifest import decode
from penstock.storage.files import FileInfo, Files

_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}")  # parsing each name makes a sweep thirty times as long (measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedGarbage:
    """The number of deleted items; in a dry run, of those that would be deleted."""

    attempts: int
    files: int
    bytes: int
    compactions: int = 0  # compactions that died before their commit
    unknown: tuple[str, ...]  # not touched: not named after an attempt of this pipeline


def collect(
    ledger: Ledger,
    *,
    pipeline: str,
    roots: Sequence[Files],
    work: Files,
    bus: Bus,
    probe: Probe,
    dry_run: bool = False,
    stragglers: bool = True,
    stopped: Callable[[], bool] = lambda: False,
) -> CollectedGarbage:
    """Delete the files of abandoned attempts in tables and work folder, and the work of committed attempts.

    Args:
        roots: The first is that of the rows, where the records of batches lie.
        stragglers: Also delete files of committed attempts that their batch does not name (earlier runs, late writers).
            This lists every attempt's folder. Without it, unknown files are not reported either.
        stopped: Called before each unit of work, such as an attempt; True ends the pass there.

    Attempts with an expired lease are abandoned first. Raises `TemporaryError` if files cannot be listed or deleted.
    """
    sweep = _Sweep(probe, dry_run=dry_run)
    unknown: Sequence[str] = ()
    with suppress(PassEnded):
        if not dry_run:
            for attempt_id in ledger.abandon_expired(pipeline):
                bus.emit(AttemptAbandoned(pipeline=pipeline, attempt_id=attempt_id, reason="its lease ran out"))
        unknown = _swept(sweep, ledger, pipeline, roots, work, stragglers=stragglers, stopped=stopped)
    return CollectedGarbage(
        attempts=sweep.attempts,
        files=sweep.files,
        bytes=sweep.bytes,
        unknown=tuple(sorted(unknown)) if stragglers else (),
    )


def _swept(
    sweep: "_Sweep",
    ledger: Ledger,
    pipeline: str,
    roots: Sequence[Files],
    work: Files,
    *,
    stragglers: bool,
    stopped: Callable[[], bool],
) -> Sequence[str]:
    """Delete the files of every attempt that is over. Return the unknown folders. Raises `PassEnded`."""
    with _left_for_later("listed"):
        found, unknown = _listed(roots, work, stopped)
    abandoned = found.keys() & set(ledger.abandoned_attempts(pipeline))
    others = [id for id in found if id not in abandoned and (stragglers or found[id].work)]
    rows = {id: ledger.attempt(id) for id in interruptible(others, stopped)}
    ours = {id: row for id, row in rows.items() if row is not None and row.pipeline == pipeline}
    committed = {id for id, row in ours.items() if row.state is AttemptState.COMMITTED}
    cleared = abandoned | committed if stragglers else abandoned
    named = _named_files(ledger, pipeline, {id for id in cleared if found[id].data}, stopped)
    if not sweep.dry_run:  # before the data folders, by which a later sweep finds the attempt
        for attempt_id in interruptible(sorted(abandoned), stopped):
            with _left_for_later("deleted"):
                forget(roots[0], [attempt_id])
    for attempt_id in interruptible(sorted(abandoned | committed), stopped):
        folders = found[attempt_id]
        sweep.delete_attempt(
            data=folders.data if attempt_id in cleared else (),
            work=folders.work,
            named=named,
            is_abandoned=attempt_id in abandoned,
        )
    strange = [str(folder) for id in others if id not in ours for folder in _all(found[id])]
    return [*unknown, *strange]


def is_attempt_id(name: str) -> bool:
    """Return True for a ULID as Penstock writes it. No other name is ever used in a path to delete."""
    return _ULID.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptFolder:
    """The folder of one attempt, below the root that manifest paths are relative to."""

    root: Files
    path: str

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"


@dataclass(slots=True, kw_only=True)
class _AttemptFolders:
    """All folders named after one attempt."""

    data: list[_AttemptFolder] = field(default_factory=list)  # in the tables
    work: list[_AttemptFolder] = field(default_factory=list)


class _Sweep:
    """The deletion of files, or in a dry run only their count. Used by one thread."""

    def __init__(self, probe: Probe, *, dry_run: bool) -> None:
        self._probe = probe
        self.dry_run = dry_run
        self.attempts = 0
        self.files = 0
        self.bytes = 0

    def delete_attempt(
        self,
        *,
        data: Sequence[_AttemptFolder],
        work: Sequence[_AttemptFolder],
        named: Collection[str],
        is_abandoned: bool,
    ) -> None:
        """Delete all but the named files in one attempt's folders. ``is_abandoned``: count it even if empty."""
        with _left_for_later("listed"):
            doomed = [(folder, _doomed(folder, named)) for folder in data]
            doomed += [(folder, _doomed(folder, ())) for folder in work]
        if not (any(files for _, files in doomed) or is_abandoned or work):
            return
        self.attempts += 1
        if not self.dry_run:
            self._probe(Step.DELETING)
        for folder, files in doomed:
            self.files += len(files)
            self.bytes += sum(file.size_bytes for file in files)
            if not self.dry_run:
                _delete(folder, files)
        if not self.dry_run:
            self._probe(Step.DELETED)


def _delete(folder: _AttemptFolder, files: Sequence[FileInfo]) -> None:
    with _left_for_later("deleted"):
        folder.root.delete(file.path for file in files)
        folder.root.prune(folder.path)


@contextmanager
def _left_for_later(done: str) -> Iterator[None]:
    """Turn a `TableError` into a `TemporaryError`: undeletable garbage must not stop the writing of the table."""
    try:
        yield
    except TableError as error:
        raise TemporaryError(f"garbage cannot be {done}: {error}") from error


def _doomed(folder: _AttemptFolder, named: Collection[str]) -> Sequence[FileInfo]:
    return [file for file in folder.root.list(folder.path) if file.path not in named]


def _listed(
    roots: Sequence[Files], work: Files, stopped: Callable[[], bool]
) -> tuple[Mapping[str, _AttemptFolders], list[str]]:
    """Return folders by the attempt that they are named after, and the paths of everything else."""
    found: defaultdict[str, _AttemptFolders] = defaultdict(_AttemptFolders)
    unknown: list[str] = []
    deletes = [(roots[0], TOMBSTONES_FOLDER)]
    for root, parent in interruptible([*((root, DATA_FOLDER) for root in roots), *deletes, (work, "")], stopped):
        if root.stat(parent) is not None:  # a file or a link, not a folder of ours
            unknown.append(f"{root}/{parent}".rstrip("/"))
            continue
        for name in root.names(parent):
            path = f"{parent}/{name}".strip("/")
            folder, attempt_id = _AttemptFolder(root=root, path=path), name.rstrip("/")
            if not (name.endswith("/") and is_attempt_id(attempt_id)):
                unknown.append(str(folder))
            elif parent:
                found[attempt_id].data.append(folder)
            else:
                found[attempt_id].work.append(folder)
    return dict(found), unknown


def _named_files(
    ledger: Ledger, pipeline: str, attempt_ids: Collection[str], stopped: Callable[[], bool]
) -> frozenset[str]:
    """Return the files in these attempts' folders that a committed batch names. An abandoned attempt should have none;
    the check prevents data loss if a defect elsewhere breaks that rule."""
    named: set[str] = set()
    for batch in interruptible(ledger.batches_after(pipeline, 0) if attempt_ids else (), stopped):
        manifests = (batch.record.manifest, batch.record.quarantine_manifest, batch.record.tombstones)
        files = [file for manifest in manifests for file in decode(manifest)]
        named.update(file.path for file in files if attempt_of(file.path) in attempt_ids)
    return frozenset(named)


def _all(folders: _AttemptFolders) -> Sequence[_AttemptFolder]:
    return [*folders.data, *folders.work]

"""Garbage: files that no batch will ever name.

Safe without any timing. An attempt is abandoned in the ledger first, durably, and can then never commit; deleting comes
after. An attempt that is open is not touched, whoever's it is. A slow writer may refill a folder after it was emptied,
so every sweep lists again. Nothing else in Penstock deletes data.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ulid import ULID

from penstock.errors import TemporaryError
from penstock.events import AttemptAbandoned, Bus
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.layout import DATA_FOLDER
from penstock.sinks.manifest import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was deleted, or would be by a sweep that is not dry."""

    attempts: int
    files: int
    bytes: int
    unknown: tuple[Path, ...]  # left alone: not named after an attempt of this pipeline


@dataclass(slots=True, kw_only=True)
class _Folders:
    """What lies on disk under one attempt's id."""

    data: list[tuple[Path, Path]] = field(default_factory=list)  # a table's root, and the attempt's folder in it
    work: list[Path] = field(default_factory=list)


def collect(
    ledger: Ledger,
    *,
    pipeline: str,
    roots: Sequence[Path],
    work_root: Path,
    bus: Bus,
    probe: Probe,
    dry_run: bool = False,
    stragglers: bool = True,
) -> Collected:
    """Delete what abandoned attempts left in the tables' roots and in the work folder, and the work of committed ones.

    With ``stragglers`` also the files of committed attempts that their batch does not name (earlier runs, late
    writers), which takes a look into every attempt's folder; without, nothing is reported as unknown either. Attempts
    past their lease are given up first. Raises `TemporaryError` where a file cannot be deleted.
    """
    if not dry_run:
        for attempt_id in ledger.abandon_expired(pipeline):
            bus.emit(AttemptAbandoned(pipeline=pipeline, attempt_id=attempt_id, reason="its lease ran out"))
    found, unknown = _listed(roots, work_root)
    abandoned = found.keys() & set(ledger.abandoned_attempts(pipeline))
    others = [id for id in found if id not in abandoned and (stragglers or found[id].work)]
    rows = {id: ledger.attempt(id) for id in others}
    ours = {id: row for id, row in rows.items() if row is not None and row.pipeline == pipeline}
    committed = {id for id, row in ours.items() if row.state is AttemptState.COMMITTED}
    looked_into = abandoned | committed if stragglers else abandoned
    named = _named_files(ledger, pipeline, {id for id in looked_into if found[id].data})
    sweep = _Sweep(probe, dry_run=dry_run)
    for attempt_id in sorted(abandoned | committed):
        folders = found[attempt_id]
        sweep.attempt(
            data=folders.data if attempt_id in looked_into else (),
            work=folders.work,
            named=named,
            sure=attempt_id in abandoned,
        )
    strange = [path for id in others if id not in ours for path in _paths(found[id])] if stragglers else []
    return Collected(
        attempts=sweep.attempts,
        files=sweep.files,
        bytes=sweep.bytes,
        unknown=tuple(sorted([*unknown, *strange])) if stragglers else (),
    )


class _Sweep:
    """Deletes, or only counts. Used by one thread."""

    def __init__(self, probe: Probe, *, dry_run: bool) -> None:
        self._probe = probe
        self._dry_run = dry_run
        self.attempts = 0
        self.files = 0
        self.bytes = 0

    def attempt(
        self, *, data: Sequence[tuple[Path, Path]], work: Sequence[Path], named: Collection[str], sure: bool
    ) -> None:
        """Clear one attempt's folders of all files but the named ones. ``sure``: it is abandoned, so all of it goes."""
        doomed = [path for root, folder in data for path in _files(folder) if _relative(path, root) not in named]
        doomed += [path for folder in work for path in _files(folder)]
        if not (doomed or sure or work):
            return
        self.attempts += 1
        if not self._dry_run:
            self._probe(Step.DELETING)
        for path in doomed:
            self._file(path)
        if not self._dry_run:
            for folder in [*(folder for _, folder in data), *work]:
                _remove_empty(folder)
            self._probe(Step.DELETED)

    def _file(self, path: Path) -> None:
        try:
            size_bytes = path.lstat().st_size
            if not self._dry_run:
                path.unlink()
        except FileNotFoundError:
            return  # another sweep was faster
        except OSError as error:
            raise TemporaryError(f"{path} is garbage and cannot be deleted: {error.strerror}") from error
        self.files += 1
        self.bytes += size_bytes


def _listed(roots: Sequence[Path], work_root: Path) -> tuple[Mapping[str, _Folders], list[Path]]:
    """Folders by the attempt they are named after, and what is named otherwise."""
    found: defaultdict[str, _Folders] = defaultdict(_Folders)
    unknown: list[Path] = []
    for root in roots:
        for path, known in _entries(root / DATA_FOLDER):
            if known:
                found[path.name].data.append((root, path))
            else:
                unknown.append(path)
    for path, known in _entries(work_root):
        if known:
            found[path.name].work.append(path)
        else:
            unknown.append(path)
    return dict(found), unknown


def _entries(folder: Path) -> Iterator[tuple[Path, bool]]:
    """What lies in a folder, and whether it is a folder named as attempts are. A link is never one."""
    if folder.is_symlink():
        yield folder, False
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield Path(entry.path), is_attempt_id(entry.name) and entry.is_dir(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise TemporaryError(f"{folder} cannot be listed: {error.strerror}") from error


def is_attempt_id(name: str) -> bool:
    """Whether it is a ULID as we write it; nothing else is ever made part of a path to delete."""
    try:
        return str(ULID.from_str(name)) == name
    except ValueError:
        return False


def _named_files(ledger: Ledger, pipeline: str, attempt_ids: Collection[str]) -> frozenset[str]:
    """Every file in these attempts' folders that any committed batch names. By construction an abandoned attempt has
    none; that it is looked up nevertheless is what stands between a defect elsewhere and lost data."""
    named: set[str] = set()
    for batch in ledger.batches_after(pipeline, 0) if attempt_ids else ():
        files = [*decode(batch.manifest), *decode(batch.quarantine_manifest)]
        named.update(file.path for file in files if _attempt_of(file.path) in attempt_ids)
    return frozenset(named)


def _attempt_of(path: str) -> str:
    return path.removeprefix(f"{DATA_FOLDER}/").partition("/")[0]


def _paths(folders: _Folders) -> list[Path]:
    return [*(folder for _, folder in folders.data), *folders.work]


def _files(folder: Path) -> Iterator[Path]:
    """Everything in the folder that is no folder, links to folders included, which are not followed."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _remove_empty(folder: Path) -> None:
    """Remove the folder and those in it, as far as they are empty: a late writer may be putting files back."""
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()

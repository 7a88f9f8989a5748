"""Walk a folder and yield the objects in it as references, without opening any file.

The order is always the same, and chunks are bounded. Hidden and excluded entries and anything but regular files are
left out; of the others, selection.py decides by their real paths. A report counts everything that was left out or could
not be read.

Links to files are followed to the real path, which must be within the store's roots; a file reached under two names is
one object. Links to folders are not followed, so there are no loops.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from penstock.errors import TemporaryError, UsageError
from penstock.objects.local_store import AnyPath, LocalStore, reference
from penstock.objects.reference import ObjectRef, decode_key, encode_key
from penstock.objects.selection import Selection, SkipReason

CHUNK_OBJECTS = 500
TABLE_FOLDERS = ("_delta_log", "_penstock")  # a folder that holds one is a table and no source, by any program
PROBLEMS_MAX = 100  # kept as text; further ones are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """The result of a walk. Every entry is found, ignored for a reason, or a problem; none is dropped silently."""

    found: int
    size_bytes: int  # of the objects found
    ignored: Mapping[SkipReason, int]  # locally, a hidden or excluded folder counts once, with all its content
    problems: Sequence[str]  # entries that could not be read or were refused: sentences, at most 100
    problems_count: int
    excluded: Sequence[str] = ()  # the excluded folders: paths or S3 addresses, in the order of the walk


@dataclass(slots=True)
class ScanCounts:
    """The counts of a walk in progress. Written by the thread that walks."""

    found: int = 0
    size_bytes: int = 0
    ignored: Counter[SkipReason] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    problems_count: int = 0
    excluded: dict[str, None] = field(default_factory=dict)

    def add_found(self, ref: ObjectRef) -> None:
        self.found += 1
        self.size_bytes += ref.size_bytes

    def add_ignored(self, reason: SkipReason) -> None:
        self.ignored[reason] += 1

    def add_excluded(self, folder: str) -> None:
        self.add_ignored(SkipReason.EXCLUDED)
        self.excluded[folder] = None

    def add_problem(self, problem: str) -> None:
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def report(self) -> ScanReport:
        return ScanReport(
            found=self.found,
            size_bytes=self.size_bytes,
            ignored=MappingProxyType(dict(self.ignored)),
            problems=tuple(self.problems),
            problems_count=self.problems_count,
            excluded=tuple(self.excluded),
        )


_ALL = Selection(in_s3=False)
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_TABLE_FOLDERS = tuple(b"/" + os.fsencode(name) for name in TABLE_FOLDERS)


@dataclass(frozen=True, slots=True)
class _FolderToWalk:
    """A folder to be walked later."""

    path: bytes


@dataclass(frozen=True, slots=True)
class _ExcludedFolder:
    """A table, or an excluded folder."""

    path: bytes


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str


class _PathEntry:
    """A replacement for `os.DirEntry` for one path. Raises OSError if the path does not exist."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.name = os.path.basename(path)  # noqa: PTH119 - pathlib takes no bytes
        self._status = os.lstat(path)

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:  # noqa: ARG002 - as `os.DirEntry` has it
        return self._status

    def is_file(self, *, follow_symlinks: bool) -> bool:  # noqa: ARG002 - as above
        return stat.S_ISREG(self._status.st_mode)

    def is_dir(self, *, follow_symlinks: bool) -> bool:  # noqa: ARG002 - as above
        return stat.S_ISDIR(self._status.st_mode)

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._status.st_mode)


class Scanner:
    """A scanner of one folder. Each call of `chunks` starts a new walk; `report` describes the latest one."""

    def __init__(
        self,
        folder: AnyPath,
        *,
        store: LocalStore,
        excluded: Iterable[AnyPath] = (),
        selection: Selection = _ALL,
        chunk_objects: int = CHUNK_OBJECTS,
    ) -> None:
        """``excluded`` folders need not exist. Raises `UsageError` if ``folder`` cannot be listed."""
        self._selection = selection
        self._folder = os.path.realpath(os.fsencode(folder))
        self._store = store
        self._excluded = frozenset(os.path.realpath(os.fsencode(path)) for path in excluded)
        self._excluded_prefixes = tuple(path.rstrip(b"/") + b"/" for path in self._excluded)
        self._chunk_objects = chunk_objects
        self._counts = ScanCounts()
        self._linked: set[bytes] = set()  # targets that this walk has yielded through a link
        _check_folder(self._folder)

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """Walk and yield chunks of up to ``chunk_objects``: the files of a folder by name, then its subfolders by name.

        Holds the entries of one folder at a time in memory, never those of the whole tree.
        """
        self._begin_anew()
        objects = self._walk(self._folder)
        while chunk := tuple(islice(objects, self._chunk_objects)):
            yield chunk

    def at(self, path: AnyPath) -> Iterator[ObjectRef]:
        """Yield the objects that a walk would find at this path (a file or a folder). Starts a new report."""
        self._begin_anew()
        named = os.fsencode(path)
        if not named.startswith(self._folder.rstrip(b"/") + b"/") or self._is_skipped(named):
            return
        try:
            found = self._classify(_PathEntry(named))
        except OSError:  # deleted again, or unreadable: the next walk reports it
            return
        if isinstance(found, ObjectRef):
            yield found
        elif isinstance(found, _FolderToWalk):
            yield from self._walk(found.path)

    def report(self) -> ScanReport:
        """Return the report of the walk so far."""
        return self._counts.report()

    def _begin_anew(self) -> None:
        self._counts = ScanCounts()
        self._linked = set()

    def _is_skipped(self, path: bytes) -> bool:
        """Return True if no walk reaches this path: a folder above it is hidden, excluded, a table or a link."""
        folder = os.path.dirname(path)  # noqa: PTH120 - pathlib takes no bytes
        if os.path.realpath(folder) != folder:
            return True
        while folder != self._folder:
            folder, name = os.path.split(folder)
            if name.startswith(b".") or (whole := folder + b"/" + name) in self._excluded or _is_table(whole):
                return True
        return False

    def _walk(self, start: bytes) -> Iterator[ObjectRef]:
        pending = [start]
        while pending:
            folders: list[bytes] = []
            for entry in self._list(pending.pop()):
                match self._classify(entry):
                    case ObjectRef() as ref:
                        self._counts.add_found(ref)
                        yield ref
                    case SkipReason() as reason:
                        self._counts.add_ignored(reason)
                    case _ExcludedFolder() as excluded:
                        self._counts.add_excluded(_show(excluded.path))
                    case _Problem() as problem:
                        self._counts.add_problem(problem.text)
                    case _FolderToWalk() as folder:
                        folders.append(folder.path)
            pending.extend(reversed(folders))

    def _list(self, folder: bytes) -> Sequence[os.DirEntry[bytes]]:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            only = self._selection.one_name  # its neighbours are not left out but none of the source's
            return found if only is None else [entry for entry in found if entry.name == encode_key(only)]
        except FileNotFoundError as error:
            if folder == self._folder:  # an empty walk would mean that the source is empty
                raise TemporaryError(
                    f"{_show(folder)} existed before and does not exist now; is its file system mounted?"
                ) from error
            self._counts.add_ignored(SkipReason.VANISHED)
        except OSError as error:
            self._counts.add_problem(_problem(folder, error).text)
        return ()

    def _classify(
        self, entry: "os.DirEntry[bytes] | _PathEntry"
    ) -> ObjectRef | SkipReason | _Problem | _ExcludedFolder | _FolderToWalk:
        try:
            if entry.name.startswith(b"."):
                return SkipReason.HIDDEN
            if entry.is_file(follow_symlinks=False):
                return self._selected(reference(entry.path, entry.stat(follow_symlinks=False)))
            if entry.is_symlink():
                return self._follow(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                return SkipReason.SPECIAL
            if entry.path in self._excluded or _is_table(entry.path):
                return _ExcludedFolder(entry.path)
            return self._selection.leaves_out_folder(decode_key(entry.path)) or _FolderToWalk(entry.path)
        except FileNotFoundError:
            return SkipReason.VANISHED
        except OSError as error:
            return _problem(entry.path, error)

    def _selected(self, ref: ObjectRef) -> ObjectRef | SkipReason:
        return self._selection.left_out(ref.key, ref.size_bytes) or ref

    def _follow(self, link: bytes) -> ObjectRef | SkipReason | _Problem | _ExcludedFolder:
        try:
            target = os.path.realpath(link, strict=True)
            status = os.stat(target, follow_symlinks=False)  # noqa: PTH116 - pathlib takes no bytes
        except OSError as error:
            return SkipReason.LINK_BROKEN if error.errno in _LEADS_NOWHERE else _problem(link, error)
        if folder := self._excluding(target):
            return _ExcludedFolder(folder)
        if self._is_walked(target) or target in self._linked:
            return SkipReason.LINK_TO_SCANNED
        if stat.S_ISDIR(status.st_mode):
            return _Problem(f"{_show(link)}: links to folders are not followed; this one leads to {_show(target)}")
        if not stat.S_ISREG(status.st_mode):
            return SkipReason.SPECIAL
        if not self._store.contains(target):
            return _Problem(f"{_show(link)}: points outside the folders that may be read, to {_show(target)}")
        self._linked.add(target)
        return self._selected(reference(target, status))

    def _excluding(self, target: bytes) -> bytes | None:
        """Return the excluded folder that is the target or contains it."""
        prefix = next((prefix for prefix in self._excluded_prefixes if (target + b"/").startswith(prefix)), None)
        return None if prefix is None else prefix.rstrip(b"/") or b"/"

    def _is_walked(self, target: bytes) -> bool:
        """Return True if the walk reaches the target without the link."""
        prefix = self._folder.rstrip(b"/") + b"/"
        return target == self._folder or (target.startswith(prefix) and b"/." not in target[len(prefix) - 1 :])


def _check_folder(folder: bytes) -> None:
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise UsageError(
            f"{_show(folder)} cannot be scanned: {error.strerror}; give a folder that you may list"
        ) from error


def _is_table(folder: bytes) -> bool:
    """Return True if a folder is a table or holds a pipeline's data: its files are never source objects."""
    # Check its name too: the source's own root is walked, and a mistyped command may have created such a folder in it.
    return folder.endswith(_TABLE_FOLDERS) or any(os.path.isdir(folder + own) for own in _TABLE_FOLDERS)  # noqa: PTH112 - pathlib takes no bytes


def _problem(path: bytes, error: OSError) -> _Problem:
    return _Problem(f"{_show(path)}: {error.strerror or error}")


def _show(path: bytes) -> str:
    return path.decode("utf-8", errors="backslashreplace")

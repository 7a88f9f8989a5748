"""The root folder of a local source. Its absence is a fault of the machine, not of the files below it.

If a mount is missing, its folder is missing or empty: every file below it seems deleted, and none is. The same holds
for a file system that is mounted on a folder below the root. There an empty folder proves nothing, since people delete
all files of a folder; but Linux lists what is mounted, so a mount that was listed once and is not any more is missing.
"""

import os
import re

from penstock.errors import PartAway, TemporaryError

_Identity = tuple[int, int]  # device and inode
_MOUNTS = "/proc/self/mountinfo"  # see proc_pid_mountinfo(5)
_OCTAL = re.compile(rb"\\([0-7]{3})")


class LocalRoot:
    """One root, and which folder of that name held files when it was last inspected. Any thread may use it."""

    __slots__ = ("_devices", "_folder", "_mounts", "_remembers", "_seen", "_suspect")

    def __init__(self, root: bytes, *, remembers: bool = True) -> None:
        """``root`` is an absolute path; if it is a file, the folder around it counts.

        ``remembers=False``: only a missing folder counts as away. For executors, which use the folder for one task
        only, and on hosts with other device numbers; the driver checks the rest.
        """
        self._folder = root if os.path.isdir(root) or not os.path.isfile(root) else os.path.dirname(root)  # noqa: PTH112, PTH113, PTH120 - bytes
        self._remembers = remembers
        self._seen: _Identity | None = None
        self._suspect = False
        self._mounts: frozenset[bytes] = frozenset()  # seen below the folder; replaced as a whole, by any thread
        self._devices: set[int] = set()  # of files that were found; any thread may add to it
        if remembers:
            self._mounts = _mounts_below(self._folder)
            if not _is_empty(self._folder):
                self._seen = _identity(self._folder)

    def check(self) -> None:
        """Raise `TemporaryError` if the folder is missing, or is not the one that held files before."""
        found = _identity(self._folder)
        if found is None:
            self._suspect = True
            raise TemporaryError(f"the source folder {_shown(self._folder)} is not there; is its file system mounted?")
        if not self._remembers:
            return
        if self._seen is None and not _is_empty(self._folder):
            self._seen = found
        if self._seen is not None and found != self._seen:
            self._suspect = True
            raise TemporaryError(
                f"the source folder {_shown(self._folder)} is another folder than before, and files are missing in it; "
                "is its file system mounted? If it was replaced on purpose, restart the worker."
            )

    def check_missing(self, path: bytes) -> None:
        """Raise `TemporaryError` as `check` does, if the folder has been empty since this process began, and `PartAway`
        if the file at ``path`` lay in a file system that was mounted below the folder and is not mounted now.

        Call it when a file is missing, before that is taken for a fact: an empty folder may be a mount point.
        """
        self.check()
        if not self._remembers:
            return
        if self._seen is None:
            raise TemporaryError(
                f"the source folder {_shown(self._folder)} is empty, and was empty when this process began; is its "
                "file system mounted? If its files were deleted on purpose, put a file named .keep into it."
            )
        mounted = _mounts_below(self._folder)
        self._mounts |= mounted
        for mount in self._mounts - mounted:
            if path.startswith(mount + b"/"):
                raise PartAway(
                    f"nothing is mounted on {_shown(mount)} any more, and files are missing in it. If that is on "
                    "purpose, restart the worker."
                )

    def found(self, device: int | None = None) -> None:
        """Record that a file was found below the folder, which therefore is the source, even if it was replaced.

        ``device`` is the file's. If it is new, a file system may have been mounted, so the list of mounts is read.
        """
        if self._suspect or self._seen is None:
            self._seen, self._suspect = _identity(self._folder), False
        if self._remembers and (device is None or device not in self._devices):
            self._mounts |= _mounts_below(self._folder)
            if device is not None:
                self._devices.add(device)


def _identity(folder: bytes) -> _Identity | None:
    try:
        status = os.stat(folder)  # noqa: PTH116 - pathlib takes no bytes
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_empty(folder: bytes) -> bool:
    """Return True if the folder is known to hold nothing."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _mounts_below(folder: bytes) -> frozenset[bytes]:
    """Return the folders below this one on which something is mounted; none if the system does not list them."""
    try:
        with open(_MOUNTS, "rb") as lines:  # noqa: PTH123 - a list from the kernel, not a file
            mounts = [_mount_point(line) for line in lines if not _is_automatic(line)]
    except OSError:
        return frozenset()
    prefix = folder.rstrip(b"/") + b"/"
    return frozenset(mount for mount in mounts if mount.startswith(prefix) and mount != prefix)


def _mount_point(line: bytes) -> bytes:
    return _OCTAL.sub(lambda escaped: bytes([int(escaped[1], 8)]), line.split(b" ", 5)[4])


def _is_automatic(line: bytes) -> bool:
    """Return True for an autofs entry, which only mounts the actual file system at its first use."""
    return line.partition(b" - ")[2].startswith(b"autofs ")


def _shown(folder: bytes) -> str:
    return os.fsdecode(folder).encode("utf-8", "backslashreplace").decode()

"""The root folder of a local source, and what its absence means: a fault of the machine, not of the files below it.

A mount that is away leaves no folder or an empty one. Every file below it then looks deleted, and none is.
"""

import os

from penstock.errors import TemporaryError

_Identity = tuple[int, int]  # device and inode


class LocalRoot:
    """One root, and which folder of that name held files when it was last inspected. Any thread may use it."""

    __slots__ = ("_folder", "_remembers", "_seen", "_suspect")

    def __init__(self, root: bytes, *, remembers: bool = True) -> None:
        """``root`` is an absolute path; if it is a file, the folder around it counts.

        ``remembers=False``: only a missing folder counts as away. For executors, which see the folder for the length
        of a task and on other hosts under other numbers of devices; the driver judges the rest.
        """
        self._folder = root if os.path.isdir(root) or not os.path.isfile(root) else os.path.dirname(root)  # noqa: PTH112, PTH113, PTH120 - bytes
        self._remembers = remembers
        self._seen: _Identity | None = None
        self._suspect = False
        if remembers and not _is_empty(self._folder):
            self._seen = _identity(self._folder)

    def check(self) -> None:
        """Raise `TemporaryError` if the folder is missing, or is not the one that held files before."""
        found = _identity(self._folder)
        if found is None:
            self._suspect = True
            raise TemporaryError(f"the source folder {self._name} is not there; is its file system mounted?")
        if not self._remembers:
            return
        if self._seen is None and not _is_empty(self._folder):
            self._seen = found
        if self._seen is not None and found != self._seen:
            self._suspect = True
            raise TemporaryError(
                f"the source folder {self._name} is another folder than before, and files are missing in it; is its "
                "file system mounted? If it was replaced on purpose, restart the worker."
            )

    def check_missing(self) -> None:
        """Raise `TemporaryError` as `check` does, and if the folder has been empty since this process began.

        Call it when a file is missing, before that is taken for a fact: an empty folder may be a mount point.
        """
        self.check()
        if self._remembers and self._seen is None:
            raise TemporaryError(
                f"the source folder {self._name} is empty, and was empty when this process began; is its file system "
                "mounted? If its files were deleted on purpose, put a file named .keep into it."
            )

    def found(self) -> None:
        """Take note that a file was found below the folder: whichever folder it is now, it is the source."""
        if self._suspect or self._seen is None:
            self._seen, self._suspect = _identity(self._folder), False

    @property
    def _name(self) -> str:
        return os.fsdecode(self._folder).encode("utf-8", "backslashreplace").decode()


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

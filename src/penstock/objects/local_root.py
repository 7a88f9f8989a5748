"""The root folder of a local source, and what its absence means: a fault of the machine, not of the files below it.

A mount that is away leaves no folder or an empty one. Every file below it then looks deleted, and none is.
"""

import os
from socket import gethostname

from penstock.errors import TemporaryError

_Identity = tuple[int, int]  # device and inode


class LocalRoot:
    """One root, and which folder of that name it was when files were last found below it. Any thread may use it."""

    __slots__ = ("_folder", "_host", "_seen", "_suspect")

    def __init__(self, root: bytes) -> None:
        """``root`` is an absolute path; of a root that is a file, the folder around it counts."""
        self._folder = root if os.path.isdir(root) or not os.path.isfile(root) else os.path.dirname(root)  # noqa: PTH112, PTH113, PTH120 - bytes
        self._look()

    def __getstate__(self) -> tuple[bytes, str, _Identity | None, bool]:
        return self._folder, self._host, self._seen, self._suspect

    def __setstate__(self, state: tuple[bytes, str, _Identity | None, bool]) -> None:
        """On another host the same folder has another identity: device numbers are each kernel's own."""
        self._folder, self._host, self._seen, self._suspect = state
        if self._host != gethostname():
            self._look()

    def check(self) -> None:
        """Raise `TemporaryError` if the folder is missing, or is not the one below which files were found before.

        Call it when a file is missing, before that is taken for a fact.
        """
        found = _identity(self._folder)
        name = os.fsdecode(self._folder).encode("utf-8", "backslashreplace").decode()
        if found is None:
            self._suspect = True
            raise TemporaryError(f"the source folder {name} is not there; is its file system mounted?")
        if self._seen is None:
            self._seen = found
        if found != self._seen:
            self._suspect = True
            raise TemporaryError(
                f"the source folder {name} is another folder than before, and files are missing in it; is its file "
                "system mounted? If it was replaced on purpose, restart the worker."
            )

    def found(self) -> None:
        """Take note that a file was found below the folder: whichever folder it is now, it is the source."""
        if self._suspect:
            self._look()

    def _look(self) -> None:
        self._seen, self._suspect = _identity(self._folder), False
        self._host = gethostname()


def _identity(folder: bytes) -> _Identity | None:
    try:
        status = os.stat(folder)  # noqa: PTH116 - pathlib takes no bytes
    except OSError:
        return None
    return status.st_dev, status.st_ino

"""Commit a version of a table as a file that must not exist yet, in formats whose versions are numbered files."""

import errno

from penstock.errors import PublishConflict, TemporaryError
from penstock.storage.files import Files


def create_version(root: Files, path: str, text: bytes, *, version: int) -> None:
    """Create the file of a version.

    Raises `PublishConflict` if another writer created it, or the outcome is unknown, and `TemporaryError` if the disk
    is full.
    """
    try:
        # equal text: our own write succeeded, its reply was lost, and it was retried
        if root.write_new(path, text) or root.read(path) == text:
            return
    except (TemporaryError, FileNotFoundError) as error:
        if _has_text(root, path, text):
            return
        if getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise TemporaryError(f"the disk of the table {root.uri} is full") from error
        raise PublishConflict(f"{root.uri}: {error}") from error
    raise PublishConflict(f"{root.uri}: another writer committed version {version}")


def _has_text(root: Files, path: str, text: bytes) -> bool:
    try:
        return root.read(path) == text
    except (TemporaryError, FileNotFoundError):
        return False

"""Check whether a location may hold a Delta table, before anything is written to it."""

import os
import re
from pathlib import Path

from penstock.errors import TableError, TemporaryError
from penstock.storage.files import Files

LOG_FOLDER = "_delta_log"
_OWN_FOLDERS = frozenset({"data/", "compacted/", "_penstock/"})  # folders that Penstock creates beside a log
_MISREAD = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|%[0-9A-Fa-f]{2}")


def check_name(root: Files) -> None:
    """Raise `TableError` for a path that deltalake would read as a different one.

    With a backslash or an escape in the path, the log would be written to another folder (measured: one beside the
    parent for ``%2e%2e``). An S3 path is part of a URL, which ends at a ``?`` or ``#``: the log of ``x#y`` would be
    that of ``x``.
    """
    if _MISREAD.search(str(root)):
        raise TableError(
            f"A Delta table cannot be in {str(root)!r}: its path has a control character, a backslash, bytes that are "
            f"no UTF-8 or a percent sign that looks like an escape; give another name."
        )
    if not root.is_local and re.search(r"[?#]", str(root)):
        raise TableError(f"A Delta table cannot be in {str(root)!r}: its prefix has a ? or a #; give another name.")


def check_free(root: Files) -> None:
    """Raise `TableError` for a folder with other contents: readers of Parquet folders would mix them with the table."""
    if root.is_local and Path(str(root)).is_file():
        raise TableError(f"The table {root} is a file; give the folder that is to hold the table.")
    try:
        names = root.names()
    except (TableError, TemporaryError) as error:
        if not root.is_local:
            raise
        raise TableError(f"The folder {root} cannot be read ({error}); give another one.") from error
    others = [name for name in names if name not in _OWN_FOLDERS and not name.startswith((".", "_"))]
    if others:
        raise TableError(
            f"The folder {root} is no Delta table and not empty (it holds {others[0].rstrip('/')}); give an empty or a "
            f"new folder."
        )


def make_ready(root: Files) -> None:
    """Create a local folder; S3 needs none."""
    if root.is_local:
        Path(str(root)).mkdir(parents=True, exist_ok=True)


def check_writable(root: Files) -> None:
    """Raise `TableError` if the log, or the folder for a new one, is not writable. S3 shows that only on writing."""
    if not root.is_local:
        return
    log = Path(str(root)) / LOG_FOLDER
    folder = log if log.exists() else log.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TableError(f"The table {root.uri} cannot be written: no permission for {folder}.")

"""Which folders may hold a Delta table, looked at before anything is written to one."""

import os
import re
from pathlib import Path

from penstock.errors import TableError

_OWN_FOLDERS = frozenset({"data", "_penstock"})  # what Penstock itself puts beside a log
_MISREAD = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|%[0-9A-Fa-f]{2}")


def check_name(root: Path) -> None:
    """Raise `TableError` for a path that deltalake would read as another: with a backslash or an escape in it the log
    would land in another folder (measured: one beside the parent for ``%2e%2e``)."""
    if not _MISREAD.search(str(root)):
        return
    raise TableError(
        f"A Delta table cannot be in {str(root)!r}: its path has a control character, a backslash, bytes that are no "
        f"UTF-8 or a percent sign that looks like an escape; give another name."
    )


def check_free(root: Path) -> None:
    """Raise `TableError` for a folder that holds something else: were it to become a table, readers of Parquet folders
    would mix the two."""
    try:
        names = sorted(path.name for path in root.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise TableError(f"The table {root} is a file; give the folder that is to hold the table.") from None
    except OSError as error:
        raise TableError(f"The folder {root} cannot be read ({error.strerror}); give another one.") from error
    others = [name for name in names if name not in _OWN_FOLDERS and not name.startswith((".", "_"))]
    if others:
        raise TableError(
            f"The folder {root} is no Delta table and not empty (it holds {others[0]}); give an empty or a new folder."
        )


def check_writable(root: Path) -> None:
    """Raise `TableError` where the log, or the folder that is to get one, may not be written to."""
    log = root / "_delta_log"
    folder = log if log.exists() else root
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TableError(f"The table {root.as_uri()} cannot be written: no permission for {folder}.")

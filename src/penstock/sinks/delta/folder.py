"""The folder of a Delta table's log, and the paths at which no table can be."""

import re

from penstock.errors import TableError
from penstock.storage.files import Files

LOG_FOLDER = "_delta_log"
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

"""Write the tests' temporary files to memory, if there is enough.

Half of their time goes into syncing small files, mostly of databases, which is slow on a shared disk. Tests kill
processes, never the machine, so data that a killed process synced to memory survives.
"""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 4 * 1024**3  # several times the need of a whole run


def write_to_memory(memory: Path = MEMORY, *, free_bytes_min: int = FREE_BYTES_MIN) -> bool:
    """Put temporary files of this process and its children into memory, unless TMPDIR is set or memory is unfit."""

    if "TMPDIR" in os.environ or not _is_fit(memory, free_bytes_min):
        return False
    os.environ["TMPDIR"] = str(memory)
    tempfile.tempdir = None  # looked up anew
    return True


def _is_fit(folder: Path, free_bytes_min: int) -> bool:
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return False
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:  # tests write programs too
        return False
    return shutil.disk_usage(folder).free >= free_bytes_min

"""Where tests write: in memory, where the machine has room there.

Half of what they do is syncing small files, to databases above all, which a disk that others use makes wait. What they
kill is processes, never the machine: what a killed process synced to memory is still there.
"""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 4 * 1024**3  # of memory files that a whole run may need, several times over


def write_to_memory(memory: Path = MEMORY, *, free_bytes_min: int = FREE_BYTES_MIN) -> bool:
    """Let temporary files of this process and its children be there, unless it is small, closed or somebody chose."""
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

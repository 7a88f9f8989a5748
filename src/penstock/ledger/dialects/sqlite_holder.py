"""Which process holds the writer's lock of an SQLite file in WAL mode, as far as Linux tells it."""

import os
from pathlib import Path

WRITE_LOCK_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK, see "The WAL-Index File Format" of SQLite
_LOCKS = Path("/proc/locks")


def holder_of(database: str) -> str | None:
    """Return a description of the process that may write to the file now; None if it cannot be found."""
    try:
        inode = Path(f"{database}-shm").stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:  # another system, or the file is gone
        return None
    for line in lines:
        words = line.replace("->", "").split()
        if len(words) >= 8 and words[1] == "POSIX" and words[3] == "WRITE" and words[5].endswith(f":{inode}"):
            end = float("inf") if words[7] == "EOF" else int(words[7])
            if int(words[6]) <= WRITE_LOCK_BYTE <= end and int(words[4]) not in (os.getpid(), 0, -1):
                return _described(int(words[4]))
    return None


def _described(pid: int) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/comm").read_text().strip()  # the command line may hold secrets
    except (OSError, IndexError):
        return f"process {pid}"
    stopped = f", which is stopped: continue it with kill -CONT {pid}, or end it" if state in "Tt" else ""
    return f"process {pid} ({command}){stopped}"

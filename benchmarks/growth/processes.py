"""CPU time of a server's processes: Linux only."""

import os
import time
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2  # the clock of a process that counts nanoseconds; see clock_getcpuclockid(3)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of its children, and of those that ended, to ten milliseconds."""
    used = _clock(pid) + _ended_children(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):  # it has just ended
                used += _clock(int(child))
    return used


def _clock(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


def _ended_children(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[13:15]) / _TICKS

"""Descendants and CPU time of processes: Linux only."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2  # the clock of a process that counts nanoseconds; see clock_getcpuclockid(3)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of its children, and of those that ended, to ten milliseconds."""
    used = _clock(pid) + _ended_children(pid)
    for child in children(pid):
        with suppress(OSError):  # it has just ended
            used += _clock(child)
    return used


def children(pid: int) -> Iterator[int]:
    """Yield the processes that this one has started and not waited for. Raises `OSError` if it has ended."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def _clock(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


def _ended_children(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[13:15]) / _TICKS

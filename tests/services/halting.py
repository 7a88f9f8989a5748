"""Halting other processes: all threads of one, and not only once the signal for it has been sent."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

HALTED_SECONDS = 30.0  # a machine may be busy; it takes microseconds
_NAP_SECONDS = 0.001
_HALTED, _ENDED = "T", frozenset("ZX")


def halt(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs any more: until its first one has taken the signal,
    others go on, and a server may answer what it was asked meanwhile. Raises `TimeoutError` if that does not come."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + HALTED_SECONDS
    while not all(state == _HALTED or state in _ENDED for state in _states(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} was not halted within {HALTED_SECONDS:g} s")
        time.sleep(_NAP_SECONDS)


def resume(pid: int) -> None:
    """Let it go on."""
    os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> list[str]:
    """Of its threads, as the kernel names them."""
    states = []
    with suppress(FileNotFoundError):  # it has just ended, and all its threads
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states

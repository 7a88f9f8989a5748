"""Halt all threads of another process, and wait until they have stopped."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

HALTED_SECONDS = 120.0  # a bound for a busy machine; it takes microseconds
_NAP_SECONDS = 0.001
_HALTED, _ENDED = "T", frozenset("ZX")


def halt(pid: int) -> None:
    """Send SIGSTOP and wait until no thread of the process runs. Raises `TimeoutError`.

    Without the wait, other threads run until one has handled the signal, and a server may still answer requests.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + HALTED_SECONDS
    while not all(state == _HALTED or state in _ENDED for state in _states(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} was not halted within {HALTED_SECONDS:g} s")
        time.sleep(_NAP_SECONDS)


def resume(pid: int) -> None:
    """Continue a halted process."""
    os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> list[str]:
    """Return the states of a process's threads, as the kernel names them."""
    states = []
    with suppress(FileNotFoundError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states

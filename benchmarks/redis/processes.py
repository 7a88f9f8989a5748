"""A contestant's processes: started in their own group, measured through /proc, stopped or killed."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_SECONDS_MAX = 15.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


class Processes:
    """One worker with all processes that it starts."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids())

    def resident_mib(self) -> float:
        """Together; what they share counts for each."""
        return sum(resident_bytes(pid) for pid in self._pids()) / MIB

    def stop(self) -> None:
        """Send SIGTERM, as a platform would, and SIGKILL if the worker does not exit."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """Kill all processes at once. Children may have process groups of their own."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _pids(self) -> list[int]:
        """Everything in the worker's session: its manager and its children."""
        return [pid for pid in _all_pids() if _session(pid) == self._process.pid]


@contextmanager
def running(command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> Iterator[Processes]:
    processes = Processes(command, folder=folder, environment=environment, log=log)
    try:
        yield processes
    finally:
        processes.stop()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time so far, in user and kernel mode; 0 for a process that has ended."""
    fields = _stat(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[21]) * PAGE_BYTES


def _session(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third one, the state, on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]

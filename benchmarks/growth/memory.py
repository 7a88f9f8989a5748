"""Memory of a real `penstock ingest`, by the number of objects in its folder: of its own process, and of Spark's.

Samples the resident memory of the command's process and its descendants until it ends. Pages that Spark's Python
workers share with their daemon count for each of them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.growth.curves import Curve, Series
from benchmarks.growth.processes import children
from benchmarks.objects import make_files
from benchmarks.reader import DDL

_SIZE_BYTES = 300
_EVERY_SECONDS = 0.2
_PAGE_MB = os.sysconf("SC_PAGESIZE") / 2**20
_COMMAND, _JVM, _WORKERS = "penstock ingest", "Spark's JVM", "Spark's Python workers"


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    series = Series("memory", {f"{name}, peak MB": "process" for name in (_COMMAND, _JVM, _WORKERS)})
    for size in sizes:
        source = folder / f"in-{size}"
        make_files(source, size, _SIZE_BYTES)
        for name, mb in _peaks(source, folder / f"out-{size}").items():
            series.add_memory(f"{name}, peak MB", size=size, mb=mb)
    return series.curves()


def _peaks(source: Path, table: Path) -> Mapping[str, float]:
    """Ingest a folder into a new table, and return the peak of each kind of process in MB."""
    command = [sys.executable, "-m", "penstock", "ingest", str(source), str(table), "--schema", DDL]
    peaks = dict.fromkeys((_COMMAND, _JVM, _WORKERS), 0.0)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        found = dict.fromkeys(peaks, 0.0)
        for pid in _tree(process.pid):
            with suppress(OSError):  # it has just ended
                found[_kind(pid, process.pid)] += _resident_mb(pid)
        peaks = {name: max(peak, found[name]) for name, peak in peaks.items()}
        time.sleep(_EVERY_SECONDS)
    if process.returncode:
        raise SystemExit(f"penstock ingest ended with {process.returncode}")
    return peaks


def _tree(pid: int) -> Sequence[int]:
    """Return a process and its descendants."""
    found = [pid]
    with suppress(OSError):
        for child in children(pid):
            found += _tree(child)
    return found


def _kind(pid: int, command_pid: int) -> str:
    if pid == command_pid:
        return _COMMAND
    return _JVM if Path(f"/proc/{pid}/comm").read_text().strip() == "java" else _WORKERS


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB

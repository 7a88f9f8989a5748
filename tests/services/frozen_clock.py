"""A clock that moves a real server's wall time together with the test's."""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

from penstock.testing import FakeClock

SOURCE = Path(__file__).with_name("frozen_clock.c")
MICROSECONDS = 1_000_000


def compile_frozen_clock(folder: Path) -> Path | None:
    """Compile `frozen_clock.c` to a shared library. Return None if there is no compiler."""
    library = folder / "frozen_clock.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class ClockFile:
    """The wall time of servers that were started in its `environment`."""

    def __init__(self, path: Path, library: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 8)
        preloaded = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD", "")]))
        self.environment = {"LD_PRELOAD": preloaded, "FROZEN_CLOCK": str(path)}

    def write(self, micros: int) -> None:
        # One store of eight aligned bytes, so that no server reads a partial value.
        struct.pack_into("=q", self._mapped, 0, micros)

    def close(self) -> None:
        self._mapped.close()


class ServerClock(FakeClock):
    """A `FakeClock` that agrees with servers to the microsecond.

    Its time is a whole number of microseconds, and `now` is that number / 1,000,000: the same float as a server's
    microseconds divided by a million.
    """

    def __init__(self, file: ClockFile) -> None:
        super().__init__()
        self._start_micros = round(self._start * MICROSECONDS)
        self._micros = 0  # written under the lock by any thread that advances the clock
        self._file = file
        file.write(self._start_micros)

    def now(self) -> float:
        with self._lock:
            return (self._start_micros + self._micros) / MICROSECONDS

    def monotonic(self) -> float:
        with self._lock:
            return self._micros / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Advance like a `FakeClock`, rounded to the microsecond."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        with self._lock:
            self._micros += round(seconds * MICROSECONDS)
            self._file.write(self._start_micros + self._micros)

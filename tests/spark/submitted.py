"""Programs under `spark-submit`: the JVM is started first and starts Python, which connects to it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
from deltalake import DeltaTable
from tests.services.jvm import LAUNCHED, QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER

import penstock
from penstock.pipeline.spark.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
SCRIPT = Path(penstock.__file__).parent / "__main__.py"  # as `penstock --script` prints it
PATIENCE_SECONDS = 400.0
ROOT = Path(__file__).parents[2]
INGEST = ("ingest", "in", "table", "--schema", "id long")
EVERY_ID = sorted(list(range(10)) * 3)  # of `objects`
APP = """
import json
import sys
from pathlib import Path
from penstock import App, DeltaSink, ObjectSource
from penstock.config import Settings

def app(folder):
    settings = Settings.model_construct(
        broker=f"sqlite:///{folder}/state/queue.db", ledger=f"sqlite:///{folder}/state/ledger.db",
        data_dir=f"{folder}/state",
    )
    made = App(settings=settings)
    clicks = made.pipeline(
        "clicks", source=ObjectSource("in", queue="events", schema="id long"), sink=DeltaSink(f"{folder}/table")
    )
    return made, clicks
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How `spark-submit` ended."""

    code: int
    out: str
    err: str


class Submitted:
    """A running `spark-submit`. Its process is the JVM, and its only child is Python."""

    def __init__(
        self,
        folder: Path,
        program: Path,
        *arguments: str,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._program = str(program).encode()
        self._out, self._err = folder / "submit.out", folder / "submit.err"
        settings = {"spark.ui.enabled": "false", **FROM_DRIVER, **(conf or {})}
        given = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--driver-memory", "1g", *given]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, str(program), *arguments],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def python(self) -> int:
        """The process id of the program. The JVM has another child, which forks Spark's Python workers."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        return next(pid for pid in pids if self._program in Path(f"/proc/{pid}/cmdline").read_bytes())

    def wait_until_python_ended(self) -> None:
        """Wait until no process of the group runs."""
        give_up, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
        while left := [pid for pid in _group(self.process.pid) if is_alive(pid)]:
            assert time.monotonic() < give_up, f"{left} still run:\n{self._err.read_text()}"
            tick.wait(0.05)

    def wait_for(self, there: Callable[[], bool]) -> None:
        give_up, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
        while not there():
            assert self.process.poll() is None, self._err.read_text()
            assert time.monotonic() < give_up, self._err.read_text()
            tick.wait(0.05)

    def end(self) -> Ended:
        """Wait for the end of the JVM."""
        code = self.process.wait(PATIENCE_SECONDS)
        return Ended(code=code, out=self._out.read_text(), err=self._err.read_text())

    def close(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


def run(folder: Path, program: Path, *arguments: str, master: str = "local[2]") -> Ended:
    submitted = Submitted(
        folder, program, *arguments, master=master, conf={"spark.executor.extraJavaOptions": QUICK_JVM}
    )
    try:
        ended = submitted.end()
        submitted.wait_until_python_ended()
        return ended
    finally:
        submitted.close()


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def ids(table: Path) -> list[int]:
    found: list[int] = sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())
    return found


def environment() -> Mapping[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYSPARK_", "SPARK_"))
    }
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAVA_HOME": str(find_java(os.environ).home),
        **LAUNCHED,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _group(leader: int) -> Sequence[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[2]) == leader:
                found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    """Return True if a process runs; False for one that has ended and that its parent has not collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def objects(folder: Path, count: int = 3) -> Sequence[Path]:
    """Write files of 10 rows each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.jsonl" for number in range(count)]
    for path in paths:
        path.write_text("".join(f'{{"id": {number}}}\n' for number in range(10)))
    return paths

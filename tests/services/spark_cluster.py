"""A standalone Spark cluster on loopback, of PySpark's own classes: a master, and workers that are hosts of their own.

Each worker has its own mount namespace, in which folders of the test's choice are its private ones: what is written
there on one "host" is on no other. Everything else is shared, like a disk that all hosts mount.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tests.services.ports import free_port

from penstock.pipeline.java import find_java

START_SECONDS = 120.0  # far more than a start takes
STOP_SECONDS = 10.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
FROM_DRIVER = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings of a driver whose executors find it on loopback."""

_SPARK_HOME = Path(pyspark.__file__).parent
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


def why_not_here() -> str | None:
    """Return why this machine cannot have mount namespaces; None if it can."""
    found = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return None if found.returncode == 0 else f"mount namespaces are not permitted: {found.stderr.strip()}"


@dataclass(kw_only=True)
class SparkCluster:
    """One cluster. ``private``: folders of which each worker sees its own."""

    folder: Path
    private: Sequence[Path] = ()
    workers: int = 2

    port: int = field(default=0, init=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    # --- its life

    def start(self) -> "SparkCluster":
        """Start the master and all workers, and wait until they know each other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        self._launch("master", [], [MASTER, *address, "--port", str(self.port)])
        self._wait_for("master", "I have been elected leader")
        for number in range(self.workers):
            self.start_worker(number)
        for number in range(self.workers):
            self._wait_for(f"worker-{number}", "Successfully registered with master")
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker, in a new mount namespace; also in place of one that was killed."""
        mounts = [f"mount --bind {self.private_folder(number, path)} {path}" for path in self.private]
        for path in self.private:
            self.private_folder(number, path).mkdir(parents=True, exist_ok=True)
        work = self.folder / f"work-{number}"
        self._launch(
            f"worker-{number}",
            mounts,
            [
                *(WORKER, "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(work), self.url),
            ],
        )

    def private_folder(self, number: int, path: Path) -> Path:
        """Where a worker's own version of a private folder lies, as seen from outside."""
        return self.folder / f"private-{number}" / f"{self.private.index(path)}-{path.name}"

    def kill_worker(self, number: int) -> None:
        """Kill it with its executors, as a host that loses its power."""
        executors = self.executors(number)
        process = self._processes.pop(f"worker-{number}")
        for pid in (process.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

    def close(self) -> None:
        for name in list(self._processes):
            process = self._processes.pop(name)
            os.killpg(process.pid, signal.SIGKILL)  # executors are in the group of their worker
            process.wait(STOP_SECONDS)

    # --- what goes on in it

    def pid(self, number: int) -> int:
        """The process of a worker; `nsenter --mount --target PID` leads into its namespace."""
        return self._processes[f"worker-{number}"].pid

    def executors(self, number: int) -> Sequence[int]:
        """The processes of a worker's executors."""
        children = Path(f"/proc/{self.pid(number)}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        return [pid for pid in pids if EXECUTOR in _command(pid)]

    def wait_until_idle(self) -> None:
        """Wait until no executor is left of the applications that ended."""
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while any(self.executors(number) for number in range(self.workers) if f"worker-{number}" in self._processes):
            assert time.monotonic() < give_up, "executors of an application that ended are still there"
            tick.wait(0.05)

    # --- in detail

    def _launch(self, name: str, first: Sequence[str], command: Sequence[str]) -> None:
        java = find_java(os.environ).home
        classes = f"'{_SPARK_HOME}/conf:{_SPARK_HOME}/jars/*'"
        line = " ".join([str(java / "bin" / "java"), *_JVM, "-cp", classes, *command])
        script = " && ".join([*first, f"exec {line}"])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "SPARK_"))}
        environment = {
            **inherited,
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # else Spark looks for the folders that it is built in
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                # pdeathsig: nothing is left of a test run that was killed.
                ["unshare", "--mount", "setpriv", "--pdeathsig", "KILL", "sh", "-c", script],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_for(self, name: str, words: str) -> None:
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        log = self.folder / f"{name}.log"
        while not re.search(words, text := log.read_text(errors="replace")):
            assert self._processes[name].poll() is None, f"the {name} ended:\n{text}"
            assert time.monotonic() < give_up, f"the {name} does not say `{words}`; it says:\n{text}"
            tick.wait(0.05)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""

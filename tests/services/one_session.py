"""`penstock` commands, one after the other, in a process with one Spark session.

For tests whose subject is the work on a cluster: the start of a driver and its executors takes longer than their work.
A command finds the session instead of starting one, and leaves it running. The session is classic, or one of Spark
Connect if the master is the address of a server. The setting `spark.conf` of a command chooses only the Python of
classic Spark's workers. All else is the command's own.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0
IDLE_SECONDS = 60.0
CONNECT_SCHEME = "sc://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The end of one command."""

    code: int
    out: str
    err: str


class OneSession:
    """The process. It starts Spark with the first command."""

    def __init__(self, folder: Path, *, master: str, conf: Mapping[str, str]) -> None:
        self._log = folder / "session.log"
        folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.one_session", str(folder), master, json.dumps(conf)],
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def call(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Called:
        """Run `penstock` with these arguments in a folder, with this environment alone."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        reply = stdout.readline()
        assert reply, f"the process with the session ended:\n{self._log.read_text()}"
        return Called(**json.loads(reply))

    def close(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=STOP_SECONDS)


# --- in the process


def serve(folder: Path, master: str, conf: Mapping[str, str]) -> None:
    """Run the commands that standard input requests, and write their ends to standard output."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in requests:
        reply = _called(_session(folder, master, conf), folder, **json.loads(line))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


_sessions: list[Any] = []


def _session(folder: Path, master: str, conf: Mapping[str, str]) -> Any:
    if not _sessions:
        opened = _connected if master.startswith(CONNECT_SCHEME) else _started
        _sessions.append(opened(folder, master, conf))
    return _sessions[0]


def _started(folder: Path, master: str, conf: Mapping[str, str]) -> Any:
    from penstock.pipeline.spark.classic import SessionSettings, start_session
    from penstock.pipeline.spark.java import find_java

    settings = SessionSettings(
        master=master,
        java_home=find_java(os.environ).home,
        scratch=folder / "scratch",
        log=folder / "spark.log",
        driver_memory="1g",
        extra_conf=conf,
    )
    return start_session(settings)


def _connected(_: Path, address: str, conf: Mapping[str, str]) -> Any:
    from penstock.pipeline.spark.connect import open_session

    return open_session(address, conf)


def _called(
    session: Any, scratch: Path, arguments: Sequence[str], folder: str, environment: Mapping[str, str]
) -> Mapping[str, Any]:
    from penstock.cli import main
    from penstock.pipeline.spark import classic, connect

    if environment["PENSTOCK_SPARK_MASTER"].startswith(CONNECT_SCHEME):
        kept = {connect.MODE: os.environ[connect.MODE]}
    else:
        conf, kept = json.loads(environment.get("PENSTOCK_SPARK_CONF", "{}")), {}
        _wait_until_idle(session)
        session.sparkContext.pythonExec = conf.get("spark.pyspark.python", sys.executable)
    out, err = scratch / "call.out", scratch / "call.err"
    with (
        _streams(out, err),
        _in_folder(folder),
        patch.dict(os.environ, {**environment, **kept}, clear=True),
        patch.object(sys, "argv", ["penstock", *arguments]),
        patch.object(classic, "start_session", lambda _: session),
        patch.object(classic, "end_session", lambda *_, **__: None),
        patch.object(connect, "open_session", lambda *_: session),
        patch.object(connect, "end_session", lambda *_, **__: None),
        patch.object(main, "ignore_handled_signals", lambda: None),
        patch.object(main, "leave", sys.exit),
        patch("penstock.cli.exits.leave_within", lambda *_: None),
    ):
        try:
            main.main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.read_text(), "err": err.read_text()}


def _wait_until_idle(session: Any) -> None:
    """Wait for tasks that the last command cancelled: the next one must find every executor free."""
    tracker, tick = session.sparkContext._jsc.sc().statusTracker(), threading.Event()
    give_up = time.monotonic() + IDLE_SECONDS
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        assert time.monotonic() < give_up, "tasks of the last command still run"
        tick.wait(0.05)


@contextmanager
def _streams(out: Path, err: Path) -> Iterator[None]:
    """Write everything in the block to these files."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    try:
        for number, path in ((1, out), (2, err)):
            with path.open("wb") as file:
                os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        sys.stdout, sys.stderr = streams
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    """Work in a folder. Its modules are loaded anew for each command."""
    before, path = set(sys.modules), list(sys.path)
    os.chdir(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{folder}/"):
                del sys.modules[name]


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))

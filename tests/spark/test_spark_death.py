"""Spark's JVM is killed, idle or in a run: the process exits so that a new one can continue, and nothing is lost."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.chaos.runs import IN_PROCESS, ON_SPARK
from tests.cli import process
from tests.cli.process import Process

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce

PATIENCE_SECONDS = 400.0
TEMPORARY_FAILURE = 75
APP = """
import time
from pathlib import Path

from penstock import App, DeltaSink, ObjectSource
from slow import slow

app = App.from_config()

@app.handler("mails", name="mail")
def mail(message):
    Path("mail-begun").touch()
    while not Path("mail-go").exists():
        time.sleep(0.05)

app.pipeline(
    "clicks",
    source=ObjectSource("landing", queue="clicks-events", schema="id long"),
    sink=DeltaSink("lake"),
    transform=slow,
    max_attempts=1,
    max_wait=0.1,
)
"""
SLOW = """
import os
import time
from pathlib import Path

HERE = Path({here!r})

def waiting(batches):
    while (HERE / "hold").exists():
        (HERE / "running").touch()
        if os.getppid() == 1:
            raise SystemExit
        time.sleep(0.05)
    yield from batches

def slow(frame):
    return frame.mapInArrow(waiting, frame.schema)
"""


class Scene:
    """A pipeline in a folder, alone in a watching ingest or beside a handler in a worker."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.hold, self.running = folder / "hold", folder / "running"
        self._landing = folder / "landing"
        self._landing.mkdir()
        (folder / "slow.py").write_text(SLOW.format(here=str(folder)))
        (folder / "shop.py").write_text(APP)
        (folder / ".penstock").mkdir()
        self.broker = SqliteBroker(folder / ".penstock" / "queue.db", holder="test")
        self._processes: list[Process] = []
        self._files = 0

    def start(self, *options: str) -> Process:
        return self._start(*(["--transform", "slow:slow"] if self.kind == "ingest" else options))

    def go_on(self) -> Process:
        """Start the next process, without Spark, which this test does not need."""
        (self.folder / "shop.py").write_text(APP.replace("    transform=slow,\n", ""))
        selected = ("--table", "lake") if self.kind == "ingest" else ("--app", "shop:app", "--pipeline", "clicks")
        accepted = Process(self.folder, "admin", "schema", "transform", "--none", *selected)
        assert accepted.exit_code() == 0, accepted.log_lines
        return self._start(module=IN_PROCESS)

    def _start(self, *options: str, module: str = ON_SPARK) -> Process:
        ingest = ("ingest", "landing", "lake", "--schema", "id long", "--watch", "--settle", "0.1")
        watch = (*ingest, "--max-attempts", "1")
        command = watch if self.kind == "ingest" else ("worker", "shop:app")
        self._processes.append(Process(self.folder, *command, *options, module=module))
        return self._processes[-1]

    def put(self) -> None:
        """Add a file of one row, and announce it in the queue of a worker."""
        name, self._files = f"{self._files}.jsonl", self._files + 1
        draft = self.folder / name
        draft.write_text(json.dumps({"id": self._files}) + "\n")
        landed = draft.rename(self._landing / name)
        if self.kind == "worker":
            ref = LocalStore(self._landing).describe(landed)
            self.broker.send("clicks-events", [Outgoing(body=announce(ref))])

    def rows(self) -> list[int]:
        if not DeltaTable.is_deltatable(str(self.folder / "lake")):
            return []
        return sorted(DeltaTable(str(self.folder / "lake")).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def close(self) -> None:
        self.hold.unlink(missing_ok=True)
        (self.folder / "mail-go").touch()
        self.broker.close()
        for one in self._processes:
            one.kill()


@pytest.fixture
def kind() -> str:
    return "worker"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Iterator[Scene]:
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    monkeypatch.setenv("PENSTOCK_METRICS_ADDRESS", "127.0.0.1:0")
    monkeypatch.setattr(process, "DEADLINE_SECONDS", PATIENCE_SECONDS)
    scene = Scene(tmp_path, kind)
    yield scene
    scene.close()


def wait_until(condition: Callable[[], object]) -> None:
    give_up, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < give_up
        tick.wait(0.05)


def jvm_below(pid: int) -> int:
    """Return the process id of the JVM that a process has started."""
    [found] = [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in map(int, _children(task))
        if "/java" in Path(f"/proc/{child}/cmdline").read_text().partition("\0")[0]
    ]
    return found


def kill_jvm(worker: Process) -> None:
    os.kill(jvm_below(worker.pid), signal.SIGKILL)


def readiness(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode().strip()


@pytest.mark.parametrize(
    ("kind", "busy"),
    [
        pytest.param("worker", True, id="a worker in a run"),
        pytest.param("ingest", False, id="an idle ingest", marks=pytest.mark.slow),
        pytest.param("worker", False, id="an idle worker", marks=pytest.mark.slow),
        pytest.param("ingest", True, id="an ingest in a run", marks=pytest.mark.slow),
    ],
)
def test_a_process_whose_jvm_dies_exits_and_the_next_continues(scene: Scene, busy: bool) -> None:
    worker = scene.start()
    scene.put()
    wait_until(lambda: scene.rows() == [1])
    if busy:
        scene.hold.touch()
        scene.put()
        wait_until(scene.running.exists)
    kill_jvm(worker)
    assert worker.exit_code() == TEMPORARY_FAILURE, worker.log_lines
    assert "Spark's JVM ended" in worker.error_message()
    scene.hold.unlink(missing_ok=True)
    scene.put()
    scene.go_on()
    wanted = [1, 2, 3] if busy else [1, 2]
    wait_until(lambda: scene.rows() == wanted)  # with max_attempts=1, so the dead JVM counted no attempt


def test_a_mixed_worker_whose_jvm_dies_finishes_its_handlers_and_is_not_ready(scene: Scene) -> None:
    worker = scene.start()
    address = worker.expect("worker.started")["metrics"]
    wait_until(lambda: readiness(address) == (200, "serving mails, clicks-events"))
    [message_id] = scene.broker.send("mails", [Outgoing(body=b"{}")])
    wait_until((scene.folder / "mail-begun").exists)
    kill_jvm(worker)
    assert "Spark's JVM ended by SIGKILL." in worker.expect("worker.failed")["error.message"]
    worker.expect("worker.draining")
    assert readiness(address) == (503, "the worker is stopping")
    (scene.folder / "mail-go").touch()
    worker.expect("message.finished", message_id=message_id)
    assert worker.exit_code() == TEMPORARY_FAILURE, worker.log_lines


@pytest.mark.slow  # quick: the two above, idle and in a run
def test_a_jvm_that_dies_right_after_its_start_is_handled_the_same(scene: Scene) -> None:
    worker = scene.start("--queues", "clicks-events")
    worker.expect("spark.started")
    kill_jvm(worker)
    assert worker.exit_code() == TEMPORARY_FAILURE, worker.log_lines
    assert "Spark's JVM ended" in worker.error_message()


def test_a_supervisor_replaces_a_worker_whose_jvm_died(scene: Scene) -> None:
    supervisor = scene.start("--processes", "2", "--queues", "clicks-events")
    scene.put()
    supervisor.expect("spark.started", times=2)
    victim = supervisor.expect("spark.started")["pid"]
    os.kill(jvm_below(victim), signal.SIGKILL)
    ended = supervisor.expect("process.exited", process=victim)
    assert (ended["exit_code"], ended["delay_s"] > 0) == (TEMPORARY_FAILURE, True)
    supervisor.expect("spark.started", times=3)
    wait_until(lambda: scene.rows() == [1])


def _children(task: Path) -> list[str]:
    """Return the process ids of a thread's children; none if the thread has just ended."""
    try:
        return (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []

"""A worker with a handler and a pipeline: the handler is served while Spark starts, and even if it never does.

The test delays Spark's launcher or makes it fail: the `java` that it finds waits for a file.
"""

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli import process
from tests.cli.process import Process

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce
from penstock.pipeline.spark.java import find_java

PATIENCE_SECONDS = 400.0
STOP_TIMEOUT_SECONDS = 10.0
APP = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()

@app.handler("mails", name="mail")
def mail(message):
    pass

app.pipeline(
    "clicks",
    source=ObjectSource("landing", queue="clicks-events", schema="id long"),
    sink=DeltaSink("lake/clicks"),
    max_wait=0.1,
)
"""
JAVA = """#!/bin/sh
case "$*" in
*launcher.Main*) ;;
*deploy.SparkSubmit*)
    echo $$ > {here}/pid.draft && mv {here}/pid.draft {here}/pid
    while [ ! -e {here}/go ]; do sleep 0.1; done
    if [ -e {here}/fail ]; then echo "Error: no JVM today" >&2; exit 1; fi
    ;;
esac
exec {java} "$@"
"""


class Scene:
    """A worker, and the Java that it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._java = folder / "java"
        self.go, self.fail, self.pid = (self._java / name for name in ("go", "fail", "pid"))
        self.worker: Process | None = None
        (folder / "mixed.py").write_text(APP)
        (folder / "landing").mkdir()
        (folder / ".penstock").mkdir()
        (self._java / "bin").mkdir(parents=True)
        java = self._java / "bin" / "java"
        java.write_text(JAVA.format(here=self._java, java=find_java(os.environ).home / "bin" / "java"))
        java.chmod(0o755)
        self.broker = SqliteBroker(folder / ".penstock" / "queue.db", holder="test")

    @property
    def home(self) -> Path:
        return self._java

    def start(self, *arguments: str) -> Process:
        """Start the worker in its own session, as in a terminal."""
        command = ("worker", "mixed:app", "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}", *arguments)
        self.worker = Process(self.folder, *command, before=["setsid"])
        return self.worker

    def mail(self) -> str:
        [message_id] = self.broker.send("mails", [Outgoing(body=b"{}")])
        return message_id

    def ready(self, worker: Process) -> tuple[int, str]:
        address = worker.expect("worker.started")["metrics"]
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode().strip()

    def close(self) -> None:
        self.go.touch()
        self.fail.touch()
        self.broker.close()
        if self.worker is not None:
            self.worker.kill()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(scene.home))
    monkeypatch.setenv("PENSTOCK_METRICS_ADDRESS", "127.0.0.1:0")
    monkeypatch.setattr(process, "DEADLINE_SECONDS", PATIENCE_SECONDS)
    yield scene
    scene.close()


def wait_until(condition: Callable[[], bool]) -> None:
    give_up, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < give_up
        tick.wait(0.05)


def has_ended(pid: int) -> bool:
    """Return True if there is no such process, or only a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_handler_is_served_before_spark_starts_and_the_pipeline_after(scene: Scene) -> None:
    worker = scene.start()
    worker.expect("message.finished", message_id=scene.mail())
    assert not any('"spark.started"' in line for line in worker.log_lines)
    assert scene.ready(worker) == (200, "serving mails; waiting: clicks-events for Spark")
    landed = scene.folder / "landing" / "0.jsonl"
    landed.write_text('{"id": 1}\n')
    ref = LocalStore(scene.folder / "landing").describe(landed)
    scene.broker.send("clicks-events", [Outgoing(body=announce(ref))])
    worker.expect("message.finished", message_id=scene.mail())
    assert scene.broker.stats("clicks-events").in_flight == 0, "the message waits in its queue"
    scene.go.touch()
    worker.expect("spark.started")
    worker.expect("object.finished")
    assert scene.ready(worker) == (200, "serving mails, clicks-events")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.log_lines


# quick: SIGINT, which a terminal also sends to Spark; SIGTERM while Spark starts is in tests/chaos/test_spark_stop.py
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_stop_does_not_wait_for_spark_to_start_and_leaves_no_spark_behind(
    scene: Scene, number: signal.Signals
) -> None:
    worker = scene.start()
    worker.expect("message.finished", message_id=scene.mail())
    wait_until(scene.pid.exists)
    if number is signal.SIGINT:
        os.killpg(worker.pid, number)  # as a terminal does, to the whole process group
    else:
        worker.signal(number)
    assert worker.exit_code() == 0, worker.log_lines
    assert not scene.go.exists(), "Spark is still held back"
    worker.expect("worker.drained")
    pid = int(scene.pid.read_text())
    assert not has_ended(pid), "Ctrl-C must not reach Spark"
    scene.go.touch()
    wait_until(lambda: has_ended(pid))


def test_handlers_are_served_even_if_spark_never_starts(scene: Scene) -> None:
    scene.fail.touch()
    scene.go.touch()
    worker = scene.start()
    halted = worker.expect("consumer.halted", queue="clicks-events")
    assert "Spark did not start: no JVM today." in halted["error.message"]
    worker.expect("message.finished", message_id=scene.mail())
    assert scene.ready(worker) == (200, "serving mails; halted until a restart: clicks-events")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.log_lines


def test_a_worker_with_only_pipelines_ends_if_spark_never_starts(scene: Scene) -> None:
    scene.fail.touch()
    scene.go.touch()
    worker = scene.start("--queues", "clicks-events")
    assert worker.exit_code() == 78
    assert "Spark did not start: no JVM today." in worker.expect("worker.failed")["error.message"]
    sentences = [line for line in worker.log_lines if not line.startswith("{")]
    assert "Spark did not start: no JVM today." not in "".join(sentences)  # the error is printed once

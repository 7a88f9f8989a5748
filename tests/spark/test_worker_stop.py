"""SIGTERM in two Spark runs of a worker: both are released, their threads end in time, and the worker exits with 0."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.chaos import transforms
from tests.services.forked_process import ForkedPopen

from penstock.brokers.sqlite.broker import SqliteBroker

OBJECTS = 6  # two batches
PATIENCE_SECONDS = 400.0
STOP_TIMEOUT_SECONDS = 20.0
LATE_SECONDS = 60.0  # allowance for a busy machine
APP = """
import transforms
from penstock import App, DeltaSink, ObjectSource

app = App()
app.pipeline(
    "clicks",
    source=ObjectSource("landing", queue="clicks-events", schema="id long"),
    sink=DeltaSink("lake/clicks"),
    transform=transforms.held,
    max_wait=0.1,
    max_batch_objects=3,
)
if __name__ == "__main__":
    print(app.announce("clicks-events", "landing"))
"""


def attempts_open(folder: Path) -> int:
    path = folder / ".penstock" / "ledger.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as ledger:
        return int(ledger.execute("SELECT count(*) FROM attempts WHERE state = 'open'").fetchone()[0])


def lines_of(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines()


def test_a_stop_in_two_spark_runs_releases_their_messages_and_exits_with_0(tmp_path: Path) -> None:
    (tmp_path / "clicks_app.py").write_text(APP)
    (tmp_path / "transforms.py").write_text(Path(transforms.__file__).read_text())
    (tmp_path / "landing").mkdir()
    for number in range(OBJECTS):
        (tmp_path / "landing" / f"{number}.jsonl").write_text(json.dumps({"id": number}) + "\n")
    (tmp_path / transforms.GATE).touch()
    environment = {
        **os.environ,
        "PENSTOCK_LOG_FORMAT": "json",
        "PYTHONPATH": str(tmp_path),
    }
    subprocess.run([sys.executable, "clicks_app.py"], cwd=tmp_path, env=environment, check=True, timeout=60)
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "penstock", "worker", "clicks_app:app"]
    command += ["--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}"]
    with log.open("wb") as stream:
        worker = ForkedPopen(command, cwd=tmp_path, env=environment, stderr=stream, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ((tmp_path / transforms.AT_GATE).exists() and attempts_open(tmp_path) == 2):
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)  # between two looks at a file that another process writes
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(STOP_TIMEOUT_SECONDS + LATE_SECONDS)
    finally:
        worker.kill()
        worker.wait()
    events = [json.loads(line) for line in lines_of(log)]  # fails if there is a traceback
    ends = [event for event in events if event["event"] in ("worker.forced", "worker.interrupted", "worker.drained")]
    assert [event["event"] for event in ends] == ["worker.interrupted"], log.read_text()
    assert code == 0
    assert attempts_open(tmp_path) == 0
    broker = SqliteBroker(tmp_path / ".penstock" / "queue.db", holder="test")
    try:
        stats = broker.stats("clicks-events")
        assert (stats.messages, stats.in_flight) == (OBJECTS, 0)
        assert ends[0]["count"] == OBJECTS
    finally:
        broker.close()

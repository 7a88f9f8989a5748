"""A worker that replays also reports and archives dead letters that are about to expire."""

import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import Process
from tests.services.forked_process import run_forked

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing

RETENTION_SECONDS = 100_000.0
APP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def bill(message):
    pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an app with two messages in its final DLQ: one past half of its retention, one about to expire."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_with_dead_letters.py").write_text(APP)
    file = tmp_path / ".penstock" / "queue.db"
    file.parent.mkdir()
    queues = [QueueSettings(name="orders-dead", retention_seconds=RETENTION_SECONDS)]
    with closing(SqliteBroker(file, holder="test", queues=queues)) as broker:
        broker.send("orders-dead", [Outgoing(body=b"old"), Outgoing(body=b"oldest")])
    with closing(sqlite3.connect(file)) as connection, connection:
        for body, share in ((b"old", 0.6), (b"oldest", 0.97)):
            older = (share * RETENTION_SECONDS, body)
            connection.execute("UPDATE messages SET enqueued_at = enqueued_at - ? WHERE body = ?", older)
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()


@pytest.mark.parametrize("options", [("--replay",), ("--replay", "--jobs", "only"), ("--replay", "--jobs", "expiry")])
def test_expiring_dead_letters_are_reported_and_archived(
    here: Path, started: list[Process], penstock: Call, options: tuple[str, ...]
) -> None:
    archive = ("env", f"PENSTOCK_DEAD_LETTERS_ARCHIVE={here / 'kept'}")
    process = Process(here, "worker", "shop_with_dead_letters:app", *options, before=archive)
    started.append(process)
    archived = process.expect("dead_letter.archived", queue="orders-dead", count=1)
    expiring = process.expect("dead_letter.expiring", queue="orders-dead", count=1, archived=True)
    assert expiring["oldest_age_s"] == pytest.approx(0.6 * RETENTION_SECONDS, rel=0.01)
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    (file,) = (here / "kept").rglob("*.jsonl")
    assert archived["file"] == file.as_uri()
    assert [dead_letter["body"] for dead_letter in penstock("dead", "list", "--json").document] == ["old"]
    assert penstock("dead", "import", file, "--json").document["imported"] == 1
    assert {dead_letter["body"] for dead_letter in penstock("dead", "list", "--json").document} == {"old", "oldest"}


def test_an_archive_without_replay_is_reported_by_the_worker_and_by_doctor(
    here: Path, started: list[Process], penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dead letters would be deleted unarchived, with no sign."""
    archive = f"PENSTOCK_DEAD_LETTERS_ARCHIVE={here / 'kept'}"
    process = Process(here, "worker", "shop_with_dead_letters:app", before=("env", archive))
    started.append(process)
    process.expect("setting.without_effect", setting="dead_letters.archive")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    monkeypatch.setattr("sys.path", [str(here), *sys.path])
    monkeypatch.setenv(*archive.split("=", 1))
    assert "dead_letters.archive has no effect" in penstock("doctor", "--app", "shop_with_dead_letters:app").out
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY", "true")
    own = "shop_with_dead_letters"
    monkeypatch.delitem(sys.modules, own, raising=False)
    assert "dead_letters.archive has no effect" not in penstock("doctor", "--app", f"{own}:app").out


def test_a_replayer_run_does_not_archive_expiring_dead_letters(here: Path, penstock: Call) -> None:
    archive = {"PENSTOCK_DEAD_LETTERS_ARCHIVE": str(here / "kept")}
    ran = run_forked(
        [sys.executable, "-m", "penstock", "admin", "replayer", "shop_with_dead_letters:app"],
        cwd=here,
        env={**os.environ, **archive},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert not {"dead_letter.archived", "dead_letter.expiring"} & set(re.findall(r"[a-z_]+\.[a-z_]+", ran.stderr))
    assert not (here / "kept").exists()
    assert {dead_letter["body"] for dead_letter in penstock("dead", "list", "--json").document} == {"old", "oldest"}

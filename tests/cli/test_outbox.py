"""`penstock admin outbox` and `penstock admin inbox`, on the command line."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.fleet import wait_for
from tests.services.forked_process import ForkedPopen, run_forked

APP = """
import sys
from sqlalchemy import create_engine
from penstock import App, Message
from penstock.transactions import create_tables

engine = create_engine("sqlite:///shop.db")
create_tables(engine)
app = App.from_config()
app.relay(engine, every=0.05)
bare = App.from_config()


def send(*bodies, **options):
    with engine.begin() as connection:
        app.outbox(connection).send_many("orders", bodies, **options)


def record():
    with engine.begin() as connection:
        for id in "ab":
            app.inbox(connection, Message(id=id, body=b"", enqueued_at=0.0), handler="ship")
"""


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP, encoding="utf-8")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            "PENSTOCK_BROKER": f"sqlite:///{folder / 'queue.db'}",
        }

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        return ForkedPopen([sys.executable, *words], cwd=self.folder, env=self.environment, text=True, **options)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *words]
        return run_forked(command, cwd=self.folder, env=self.environment, timeout=120)

    def penstock(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("-m", "penstock", *words)

    def python(self, code: str) -> None:
        done = self.run("-c", f"from shop import *; {code}")
        assert done.returncode == 0, done.stderr

    def count(self, table: str) -> int:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_list_shows_waiting_rows_and_once_sends_them(shop: Shop) -> None:
    shop.python("send(1, 2, group='g')")
    listed = json.loads(shop.penstock("admin", "outbox", "list", "shop:app", "--json").stdout)
    assert [(row["queue"], row["group"], row["tries"], row["reason"]) for row in listed] == [
        ("orders", "g", 0, None)
    ] * 2
    assert "orders" in shop.penstock("admin", "outbox", "list", "shop:app", "--limit", "1").stdout
    sent = shop.penstock("admin", "outbox", "relay", "shop:app", "--once", "--json")
    assert (sent.returncode, json.loads(sent.stdout)) == (0, {"sent": 2, "left": 0, "refused": 0})
    assert "Nothing waits" in shop.penstock("admin", "outbox", "list", "shop:app").stderr


def test_once_exits_with_3_if_rows_are_left(shop: Shop) -> None:
    shop.python("send(1, delay='30 days'); send(2)")  # a delay that no broker accepts
    once = shop.penstock("admin", "outbox", "relay", "shop:app", "--once")
    assert once.returncode == 3, once.stderr
    assert "1 message sent, 1 left, 1 of them refused" in once.stdout
    (row,) = json.loads(shop.penstock("admin", "outbox", "list", "shop:app", "--json").stdout)
    assert (row["tries"], "delay_seconds" in row["reason"]) == (1, True)


def test_the_relay_command_sends_until_sigterm(shop: Shop) -> None:
    shop.python("send(1)")
    process = shop.start("-m", "penstock", "admin", "outbox", "relay", "shop:app", stderr=subprocess.PIPE)
    try:
        wait_for(lambda: shop.count("penstock_outbox") == 0, "the row is sent")
        shop.python("send(2)")
        wait_for(lambda: shop.count("penstock_outbox") == 0, "the next one too")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert "outbox.sent" in log


def test_forget_deletes_old_records(shop: Shop) -> None:
    shop.python("record()")
    assert json.loads(shop.penstock("admin", "inbox", "forget", "shop:app", "--json").stdout) == {"forgotten": 0}
    with closing(sqlite3.connect(shop.folder / "shop.db")) as connection:
        connection.execute("UPDATE penstock_inbox SET done_at = done_at - 15 * 86400 WHERE message = 'message:a'")
        connection.commit()
    assert (
        shop.penstock("admin", "inbox", "forget", "shop:app", "--older-than", "14d").stdout == "1 message forgotten.\n"
    )
    assert shop.count("penstock_inbox") == 2
    for wrong in ("soon", "0s"):
        refused = shop.penstock("admin", "inbox", "forget", "shop:app", "--older-than", wrong)
        assert (refused.returncode, "is not a duration above 0" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "command", [("outbox", "list"), ("outbox", "relay"), ("outbox", "relay", "--once"), ("inbox", "forget")]
)
def test_an_app_without_a_relay_gets_an_error_with_the_remedy(shop: Shop, command: tuple[str, ...]) -> None:
    done = shop.penstock("admin", *command[:2], "shop:bare", *command[2:])
    assert done.returncode == 2
    assert "app.relay" in done.stderr

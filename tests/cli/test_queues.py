"""`penstock queues`: the counts of queues, and the commands that change them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock.app.housekeeping import Presence
from penstock.app.registry import WorkerRecord, Workers
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.cli.queues import age_of
from penstock.config import load_settings
from penstock.events import WorkerStarted
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.worker.shutdown import StopSignal

USAGE, FAILED, CONFIGURATION = 2, 1, 78


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteBroker]:
    """Create queues in the current folder: one with a message in each state, and its DLQ."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".penstock").mkdir()
    broker = SqliteBroker(tmp_path / ".penstock" / "queue.db", holder="me")
    broker.send("orders", [Outgoing(body=b"1")])
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=600.0)
    assert not broker.settle([(delivery, DeadLetter(reason="no"))])
    broker.send("orders", [Outgoing(body=b"2")])
    assert broker.receive("orders", messages_max=1, lease_seconds=600.0)
    broker.send("orders", [Outgoing(body=b"3"), Outgoing(body=b"4"), Outgoing(body=b"5", delay_seconds=600.0)])
    yield broker
    broker.close()


def test_every_queue_is_listed_with_its_counts(penstock: Call, broker: SqliteBroker) -> None:
    orders, dead_letters = penstock("queues", "list", "--json").document
    ages = {orders.pop("oldest_visible_message_age_seconds"), orders.pop("oldest_message_age_seconds")}
    assert all(0 <= age < 600 for age in ages)
    assert orders == {
        "queue": "orders",
        "oldest_visible_message_age_source": "exact",
        "oldest_message_age_source": "exact",
        "visible": 2,
        "in_flight": 1,
        "delayed": 1,
        "dead_letters": 1,
        "dead_letters_set_aside": 0,
        "paused": False,
        "breaker": None,
        "unserved": None,
        "workers": [],
        "sender_key": None,
        "unread": None,
    }
    assert (dead_letters["queue"], dead_letters["visible"], dead_letters["dead_letters"]) == ("orders-dlq", 1, 0)
    table = penstock("queues", "list").out.splitlines()
    columns = ("queue", "visible", "in flight", "delayed", "oldest visible", "oldest", "dead letters", "workers")
    assert [column for column in columns if column not in table[0]] == []
    assert table[1].split()[:4] == ["orders", "2", "1", "1"]


def test_a_queue_names_the_workers_that_serve_it(penstock: Call, broker: SqliteBroker) -> None:
    presence = Presence(settings=load_settings(), broker=broker, worker="me", stop=StopSignal(), clock=SystemClock())
    (keeper,) = presence.listeners
    keeper(WorkerStarted(queues=("orders",), concurrency=1))
    with presence.register(ledger=lambda: pytest.fail("no ledger"), emit=lambda event: None, random=lambda: 0.5):
        result = penstock("queues", "show", "orders")
        assert [row["workers"] for row in penstock("queues", "list", "--json").document] == [["me"], []]
    assert "workers         me\n" in result.out
    assert penstock("queues", "show", "orders", "--json").document["workers"] == []


@pytest.mark.parametrize("command", ["show", "purge"])
def test_a_missing_queue_is_a_usage_error(penstock: Call, broker: SqliteBroker, command: str) -> None:
    result = penstock("queues", command, "order")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "There is no queue order; existing queues: orders, orders-dlq." in result.err


def test_listing_without_queues_creates_nothing(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = penstock("queues", "list")
    assert result.exit_code == USAGE
    assert "There is no queue in" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(penstock: Call, broker: SqliteBroker) -> None:
    assert penstock("queues", "pause", "orders").out == "orders is paused.\n"
    assert not broker.receive("orders", messages_max=1, lease_seconds=5.0)
    assert penstock("queues", "show", "orders", "--json").document["paused"] is True
    assert penstock("queues", "resume", "orders", "--json").document == {"queue": "orders", "paused": False}
    assert broker.receive("orders", messages_max=1, lease_seconds=5.0)


def test_a_pause_and_its_end_are_in_the_audit_log(penstock: Call, broker: SqliteBroker) -> None:
    penstock("queues", "pause", "orders")
    penstock("queues", "resume", "orders")
    rows = penstock("admin", "audit", "--json").document
    assert [(row["action"], row["queue"], row["outcome"]) for row in rows] == [
        ("resume", "orders", "done"),
        ("pause", "orders", "done"),
    ]
    assert all(row["who"] for row in rows)


def test_a_queue_is_paused_without_the_ledger(
    penstock: Call, broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LEDGER", "mysql://u:secret@127.0.0.1:1/db")
    result = penstock("queues", "pause", "orders")
    assert result.out == "orders is paused.\n"
    assert "The audit log has no entry of this" in result.err
    assert "secret" not in result.err
    assert broker.paused("orders")


def test_a_pause_is_shown_on_a_narrow_terminal(
    penstock: Call, broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "state" not in penstock("queues", "list").out
    name = "orders-of-the-whole-northern-region"
    broker.send(name, [Outgoing(body=b"1")])
    broker.pause(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = penstock("queues", "list").out.splitlines()
    assert max(len(line) for line in lines) <= 80
    (row,) = [line for line in lines if line.startswith("orders-o")]
    assert row.split()[1:4] == ["paused", "1", "0"]
    assert {"state", "workers"} <= set(lines[0].split() + lines[1].split())


def test_a_queue_without_messages_has_no_age(penstock: Call, broker: SqliteBroker) -> None:
    broker.pause("empty")
    shown = penstock("queues", "show", "empty").out
    assert "oldest visible  nothing waits\n" in shown
    assert "\noldest  " not in shown
    (row,) = [line for line in penstock("queues", "list").out.splitlines() if line.startswith("empty ")]
    assert row.split() == ["empty", "paused", "0", "0", "0", "0", "0"]


def test_pausing_an_unknown_queue_works_and_is_reported(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = penstock("queues", "pause", "ordres")
    assert result.exit_code == 0
    assert result.err == "No message was ever sent to ordres; is the name correct?\n"


def test_purging_needs_confirmation(penstock: Call, broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    result = penstock("queues", "purge", "orders")
    assert result.exit_code == USAGE
    assert "give --yes" in result.err

    class Terminal:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self, size: int = -1, /) -> str:
            return self.answer

        def fileno(self) -> int:
            raise OSError

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    result = penstock("queues", "purge", "orders")
    assert (result.exit_code, result.out) == (FAILED, "")
    assert "Delete all 4 messages of orders, 1 of them in flight?" in result.err
    assert "Nothing was deleted." in result.err
    assert broker.stats("orders").visible == 2
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert penstock("queues", "purge", "orders").out == "4 messages of orders deleted.\n"
    stats = broker.stats("orders")
    assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)


def test_purging_with_yes_needs_no_confirmation(penstock: Call, broker: SqliteBroker) -> None:
    document = penstock("queues", "purge", "orders-dlq", "--yes", "--json").document
    assert document == {"queue": "orders-dlq", "deleted": 1}


def test_queues_in_memory_cannot_be_listed(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "memory://")
    assert penstock("queues", "list").exit_code == CONFIGURATION


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7_300.0, "2 h"), (400_000.0, "5 d")],
)
def test_ages_are_formatted_with_a_unit(seconds: float | None, text: str) -> None:
    assert age_of(seconds) == text


def test_dead_letters_of_both_dlqs_are_counted_in_every_state(penstock: Call, broker: SqliteBroker) -> None:
    for _ in range(2):
        broker.send("orders-dlq", [Outgoing(body=b"1")])
    (dead_letter, *_) = broker.receive("orders-dlq", messages_max=2, lease_seconds=60.0)
    assert not broker.settle([(dead_letter, DeadLetter(reason="enough", set_aside=True))])
    orders = penstock("queues", "show", "orders", "--json").document
    assert (orders["dead_letters"], orders["dead_letters_set_aside"]) == (3, 1)
    assert "3 (1 for people)" in penstock("queues", "show", "orders").out
    assert "dead letters: 3, 1 of them in final DLQs" in penstock("status").out


def test_a_queue_paused_by_its_breaker_is_shown(
    penstock: Call, broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = WorkerRecord(
        worker="w",
        host="here",
        namespace="n",
        pid=1,
        version="1",
        started_at=1.0,
        state="serving",
        queues=("orders",),
        in_flight=0,
        beat_at=1.0,
        paused={"orders": "ConnectionRefusedError: no"},
    )
    monkeypatch.setattr(Workers, "records", lambda _: [record])
    (orders, _) = penstock("queues", "list", "--json").document
    assert orders["breaker"] == "ConnectionRefusedError: no"
    assert "breaker" in penstock("queues", "list").out.splitlines()[1]
    assert "by its breaker: ConnectionRefusedError: no" in penstock("queues", "show", "orders").out
    assert "orders is paused by its breaker: ConnectionRefusedError: no" in penstock("status").out
    reason = "the ledger is unavailable: refused"
    unserved_record = replace(record, paused={}, unserved={"orders": reason})
    monkeypatch.setattr(Workers, "records", lambda _: [unserved_record])
    (orders, _) = penstock("queues", "list", "--json").document
    assert orders["unserved"] == reason
    assert "unserved" in penstock("queues", "list").out.splitlines()[1]
    assert reason in penstock("queues", "show", "orders").out
    assert f"orders is not consumed: {reason}" in penstock("status").out
    assert reason in penstock("admin", "workers", "list").out
    assert "unserved" in penstock("status", "--watch", "--once").out

"""`penstock admin monitor`: a real process queried over HTTP, and one poll printed."""

import signal
import sqlite3
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.conftest import Call
from tests.cli.process import DEADLINE_SECONDS, Process, Start
from tests.cli.scene import Scene

from penstock.app.history.history import HistoryReader
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger.records import AttemptFailure
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter

USAGE, TEMPORARY, CONFIGURATION = 2, 75, 78
HOUR = 3_600.0
APP = """
from pathlib import Path
from penstock import App, DeltaSink, ObjectSource

def note(exception, context):
    with Path("reported").open("a") as file:
        file.write(f"{context.fingerprint.split('|')[1]}: {context.error}\\n")

app = App.from_config(on_error=note)

@app.handler("orders")
def take(message):
    pass

app.pipeline(
    "clicks",
    source=ObjectSource("landing", queue="clicks-files", schema="id long"),
    sink=DeltaSink("tables/clicks"),
)
"""
SETTINGS = '[metrics]\nmonitor_address = "127.0.0.1:0"\nmonitor_every = 1\n'
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def here(app_scene: Scene, tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: object, **options: object) -> Process:
        process = Process(here, *arguments, **options)  # type: ignore[arg-type]  # passed on unchanged
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def broker(here: Path) -> Iterator[SqliteBroker]:
    broker = SqliteBroker(here / ".penstock" / "queue.db", holder="test")
    yield broker
    broker.close()


def http_get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_SECONDS) as response:
        return str(response.read().decode())


def samples(address: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(http_get(address, "/metrics"))
        for sample in family.samples
    }


def sample_value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"penstock_{name}", frozenset(labels.items())))


def wait_ready(address: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            http_get(address, "/readyz")
            return
        except OSError:  # 503 until the first poll is over
            assert time.monotonic() < deadline
            time.sleep(0.05)  # between two requests to another process


def make_older(here: Path, seconds: float) -> None:
    """Make the ledger's first sight of every object that much older."""
    with sqlite3.connect(here / ".penstock" / "ledger.db") as connection:
        connection.execute("UPDATE objects SET first_seen_at = first_seen_at - ?", [seconds])


def test_a_monitor_exports_queues_dead_letters_ledger_and_table(
    start: Start, here: Path, broker: SqliteBroker, app_scene: Scene
) -> None:
    broker.send("orders", [Outgoing(body=b"dies")])
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=600)
    assert not broker.settle([(delivery, DeadLetter(reason="no"))])
    broker.send("orders", [Outgoing(body=b"1"), Outgoing(body=b"2"), Outgoing(body=b"3", delay_seconds=600)])
    assert broker.receive("orders", messages_max=1, lease_seconds=600)
    app_scene.process("a", "b")
    app_scene.fail("c", AttemptFailure.RETRY, "again")
    make_older(here, 2 * HOUR)

    monitor = start("admin", "monitor", "shop:app")
    began = monitor.expect("monitor.started")
    assert (began["queues"], began["pipelines"]) == (["clicks-files", "orders"], ["clicks"])
    address = began["address"]
    wait_ready(address)
    found = samples(address)
    for state, count in (("visible", 1), ("in_flight", 1), ("delayed", 1)):
        assert sample_value(found, "queue_messages", queue="orders", state=state) == count
    for name in ("queue_oldest_message_age_seconds", "queue_oldest_visible_message_age_seconds"):
        age = sample_value(found, name, queue="orders", source="exact")
        assert age is not None
        assert 0 < age < 300
    assert sample_value(found, "dead_letters", queue="orders", tier="dlq") == 1
    assert sample_value(found, "dead_letters", queue="orders", tier="dead") == 0
    dead_letter_age = sample_value(found, "dead_letter_oldest_age_seconds", queue="orders", tier="dlq")
    assert dead_letter_age is not None
    assert 0 < dead_letter_age < 300
    assert sample_value(found, "objects", pipeline="clicks", state="processed") == 2
    assert sample_value(found, "objects", pipeline="clicks", state="unprocessed") == 1
    assert sample_value(found, "objects_overdue", pipeline="clicks") == 1
    oldest = sample_value(found, "object_oldest_unprocessed_age_seconds", pipeline="clicks")
    assert oldest is not None
    assert 2 * HOUR <= oldest < 2 * HOUR + 300
    assert sample_value(found, "objects_missing", pipeline="clicks") is None  # no reconcile has run
    lag = sample_value(found, "commit_to_publish_lag_seconds", pipeline="clicks")
    assert lag is not None
    assert 0 < lag < 300
    assert {dict(labels)["source"]: up for (name, labels), up in found.items() if name == "penstock_monitor_up"} == {
        "broker": 1,
        "ledger": 1,
        "tables": 1,
    }
    reported_overdue = monitor.expect("objects.overdue")
    assert (
        reported_overdue["level"],
        reported_overdue["pipeline"],
        reported_overdue["overdue"],
        reported_overdue["after_s"],
    ) == ("error", "clicks", 1, HOUR)

    app_scene.publish()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while sample_value(samples(address), "commit_to_publish_lag_seconds", pipeline="clicks") != 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # as above
    assert http_get(address, "/livez")

    history = HistoryReader(str(here / ".penstock"), measured_every_seconds=1)
    chart = history.chart(SeriesKind.PIPELINE, "clicks", HistoryRange.HOUR, at=time.time())
    assert (chart.values["processed"][0], chart.values["unpublished"][0]) == (2, 1)

    monitor.signal(signal.SIGTERM)
    assert monitor.exit_code() == 0
    assert sum('"objects.overdue"' in line for line in monitor.log_lines) == 1  # reported once, over all these polls
    (reported,) = (here / "reported").read_text().splitlines()
    assert reported.startswith("ObjectsOverdue: 1 object waits to be processed for more than 3,600 s")
    assert broker.stats("orders").in_flight == 1  # the monitor only read, and received nothing


def test_a_stop_does_not_wait_for_the_next_poll(start: Start, here: Path) -> None:
    (here / "penstock.toml").write_text(SETTINGS.replace("monitor_every = 1", "monitor_every = 60"))
    monitor = start("admin", "monitor", "shop:app")
    wait_ready(monitor.expect("monitor.started")["address"])
    signalled_at = time.monotonic()
    monitor.signal(signal.SIGTERM)
    assert monitor.exit_code() == 0
    assert time.monotonic() - signalled_at < 45, "the monitor waits a minute between two polls"


def test_one_poll_is_printed(penstock: Call, here: Path, app_scene: Scene, shop: str) -> None:
    app_scene.send("a", "b")
    app_scene.process("a")
    document = penstock("admin", "monitor", shop, "--once", "--json").document
    queues = {one["queue"]: one for one in document["queues"]}
    assert (queues["clicks-files"]["visible"], queues["views-files"]["visible"]) == (2, 0)
    assert queues["clicks-files"]["oldest_message_age_source"] == "exact"
    clicks = next(one for one in document["pipelines"] if one["pipeline"] == "clicks")
    assert clicks["objects"]["processed"] == 1
    assert 0 < clicks["commit_to_publish_lag_seconds"] < 300
    assert document["up"] == {"broker": True, "ledger": True, "tables": True}
    app_scene.publish()
    document = penstock("admin", "monitor", shop, "--once", "--json").document
    lags = {one["pipeline"]: one["commit_to_publish_lag_seconds"] for one in document["pipelines"]}
    assert lags == {"clicks": 0.0, "views": 0.0}
    result = penstock("admin", "monitor", shop, "--once").out
    assert "clicks-files" in result
    assert "1 processed" in result


def test_an_unavailable_source_fails_one_poll_and_hides_nothing_else(
    penstock: Call, here: Path, app_scene: Scene, shop: str
) -> None:
    app_scene.send("a")
    (here / ".penstock" / "ledger.db").write_bytes(b"this is no database at all, but long enough to be taken for one")
    result = penstock("admin", "monitor", shop, "--once")
    assert result.exit_code == TEMPORARY
    assert "The ledger cannot be measured: " in result.err
    assert "clicks-files" in result.out


KEYED_APP = """
from penstock import App

app = App.from_config()

@app.handler("orders", idempotency=lambda message: "k")
def take(message):
    pass
"""


def test_a_ledger_used_only_for_keys_is_monitored_too(penstock: Call, start: Start, here: Path) -> None:
    (here / "keys.py").write_text(KEYED_APP)
    (here / "penstock.toml").write_text('ledger = "postgresql://penstock@127.0.0.1:1/away"\n' + SETTINGS)
    result = penstock("admin", "monitor", "keys:app", "--once")
    assert result.exit_code == TEMPORARY
    assert "The ledger cannot be measured: " in result.err

    monitor = start("admin", "monitor", "keys:app")
    began = monitor.expect("monitor.started")
    assert (began["sources"], began["queues"], began["pipelines"]) == (["broker", "ledger"], ["orders"], [])
    assert monitor.expect("monitor_poll.failed")["source"] == "ledger"
    wait_ready(began["address"])
    assert sample_value(samples(began["address"]), "monitor_up", source="ledger") == 0


def test_an_app_that_needs_no_ledger_is_monitored_without_one(penstock: Call, here: Path) -> None:
    (here / "plain.py").write_text(KEYED_APP.replace(', idempotency=lambda message: "k"', ""))
    (here / "penstock.toml").write_text('ledger = "postgresql://penstock@127.0.0.1:1/away"\n' + SETTINGS)
    assert penstock("admin", "monitor", "plain:app", "--once", "--json").document["up"] == {"broker": True}


def test_an_unavailable_broker_is_not_reported_as_a_missing_queue(
    penstock: Call, here: Path, app_scene: Scene, shop: str
) -> None:
    (here / ".penstock" / "queue.db").write_bytes(b"this is no database at all, but long enough to be taken for one")
    result = penstock("admin", "monitor", shop, "--once")
    assert result.exit_code == TEMPORARY
    assert "The broker cannot be measured: " in result.err
    assert "There are no queues yet" not in result.out


def test_invalid_options_and_apps_are_reported(penstock: Call, here: Path, shop: str) -> None:
    result = penstock("admin", "monitor", shop, "--json")
    assert (result.exit_code, "--once" in result.err) == (USAGE, True)
    (here / "empty.py").write_text("from penstock import App\napp = App()\nmemory = App(broker='memory://')\n")
    result = penstock("admin", "monitor", "empty:app", "--once")
    assert (result.exit_code, "nothing to measure" in result.err) == (CONFIGURATION, True)
    result = penstock("admin", "monitor", "empty:memory", "--once")
    assert (result.exit_code, "memory://" in result.err) == (CONFIGURATION, True)
    result = penstock("admin", "monitor", shop, "--address", "nowhere")
    assert (result.exit_code, "The setting metrics.monitor_address is 'nowhere'" in result.err) == (CONFIGURATION, True)

"""Failure reports of real processes: also at their very end, and of processes that could not report themselves."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.process import Process, Start
from tests.integration.receivers import Receiver, receiver

UNFIT = 78

SHOP = """
import os, signal
import rollbar
from pathlib import Path
from penstock import App, DeltaSink, ObjectSource

rollbar.SETTINGS["endpoint"] = os.environ["TEST_ROLLBAR"]

def record(exception, context):
    with Path("errors.txt").open("a") as file:
        file.write(f"{context.process} {context.handler} {context.final} {type(exception).__name__}\\n")

app = App.from_config(on_error=record)

@app.handler("orders", name="order", max_attempts=1)
def order(message):
    password = "hunter2"
    raise ValueError("no answer from redis://app:hunter2@cache:6379/0")

app.pipeline("clicks", source=ObjectSource("landing", queue="clicks", schema="id long"), sink=DeltaSink("clicks"))

@app.handler("crashes", name="crash", max_attempts=1, isolation="process")
def crash(message):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return "shop:app"


@pytest.fixture
def sentry(shop: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiver() as one:
        monkeypatch.setenv("PENSTOCK_ALERTS_SENTRY_DSN", one.sentry_dsn)
        monkeypatch.setenv("TEST_ROLLBAR", one.rollbar_endpoint)
        yield one


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def started(*arguments: object) -> Process:
        processes.append(Process(tmp_path, *arguments))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


def send(tmp_path: Path, queue: str) -> None:
    (tmp_path / "body.jsonl").write_text("{}\n")
    assert Process(tmp_path, "send", queue, "--file", "body.jsonl").exit_code() == 0


def test_a_worker_delivers_its_last_failure_everywhere_before_it_ends(
    shop: str, sentry: Receiver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, "orders")
    with receiver() as chat, receiver() as rollbar:
        monkeypatch.setenv("PENSTOCK_ALERTS_NOTIFY_URLS", json.dumps([chat.chat_url]))
        monkeypatch.setenv("PENSTOCK_ALERTS_ROLLBAR_TOKEN", "0123456789")
        monkeypatch.setenv("TEST_ROLLBAR", rollbar.rollbar_endpoint)
        receivers = (sentry, chat, rollbar)
        for one in receivers:
            one.open.clear()  # no service responds while the worker runs
        worker = start("worker", shop, "--queues", "orders")
        worker.expect("message.failed", final=True)
        worker.signal(signal.SIGTERM)
        worker.expect("worker.drained")
        assert not any(one.requests for one in receivers)
        for one in receivers:
            one.open.set()
        assert worker.exit_code() == 0
        assert [len(one.requests) for one in receivers] == [1, 1, 1]  # it waited for them, and needs no more time
        (event,) = sentry.sentry_events()
        (chat_message,) = chat.documents()
        (item,) = rollbar.documents()
    assert event["tags"]["process"] == "worker"
    assert event["tags"]["queue"] == "orders"
    assert event["fingerprint"] == [item["data"]["fingerprint"]]
    assert event["fingerprint"][0].startswith("order|ValueError|")
    assert chat_message["title"] == "penstock: order failed"
    assert (tmp_path / "errors.txt").read_text() == "worker order True ValueError\n"
    del event["exception"]["values"][-1]["stacktrace"], item["data"]["body"]["trace"]["frames"]  # which show code
    del chat_message["message"]
    assert "hunter2" not in json.dumps([event, chat_message, item])
    assert "hunter2@" not in chat.requests[0][1].decode()


def test_a_crash_of_a_child_is_reported_by_its_worker(
    shop: str, sentry: Receiver, start: Start, tmp_path: Path
) -> None:
    send(tmp_path, "crashes")
    worker = start("worker", shop, "--queues", "crashes")
    (event,) = sentry.sentry_events()
    assert event["exception"]["values"][-1]["type"] == "ChildDied"
    assert "killed by signal 9" in event["exception"]["values"][-1]["value"]
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert (tmp_path / "errors.txt").read_text() == "worker crash True ChildDied\n"


def test_a_worker_that_is_killed_is_reported_by_its_supervisor(shop: str, sentry: Receiver, start: Start) -> None:
    supervisor = start("worker", shop, "--queues", "orders", "--processes", "2")
    pid = supervisor.expect("worker.started")["pid"]
    os.kill(pid, signal.SIGKILL)
    (event,) = sentry.sentry_events()
    assert event["tags"]["process"] == "supervisor"
    assert event["exception"]["values"] == [
        {"type": "ProcessExited", "value": f"The worker process {pid} was ended by signal 9; it is started again"}
    ]
    supervisor.expect("worker.started", times=3)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0


@pytest.mark.parametrize(
    ("arguments", "process"),
    [
        (("worker", "shop:app", "--queues", "nobody"), "worker"),
        (("admin", "replayer", "shop:app", "--queues", "nobody"), "replayer"),
        (("admin", "outbox", "relay", "shop:app", "--once"), "relay"),
        (("ingest", "nowhere", "table"), "ingest"),
        (("reconcile", "shop:app", "nobody"), "reconcile"),
        (("run", "shop:app", "clicks"), "run"),
        (("admin", "cleanup", "shop:app", "clicks"), "cleanup"),
        (("admin", "gc", "--app", "shop:app"), "upkeep"),
        (("admin", "publish", "shop:app"), "upkeep"),
    ],
)
def test_an_error_that_ends_a_process_early_is_reported(
    shop: str, sentry: Receiver, start: Start, tmp_path: Path, arguments: tuple[str, ...], process: str
) -> None:
    if process == "upkeep":
        (tmp_path / ".penstock").mkdir()
        (tmp_path / ".penstock" / "ledger.db").write_text("no database")
    ended = start(*arguments)
    assert ended.exit_code() != 0
    (event,) = sentry.sentry_events()
    assert event["tags"]["process"] == process
    assert event["level"] == "error"


def test_an_unavailable_service_is_logged_and_does_not_disturb_the_worker(
    shop: str, sentry: Receiver, start: Start, tmp_path: Path
) -> None:
    sentry.status = 503
    send(tmp_path, "orders")
    worker = start("worker", shop, "--queues", "orders")
    line = worker.expect("error_hook.failed", hook="sentry")
    assert "status_503" in line["error.message"]
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert (tmp_path / "errors.txt").read_text() == "worker order True ValueError\n"


def test_invalid_settings_end_a_worker_before_any_work(
    shop: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ROLLBAR", "http://127.0.0.1:1/")
    monkeypatch.setenv("PENSTOCK_ALERTS_NOTIFY_URLS", '["slock://hunter2"]')
    worker = start("worker", shop, "--queues", "orders")
    assert worker.exit_code() == UNFIT
    assert "notify_urls" in worker.error_message()
    assert "hunter2" not in "".join(worker.log_lines)

"""`penstock admin replayer`, and `penstock worker --replay`: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import DEADLINE_SECONDS, SRC, Process, Start
from tests.services.forked_process import run_forked

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.cli.replayer import _names
from penstock.errors import UsageError
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE
from penstock.messaging.settlement import DeadLetter

USAGE, CONFIGURATION = 2, 78
APP = """
from pathlib import Path
from penstock import App

app = App.from_config()

@app.lifespan
def shop():
    Path("opened").touch()
    yield

@app.handler("orders", max_attempts=1)
def take(message):
    if not Path("mended").exists():
        raise ValueError("no such order")

@app.handler("mails")
def mail(message):
    pass
"""
QUICK = "[dead_letters]\nreplay_base = 0.000001\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(QUICK)
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
    (here / ".penstock").mkdir()
    broker = SqliteBroker(here / ".penstock" / "queue.db", holder="test")
    yield broker
    broker.close()


def dead_letter(broker: SqliteBroker, queue: str = "orders", **fields: object) -> None:
    """Add a dead letter to the queue."""
    broker.send(queue, [Outgoing(body=b"{}", **fields)])  # type: ignore[arg-type]  # passed on unchanged
    (delivery,) = broker.receive(queue, messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, DeadLetter(reason="it failed"))])


def run_replayer(here: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [sys.executable, "-m", "penstock", "admin", "replayer", "shop:app", *arguments],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(SRC), **variables},
        timeout=DEADLINE_SECONDS,
    )


def test_a_run_replays_due_dead_letters_and_reports_counts(here: Path, broker: SqliteBroker) -> None:
    dead_letter(broker)
    dead_letter(broker)
    dead_letter(broker, attributes={COUNTER_ATTRIBUTE: "3"})
    dead_letter(broker, "mails")
    ran = run_replayer(here, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "mails": {"sent": 1, "waiting": 0, "set_aside": 0, "released": 0},
        "orders": {"sent": 2, "waiting": 0, "set_aside": 1, "released": 0},
    }
    assert broker.stats("orders-dlq").visible == 0
    assert broker.stats("orders-dead").visible == 1
    assert len(broker.receive("orders", messages_max=9, lease_seconds=60)) == 2
    assert not (here / "opened").exists()  # its handlers are not served, so their lifespan does not run


def test_a_run_without_due_dead_letters_reports_that(here: Path) -> None:
    ran = run_replayer(here)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "No dead letter was due." in ran.stderr


def test_a_queue_without_a_handler_can_be_named_and_others_are_left(here: Path, broker: SqliteBroker) -> None:
    dead_letter(broker, "elsewhere")
    dead_letter(broker)
    ran = run_replayer(here, "--json", "--queues", "elsewhere")
    assert list(json.loads(ran.stdout)) == ["elsewhere"]
    assert broker.stats("orders-dlq").visible == 1


def test_dead_letters_of_a_queue_turned_off_are_left_alone(here: Path, broker: SqliteBroker) -> None:
    (here / "penstock.toml").write_text(f"{QUICK}[dead_letters.replay_queues.orders]\noff = true\n")
    dead_letter(broker)
    assert run_replayer(here).returncode == 0
    assert broker.stats("orders-dlq").visible == 1
    ran = run_replayer(here, "--queues", "orders")
    assert (ran.returncode, "the settings turn replays off" in ran.stderr) == (CONFIGURATION, True)


def test_variables_of_the_aws_sample_are_used_without_own_settings(here: Path, broker: SqliteBroker) -> None:
    dead_letter(broker, attributes={COUNTER_ATTRIBUTE: "1"})
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    sample = {"MAX_ATTEMPS": "1", "BACKOFF_RATE": "500000"}
    ran = run_replayer(here, "--json", **sample)
    assert json.loads(ran.stdout)["orders"]["set_aside"] == 1
    ran = run_replayer(here, MAX_ATTEMPS="three")
    assert (ran.returncode, "MAX_ATTEMPS in the environment is 'three'" in ran.stderr) == (CONFIGURATION, True)
    dead_letter(broker)
    assert run_replayer(here, **sample).returncode == 0
    assert broker.stats("orders").visible == 1  # replay_base of penstock.toml takes precedence over theirs
    ran = run_replayer(here, SQS_MAIN_URL=url.removeprefix("https://"))
    assert (ran.returncode, "it is the URL of a queue" in ran.stderr) == (CONFIGURATION, True)


def test_a_worker_for_jobs_only_replays_and_opens_nothing_for_handlers(
    start: Start, broker: SqliteBroker, penstock: Call, here: Path
) -> None:
    replayer = start("worker", "shop:app", "--replay", "--jobs", "only")
    assert replayer.expect("worker.started")["queues"] == ["orders-dlq", "mails-dlq"]
    dead_letter(broker)
    replayed = replayer.expect("dead_letter.replayed")
    assert (replayed["queue"], replayed["dead_letter_queue"], replayed["count"], replayed["result"]) == (
        "orders",
        "orders-dlq",
        1,
        "sent",
    )
    (record,) = penstock("admin", "workers", "list", "--json").document
    assert record["queues"] == ["orders-dlq", "mails-dlq"]
    assert penstock("admin", "workers", "stop", "--json").document["asked"] == [record["worker"]]
    replayer.expect("worker.drained")
    assert replayer.exit_code() == 0
    assert not (here / "opened").exists()
    assert broker.stats("orders").visible == 1


def test_a_worker_consumes_and_replays_until_the_handler_is_fixed(
    start: Start, broker: SqliteBroker, here: Path
) -> None:
    broker.send("orders", [Outgoing(body=b"{}")])
    worker = start("worker", "shop:app", "--replay", "--queues", "orders")
    assert worker.expect("worker.started")["queues"] == ["orders", "orders-dlq"]
    worker.expect("dead_letter.set_aside", count=3)
    assert [worker.expect("dead_letter.replayed", times=n)["count"] for n in (1, 2, 3)] == [1, 2, 3]
    (here / "mended").touch()
    broker.send("orders", [Outgoing(body=b"{}")])
    worker.expect("message.finished")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert broker.stats("orders-dead").visible == 1


def test_without_replay_a_worker_leaves_dead_letters_alone(start: Start, broker: SqliteBroker) -> None:
    for options in ((), ("--replay", "--jobs", "none")):
        assert start("worker", "shop:app", *options).expect("worker.started")["queues"] == ["orders", "mails"]


def test_every_process_of_a_worker_gets_the_replay_setting(start: Start, here: Path) -> None:
    replaying = start("worker", "shop:app", "--replay", "--processes", 2)
    queues = ["orders", "mails", "orders-dlq", "mails-dlq"]
    assert [replaying.expect("worker.started", times=n)["queues"] for n in (1, 2)] == [queues] * 2
    replaying.signal(signal.SIGTERM)
    assert replaying.exit_code() == 0
    (here / "penstock.toml").write_text("[dead_letters]\nreplay = true\n")
    assert start("worker", "shop:app").expect("worker.started")["queues"] == queues
    assert start("worker", "shop:app", "--no-replay").expect("worker.started")["queues"] == queues[:2]


@pytest.mark.parametrize("text", ["", "a,,b", "a,a"])
def test_an_invalid_list_of_queues_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of different queues"):
        _names(text)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "result"),
    [
        (("shop:app", "--queues", "orders-dlq"), USAGE, "orders-dlq is a dead-letter queue by its name"),
        (("bare:app",), CONFIGURATION, "There is no queue whose dead letters can be replayed"),
        (("both:app",), CONFIGURATION, "The dead letters in orders-dlq have a handler in this app"),
        (("memory:app",), CONFIGURATION, "exists only inside its process"),
    ],
)
def test_invalid_values_are_reported_with_an_error_message(
    here: Path, start: Start, arguments: tuple[str, ...], exit_code: int, result: str
) -> None:
    (here / "bare.py").write_text("from penstock import App\napp = App.from_config()\n")
    (here / "memory.py").write_text("from penstock import App\napp = App(broker='memory://')\n")
    handler_code = "@app.handler('orders-dlq')\ndef look(message):\n    pass\n"
    (here / "both.py").write_text(f"from shop import app\n{handler_code}")
    replayer = start("admin", "replayer", *arguments)
    assert replayer.exit_code() == exit_code
    assert result in replayer.error_message()

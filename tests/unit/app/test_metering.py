"""The metrics of a process: only where they are asked for, and sent by a flush without a process around it."""

import json
import subprocess
import sys

import pytest

from penstock.app.metering import metrics_beside
from penstock.app.telemetry import open_telemetry
from penstock.config import load_settings
from penstock.events import Bus, DeadLetterReplayed
from penstock.monitoring.metrics.listener import MetricsListener


def replayed() -> DeadLetterReplayed:
    return DeadLetterReplayed(
        queue="orders",
        dead_letter_queue="orders-dlq",
        message_id="m",
        replay_id="r",
        count=1,
        due_at=None,
        new_message_id="n",
        result="sent",
    )


def test_nobody_counts_where_nobody_asks() -> None:
    heard = open_telemetry(load_settings(), worker="w1")
    assert heard.meters is None
    assert not [listener for listener in heard.listeners if isinstance(listener, MetricsListener)]
    with heard.running():
        assert heard.metrics_address is None


def test_a_flush_sends_what_each_call_of_a_function_counted(capsys: pytest.CaptureFixture[str]) -> None:
    heard = open_telemetry(load_settings(metrics_export=["emf"]), worker="w1")
    bus = Bus(*heard.listeners)
    sent = []
    for replays in (2, 1):
        for _ in range(replays):
            bus.emit(replayed())
        heard.flush(10.0)
        lines = map(json.loads, capsys.readouterr().err.splitlines())
        sent += [line["penstock_replays_total"] for line in lines if "_aws" in line]
    assert sent == [2, 1]


def test_a_process_that_fails_sends_its_last_numbers_once(capsys: pytest.CaptureFixture[str]) -> None:
    heard = open_telemetry(load_settings(metrics_export=["emf"]), worker="w1")
    assert heard.meters is not None
    heard.meters.replace("worker_slots", {("orders", "w1"): 10})
    with pytest.raises(ValueError, match="a defect"), heard.running():
        raise ValueError("a defect")
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["penstock_worker_slots"] for line in lines if "penstock_worker_slots" in line] == [10]


@pytest.mark.parametrize(
    ("given", "number", "own"),
    [
        (None, 3, None),
        ("127.0.0.1:9464", 0, "127.0.0.1:9464"),
        ("127.0.0.1:9464", 3, "127.0.0.1:9467"),
        ("[::1]:0", 3, "[::1]:0"),
    ],
)
def test_each_process_has_an_address_of_its_own(given: str | None, number: int, own: str | None) -> None:
    assert metrics_beside(load_settings(metrics_address=given), number).metrics_address == own


def test_a_worker_without_metrics_loads_nothing_of_them() -> None:
    code = (
        "import penstock.app.running, penstock.app.telemetry as t, sys\n"
        "from penstock.config import load_settings\n"
        "t.open_telemetry(load_settings(), worker='w1')\n"
        "heavy = ('prometheus_client', 'boto3', 'penstock.monitoring.metrics.cloudwatch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_monitor_does_not_answer_where_the_processes_of_a_worker_do() -> None:
    named = load_settings().model_copy(update={"metrics_address": "127.0.0.1:9464"})
    answering = [metrics_beside(named, number).metrics_address for number in range(64)]
    assert None not in answering
    assert named.metrics_monitor_address not in answering

"""The metrics of a process: counted only if a setting asks for them, and sent by a flush."""

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


def test_no_metrics_are_counted_without_a_setting_for_them() -> None:
    telemetry = open_telemetry(load_settings(), worker="w1")
    assert telemetry.meters is None
    assert not [listener for listener in telemetry.listeners if isinstance(listener, MetricsListener)]
    with telemetry.running():
        assert telemetry.metrics_address is None


def test_a_flush_sends_the_counts_since_the_last_flush(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = open_telemetry(load_settings(metrics_export=["emf"]), worker="w1")
    bus = Bus(*telemetry.listeners)
    sent = []
    for replays in (2, 1):
        for _ in range(replays):
            bus.emit(replayed())
        telemetry.flush(10.0)
        lines = map(json.loads, capsys.readouterr().err.splitlines())
        sent += [line["penstock_replays_total"] for line in lines if "_aws" in line]
    assert sent == [2, 1]


def test_a_failing_process_sends_its_last_values_once(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = open_telemetry(load_settings(metrics_export=["emf"]), worker="w1")
    assert telemetry.meters is not None
    telemetry.meters.replace("worker_slots", {("orders", "w1"): 10})
    with pytest.raises(ValueError, match="a defect"), telemetry.running():
        raise ValueError("a defect")
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["penstock_worker_slots"] for line in lines if "penstock_worker_slots" in line] == [10]


@pytest.mark.parametrize(
    ("given", "number", "address"),
    [
        (None, 3, None),
        ("127.0.0.1:9464", 0, "127.0.0.1:9464"),
        ("127.0.0.1:9464", 3, "127.0.0.1:9467"),
        ("[::1]:0", 3, "[::1]:0"),
    ],
)
def test_each_process_has_an_address_of_its_own(given: str | None, number: int, address: str | None) -> None:
    assert metrics_beside(load_settings(metrics_address=given), number).metrics_address == address


def test_a_worker_without_metrics_imports_no_metrics_library() -> None:
    code = (
        "import penstock.app.running, penstock.app.telemetry as t, sys\n"
        "from penstock.config import load_settings\n"
        "t.open_telemetry(load_settings(), worker='w1')\n"
        "heavy = ('prometheus_client', 'boto3', 'penstock.monitoring.metrics.cloudwatch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_monitors_address_is_none_of_a_workers_processes() -> None:
    settings = load_settings().model_copy(update={"metrics_address": "127.0.0.1:9464"})
    addresses = [metrics_beside(settings, number).metrics_address for number in range(64)]
    assert None not in addresses
    assert settings.metrics_monitor_address not in addresses

"""`penstock reconcile` and a worker's `--reconcile-every`, as processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.runs import IN_PROCESS, ON_SPARK, ROOT
from tests.services.forked_process import ForkedPopen

from penstock.app.reconcile import ReconcileReport
from penstock.cli.reconcile import print_reconcile_report
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState

pytestmark = pytest.mark.timeout(900)

PATIENCE_SECONDS = 400.0
STOP_SECONDS = 60.0
SHOP = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()
app.pipeline(
    "clicks", source=ObjectSource("landing", queue="events", schema="id long"), sink=DeltaSink("lake/clicks")
)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    landing = tmp_path / "landing"
    landing.mkdir()
    for number in range(3):
        (landing / f"{number}.jsonl").write_text(json.dumps({"id": number}) + "\n")
    return tmp_path


def begun(shop: Path, *words: str, module: str = ON_SPARK, **settings: str) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_OBJECTS_RECONCILE_OLDER_THAN": "0",
        "PENSTOCK_SPARK_MASTER": "local[2]",
    }
    environment |= {name: str(value) for name, value in settings.items()}
    return ForkedPopen(
        [sys.executable, "-m", module, *words],
        cwd=shop,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(shop: Path, *words: str) -> tuple[int, str, str]:
    process = begun(shop, *words)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not come true"
        pause.wait(0.2)


def test_a_check_reports_missing_objects_a_reconcile_sends_them_and_status_shows_them(shop: Path) -> None:
    code, out, err = done(shop, "reconcile", "shop:app", "clicks", "--check", "--json")
    assert code == 3, err
    report: dict[str, Any] = json.loads(out)
    assert (report["listed"], report["missing"], report["sent"], report["dry_run"]) == (3, 3, 0, True)
    code, out, err = done(shop, "reconcile", "shop:app", "clicks")
    assert code == 0, err
    assert "3 of 3 objects listed" in out
    assert "enqueued 3 of them in events" in out
    code, out, _ = done(shop, "status", "--app", "shop:app")
    assert "objects never processed, found by the latest reconcile: 3" in out.splitlines()[0]
    assert "3 missing, 3 enqueued again as of" in out


@pytest.mark.parametrize("missing", [0, 4])
def test_the_number_of_waiting_messages_is_reported(capsys: pytest.CaptureFixture[str], missing: int) -> None:
    report = ReconcileReport(
        pipeline="clicks",
        source="/landing",
        queue="events",
        as_of=1.0,
        messages_waiting=4,
        dry_run=True,
        missing=missing,
        left_out={},
    )
    print_reconcile_report(report)
    _, waited = capsys.readouterr().out.splitlines()
    assert waited.startswith("4 messages waited in events before")
    assert ("may be among these" in waited) == bool(missing)


def test_a_worker_reconciles_on_its_schedule_and_stops_in_time(shop: Path) -> None:
    (shop / ".penstock").mkdir()
    worker = begun(shop, "worker", "shop:app", "--reconcile-every", "1 min", module=IN_PROCESS)
    try:
        with closing(Ledger.open(shop / ".penstock" / "ledger.db")) as ledger:
            wait_until(lambda: worker.poll() is not None or ledger.counts("clicks")[ObjectState.PROCESSED] == 3)
            last = ledger.reconciliation("clicks")
        assert worker.poll() is None, worker.communicate()[1]
        assert last is not None
        assert (last.listed, last.missing, last.sent) == (3, 3, 3)
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=STOP_SECONDS)
    finally:
        worker.kill()
    assert worker.returncode == 0
    assert '"event": "objects.missing"' in err or "objects.missing" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("shop:app",), "Name an app and a pipeline"),
        (("shop:app", "clicks", "--listing", "--inventory", "x"), "not both"),
        (("--table", "lake/clicks"), "--table FOLDER --source SOURCE"),
        (("shop:app", "nothing"), "no pipeline or object handler nothing"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(shop: Path, words: tuple[str, ...], message: str) -> None:
    code, _, err = done(shop, "reconcile", *words)
    assert code == 2
    assert message in err

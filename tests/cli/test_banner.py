"""The banner of a started worker on a terminal, and the warning about unknown variables."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock import App
from penstock.cli.worker_process import banner
from penstock.events import WorkerStarted

SRC = Path(__file__).parents[2] / "src"
DEADLINE_SECONDS = 180.0
SHOP = """
from penstock import App

app = App.from_config()

@app.handler("orders", idempotency="order-{id}", name="book")
def book(order): ...

@app.handler("mails")
def mail(message): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP.replace(', idempotency="order-{id}"', ""))
    return tmp_path


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    controller, terminal_end = pty.openpty()
    yield controller, terminal_end
    for descriptor in (controller, terminal_end):
        with suppress(OSError):
            os.close(descriptor)


def until(descriptor: int, text: str) -> str:
    """Return the terminal's output up to the text."""
    found = ""
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while text not in found and time.monotonic() < ends_at:
        found += os.read(descriptor, 4096).decode(errors="replace")
    assert text in found, found
    return found


def test_a_worker_on_a_terminal_prints_its_banner(shop: Path, terminal: tuple[int, int]) -> None:
    controller, terminal_end = terminal
    command = [sys.executable, "-m", "penstock", "worker", "shop:app", "--queues", "orders=3,mails"]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    worker = subprocess.Popen(
        command, cwd=shop, env=environment, stdin=terminal_end, stdout=subprocess.PIPE, stderr=terminal_end
    )
    try:
        shown = until(controller, "releases them at once")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_SECONDS) == 0
        assert worker.stdout is not None
        assert worker.stdout.read() == b""
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()  # type: ignore[union-attr]
    lines = [line.strip() for line in shown[shown.index("Penstock ") :].splitlines()]
    fields = {line.rpartition("  ")[0].strip(): line.rpartition("  ")[2] for line in lines[1:] if "  " in line}
    assert fields["app"] == "shop:app"
    assert fields["queue orders"] == "book, weight 3"
    assert fields["queue mails"] == "mail, weight 1"
    assert (fields["ledger"], fields["metrics"], fields["jobs"]) == ("not used", "off", "none")
    assert "queue.db" in fields["broker"]


def test_the_banner_names_the_ledger_that_automatic_replay_uses(shop: Path) -> None:
    started = WorkerStarted(queues=("orders", "orders-dlq"), concurrency=100, ledger="sqlite:///x.db", jobs=("replay",))
    shown = banner(App(), started, app_name="shop:app")
    assert re.search(r"^  ledger +sqlite:///x.db$", shown, re.MULTILINE), shown


def test_a_worker_that_logs_json_prints_no_banner(shop: Path) -> None:
    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    worker = subprocess.Popen(command, cwd=shop, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        first = worker.stderr.readline()
        assert '"event":"worker.started"' in first
        worker.send_signal(signal.SIGTERM)
        assert all(line.startswith("{") for line in worker.stderr)
    finally:
        worker.kill()
        worker.wait()
        worker.stderr.close()  # type: ignore[union-attr]


def test_an_unknown_variable_causes_a_warning(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CONCURENCY", "5")
    result = penstock("admin", "workers", "list")
    assert (result.exit_code, result.out) == (0, "")
    (warning,) = [line for line in result.err.splitlines() if line.startswith("Warning: ")]
    assert "PENSTOCK_CONCURENCY" in warning

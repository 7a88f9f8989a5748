"""`penstock web` and `penstock worker --web`: real processes that serve the dashboard, and how they end."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import DEADLINE_SECONDS, Process, Start

USAGE, CONFIGURATION = 2, 78
SHOP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def take(order): ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[Process] = []

    def run(*arguments: object) -> Process:
        started.append(Process(here, *arguments))
        return started[-1]

    yield run
    for process in started:
        process.kill()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
    return text


@pytest.fixture
def command(here: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "web", "shop:app", "--address", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_address_and_serves_until_a_signal(
    command: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert command.stdout is not None
    url = json.loads("".join(command.stdout.readline() for _ in range(3)))["url"]
    assert "all well" in page(url)
    command.send_signal(number)
    assert command.wait(DEADLINE_SECONDS) == 0


def test_a_worker_serves_the_dashboard_while_it_works_and_drains(here: Path, start: Start) -> None:
    worker: Process = start("worker", "shop:app", "--web", "127.0.0.1:0")
    url = worker.expect("dashboard.started")["address"]
    worker.expect("worker.started")
    assert "all well" in page(url)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_of_several_processes_the_first_serves_it(here: Path, start: Start) -> None:
    fleet: Process = start("worker", "shop:app", "--processes", "2", "--web", "127.0.0.1:0")
    fleet.expect("worker.started", times=2)
    assert sum('"dashboard.started"' in line for line in fleet.log_lines) == 1
    fleet.signal(signal.SIGTERM)
    assert fleet.exit_code() == 0


def test_without_an_app_a_table_or_state_there_is_nothing_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, penstock: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = penstock("web")
    assert refused.exit_code == USAGE
    assert "There is nothing to look at" in refused.err


@pytest.mark.parametrize("arguments", [["web", "shop:app", "--address"], ["worker", "shop:app", "--web"]])
def test_an_address_that_cannot_be_used_is_one_sentence(here: Path, penstock: Call, arguments: list[str]) -> None:
    refused = penstock(*arguments, "here")
    assert refused.exit_code == CONFIGURATION
    assert "HOST:PORT" in refused.err
    assert "Traceback" not in refused.err

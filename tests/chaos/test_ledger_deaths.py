"""Eight processes on one ledger, killed at random requests to the database: the ledger stays consistent."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos import books
from tests.services.sql_asking import ask

PROCESSES = 8
SEED = 20260103
CHECKED_EVERY = 5  # deaths; processes die during the check, too


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
@pytest.mark.parametrize("deaths", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_processes_leave_a_consistent_ledger(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, deaths: int
) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    journal = tmp_path / "journal"
    began_at, died, checks = time.monotonic(), 0, 0
    command = [sys.executable, "-m", "tests.chaos.ledger_supervisor", url, PROCESSES, deaths, SEED, journal]
    with (tmp_path / "errors").open("w") as errors:
        supervisor = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=errors, text=True)
        assert supervisor.stdout is not None
        ends = []
        for line in supervisor.stdout:
            ends.append(json.loads(line))
            died += ends[-1]["code"] == -signal.SIGKILL
            if died % CHECKED_EVERY == 0:
                books.check_books(url)
                checks += 1
        assert supervisor.wait() == 0, (tmp_path / "errors").read_text()[-4000:]
    errors_text = (tmp_path / "errors").read_text()[-4000:]
    assert [end for end in ends if end["code"] not in (0, -signal.SIGKILL)] == [], errors_text
    assert died == deaths
    books.check_idle(url)
    assert set(books.states(url)) == {"processed"}
    confirmed = [json.loads(line) for line in journal.read_text().splitlines()]
    batches = {attempt: int(seq) for attempt, seq in ask(url, "SELECT attempt_id, seq FROM batches")}
    works = dict(ask(url, "SELECT w.key, w.attempt_id FROM works w WHERE w.state = 'done'"))
    assert all(batches.get(one["committed"]) == one["seq"] for one in confirmed if "committed" in one)
    assert all(works[one["finished"]] == one["by"] for one in confirmed if "finished" in one)
    assert len({one["finished"] for one in confirmed if "finished" in one}) == sum(
        "finished" in one for one in confirmed
    )
    unconfirmed = len(batches) - sum(one.get("seq") is not None for one in confirmed)
    print(  # noqa: T201 # the figures, shown with -s
        f"{died} deaths, {len(batches)} batches of {sum(books.states(url).values())} objects and {len(works)} works in "
        f"{time.monotonic() - began_at:.1f} s, {unconfirmed} batches took effect without a confirmation; "
        f"the ledger was checked {checks} times meanwhile"
    )

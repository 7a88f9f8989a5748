"""`penstock demo`: neither half loses anything to a SIGKILL, and success is reported only if that is true."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.operations.demo.files import DemoPlaces, FileCounts, FileProof, run_ingest
from penstock.operations.demo.messages import MessageCounts, MessageProof

USAGE = 2
RUN_SECONDS_MAX = 280


def _demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "demo", "--dir", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)


def test_the_message_half_kills_a_worker_and_loses_no_order(tmp_path: Path) -> None:
    ran = _demo(tmp_path / "demo", "--only", "messages", "--json")
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    proof = document["messages"]
    assert document["holds"]
    assert proof["at_end"] == {**proof["at_end"], "recorded": 995, "dead_lettered": 5, "queued": 0}
    assert proof["at_kill"]["queued"] > 0, "the worker was killed after the work was done"
    assert "killed with SIGKILL" in ran.stderr


def test_the_message_half_ignores_settings_even_invalid_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text("no_such_setting = 1\n")
    monkeypatch.setenv("PENSTOCK_WORKER_CONCURRENCY", "many")
    ran = _demo(tmp_path / "demo", "--only", "messages")
    assert ran.returncode == 0, ran.stderr


def test_the_ingest_of_the_file_half_gets_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def record(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(options)
        return subprocess.CompletedProcess(command, 0, stdout="{}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_QUARANTINE_RATIO", "0")
    monkeypatch.setenv("penstock_alerts_notify_urls", '["json://chat.example"]')
    run_ingest(DemoPlaces.under(tmp_path / "demo" / "files"))
    (options,) = calls
    assert options["cwd"] == tmp_path / "demo" / "files", "not the folder of a penstock.toml of the user"
    assert [name for name in options["env"] if name.upper().startswith("PENSTOCK_")] == []


def test_the_demo_prints_a_table_and_at_most_three_commands(tmp_path: Path) -> None:
    ran = _demo(tmp_path / "demo", "--only", "messages")
    assert ran.returncode == 0, ran.stderr
    table, _, after = ran.stdout.partition("Try next:\n")
    assert [line.split()[-1] for line in table.splitlines() if "lost  " in line] == ["0"]
    assert "Proved: 1,000 sent, none lost" in table
    assert 1 <= len(after.splitlines()) <= 3


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    ran = _demo(tmp_path)
    assert ran.returncode == USAGE
    assert "is not empty; give another folder with --dir" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_file_half_kills_an_ingest_and_doubles_no_row(tmp_path: Path) -> None:
    ran = _demo(tmp_path / "demo", "--only", "files", "--json")
    assert ran.returncode == 0, ran.stderr
    proof = json.loads(ran.stdout)["proof"]
    assert proof["rows"] == proof["rows_expected"] > proof["at_kill"]["rows"] > 0
    assert proof["rows_twice"] == 0


_DONE = MessageCounts(recorded=9, dead_lettered=1, queued=0, started_twice=0)
_MESSAGES = MessageProof(sent=10, without_price=1, workers=3, at_kill=_DONE, at_end=_DONE, lost=0, seconds=1.0)


@pytest.mark.parametrize("wrong", [{"recorded": 8}, {"dead_lettered": 2}, {"queued": 1}])
def test_a_message_proof_fails_if_a_count_is_wrong(wrong: dict[str, int]) -> None:
    assert _MESSAGES.holds
    assert not replace(_MESSAGES, at_end=replace(_DONE, **wrong)).holds
    assert not replace(_MESSAGES, lost=1).holds


_COUNTS = FileCounts(files=2, files_named=2, rows=100)
_FILES = FileProof(
    rows=100,
    rows_expected=100,
    rows_twice=0,
    quarantined=5,
    quarantined_expected=5,
    dead=1,
    dead_expected=1,
    at_kill=_COUNTS,
    at_end=_COUNTS,
)


@pytest.mark.parametrize("wrong", [{"rows": 99}, {"rows_twice": 1}, {"quarantined": 4}, {"dead": 0}])
def test_a_file_proof_fails_if_a_count_is_wrong(wrong: dict[str, Any]) -> None:
    assert _FILES.holds
    assert not replace(_FILES, **wrong).holds

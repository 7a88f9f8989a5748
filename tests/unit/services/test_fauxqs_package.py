"""fauxqs is installed once, and a machine that cannot says why."""

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.services import fauxqs_package


class Npm:
    """Stands in for npm: notes each call, and ends with that code."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.folders: list[Path] = []

    def __call__(self, command: object, *, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        assert {"package.json", "package-lock.json"} <= {path.name for path in cwd.iterdir()}
        self.folders.append(cwd)
        threading.Event().wait(0.1)  # as it takes its time, others come
        return subprocess.CompletedProcess([], self.code, stdout="", stderr="npm error\nnpm error network\n")


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Npm:
    installed = Npm()
    monkeypatch.setattr(fauxqs_package, "FOLDER", tmp_path / "build" / "fauxqs")
    monkeypatch.setattr(subprocess, "run", installed)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    return installed


def test_who_asks_at_the_same_time_installs_it_once(npm: Npm) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: fauxqs_package.why_not_here(), range(8))) == [None] * 8
    assert npm.folders == [fauxqs_package.FOLDER]


def test_another_lock_is_installed_again(npm: Npm) -> None:
    assert fauxqs_package.why_not_here() is None
    (fauxqs_package.FOLDER / "installed.json").write_text("of another time")
    assert fauxqs_package.why_not_here() is None
    assert len(npm.folders) == 2


def test_an_install_that_failed_is_told_and_tried_again(npm: Npm) -> None:
    npm.code = 1
    for _ in range(2):
        assert "network" in str(fauxqs_package.why_not_here())
    assert len(npm.folders) == 2


@pytest.mark.parametrize("tool", ["node", "npm"])
def test_a_machine_without_it_says_so(npm: Npm, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda asked: None if asked == tool else f"/bin/{asked}")
    assert f"{tool} is missing" in str(fauxqs_package.why_not_here())
    assert not npm.folders


def test_the_lock_names_no_place_that_packages_come_from() -> None:
    lock = (fauxqs_package.HERE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert '"integrity"' in lock

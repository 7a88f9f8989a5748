"""fauxqs is installed once, and a machine without its tools reports the reason."""

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.services import fauxqs_package


class Npm:
    """A stand-in for npm that records each call and ends with the given code."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.folders: list[Path] = []

    def __call__(self, command: object, *, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        assert {"package.json", "package-lock.json"} <= {path.name for path in cwd.iterdir()}
        self.folders.append(cwd)
        threading.Event().wait(0.1)  # long enough for the other threads to call it too
        return subprocess.CompletedProcess([], self.code, stdout="", stderr="npm error\nnpm error network\n")


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Npm:
    installed = Npm()
    monkeypatch.setattr(fauxqs_package, "FOLDER", tmp_path / "build" / "fauxqs")
    monkeypatch.setattr(subprocess, "run", installed)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    return installed


def test_concurrent_calls_install_the_package_once(npm: Npm) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: fauxqs_package.why_not_here(), range(8))) == [None] * 8
    assert npm.folders == [fauxqs_package.FOLDER]


def test_a_changed_lock_is_installed_again(npm: Npm) -> None:
    assert fauxqs_package.why_not_here() is None
    (fauxqs_package.FOLDER / "installed.json").write_text("of another lock")
    assert fauxqs_package.why_not_here() is None
    assert len(npm.folders) == 2


def test_a_failed_installation_is_reported_and_retried(npm: Npm) -> None:
    npm.code = 1
    for _ in range(2):
        assert "network" in str(fauxqs_package.why_not_here())
    assert len(npm.folders) == 2


@pytest.mark.parametrize("tool", ["node", "npm"])
def test_a_missing_tool_is_reported(npm: Npm, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else f"/bin/{name}")
    assert f"{tool} is missing" in str(fauxqs_package.why_not_here())
    assert not npm.folders


def test_the_lock_names_no_registry() -> None:
    lock = (fauxqs_package.HERE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert '"integrity"' in lock

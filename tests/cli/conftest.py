"""Calling `penstock` in this process, as the shell would."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.scene import Scene

from penstock.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a call printed, and how it ended."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What --json printed: one document, after a call that went well."""
        assert self.exit_code == 0, self.err
        return json.loads(self.out)


Call = Callable[..., Said]


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Said:
        monkeypatch.setattr("sys.argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        code = end.value.code
        assert isinstance(code, int)
        return Said(code, captured.out, captured.err)

    return call


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A table without history, the only one below the current folder."""
    monkeypatch.chdir(tmp_path)
    return Scene.at(tmp_path)

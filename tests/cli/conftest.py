"""Calling `penstock` in this process, as the shell would."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a call printed, and how it ended."""

    exit_code: int
    out: str
    err: str


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

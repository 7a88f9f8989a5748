"""A supervisor passes its options to its workers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock.config import Settings


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--replay",),
        ("--no-replay",),
        ("--queues", "orders=2,mails", "--concurrency", "3", "--stop-timeout", "45.5", "--reconcile-every", "1h"),
        ("--metrics-address", "127.0.0.1:9464"),
    ],
)
def test_options_reach_the_children(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> None:
    started: list[tuple[Sequence[str], Settings]] = []

    def supervise(arguments: Sequence[str], settings: Settings) -> int:
        started.append((arguments, settings))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penstock.cli.supervise.supervise", supervise)
    assert penstock("worker", "shop:app", "--processes", 2, *options).exit_code == 0
    ((arguments, settings),) = started
    assert [*arguments] == ["-m", "penstock", "worker", "shop:app", *options]
    assert settings.worker_processes == 2

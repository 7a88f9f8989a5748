"""Cleanup of the source of an object handler: by its worker and by the command, without Spark."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.process import Process, Start

from penstock import App, cleanup
from penstock.config import Settings
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState

SHOP = """
from penstock import App, Reject, cleanup

app = App.from_config()

@app.object_handler("landed", source="landing", name="parse", source_cleanup={declared})
def parse(incoming):
    if b"bad" in incoming.read():
        raise Reject("bad")

app.announce("landed", "landing")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def started(*arguments: object) -> Process:
        processes.append(Process(tmp_path, *arguments))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


def shop(folder: Path, declared: str) -> None:
    (folder / "shop.py").write_text(SHOP.format(declared=declared))
    (folder / "landing" / "2026").mkdir(parents=True)
    for path in ("a", "2026/b", "bad"):
        (folder / "landing" / path).write_text(path)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_worker_moves_processed_objects_and_leaves_failed_ones(tmp_path: Path, start: Start) -> None:
    shop(tmp_path, "cleanup.Move('done')")
    worker = start("worker", "shop:app")
    worker.expect("object.finished", times=2)
    worker.expect("object.failed")
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    # objects that the worker did not clean up before it ended
    command = start("admin", "cleanup", "shop:app", "parse", "--json")
    assert command.exit_code() == 0, command.log_lines
    assert files(tmp_path / "done") == {"a", "2026/b"}
    assert files(tmp_path / "landing") == {"bad"}
    with closing(Ledger.open(f"sqlite:///{tmp_path}/.penstock/ledger.db")) as ledger:
        assert ledger.counts("parse")[ObjectState.PROCESSED] == 2
    again = start("admin", "cleanup", "shop:app", "parse")
    assert again.exit_code() == 0
    assert files(tmp_path / "done") == {"a", "2026/b"}


def test_objects_due_later_stay_until_then(tmp_path: Path, start: Start) -> None:
    shop(tmp_path, "cleanup.Delete(after='1 day')")
    worker = start("worker", "shop:app")
    worker.expect("object.finished", times=2)
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    assert start("admin", "cleanup", "shop:app", "parse").exit_code() == 0
    assert files(tmp_path / "landing") == {"a", "2026/b", "bad"}


def test_invalid_cleanups_are_refused_at_the_declaration(tmp_path: Path) -> None:
    app = App(settings=Settings())
    with pytest.raises(UsageError, match="cannot be tagged"):
        app.object_handler("q", source=str(tmp_path), source_cleanup=cleanup.Tag())(print)
    with pytest.raises(UsageError, match="overlaps with its own source"):
        app.object_handler("q", source=str(tmp_path), source_cleanup=cleanup.Move(tmp_path / "done"))(print)
    app.object_handler("q", source=str(tmp_path), name="one")(lambda incoming: None)
    with pytest.raises(UsageError, match="also reads"):
        app.object_handler("r", source=str(tmp_path), name="two", source_cleanup=cleanup.Delete(after=0))(
            lambda incoming: None
        )

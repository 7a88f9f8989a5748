"""A worker is killed at every step of restoring an object that was found deleted: it is read, once."""

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration import unread_worker
from tests.integration.unread_worker import HANDLER, QUEUE
from tests.services.forked_process import run_forked

from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.steps import Step

ROOT = Path(__file__).parents[2]
KILLED = -9
AT_ONCE, NEVER = "0.2", "3600"  # seconds after which a second check makes a missing object a deleted one
LIFE = (  # of an object; each process starts where the one before was killed
    Step.RECEIVED,
    Step.OBJECTS_REGISTERED,
    Step.ATTEMPT_OPENED,
    Step.ABANDONED,
    Step.COMMITTING,
    Step.COMMITTED,
    Step.SETTLING,
    Step.SETTLED,
)


@dataclass
class Inbox:
    """A folder with one file, and a worker on it."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "inbox" / "a"

    def enqueue(self) -> None:
        with unread_worker.open_app(self.folder) as app:
            assert app.announce(QUEUE, str(self.folder / "inbox")) == 1

    def work(self, *, kill_at: str | None = None, deleted_after_seconds: str = AT_ONCE) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "DELETED_AFTER_SECONDS": deleted_after_seconds,
            **({} if kill_at is None else {"PENSTOCK_KILL_AT": kill_at}),
        }
        ended = run_forked(
            [sys.executable, "-m", "tests.integration.unread_worker", str(self.folder)],
            env=environment,
            start_new_session=True,  # a step kills the whole process group
            timeout=60,
        )
        assert ended.returncode == (0 if kill_at is None else KILLED), f"{kill_at}: {ended.stderr}"

    @property
    def states(self) -> Mapping[str, int]:
        with closing(Ledger.open(self.folder / ".penstock" / "ledger.db")) as ledger:
            return {state.value: count for state, count in ledger.counts(HANDLER).items() if count}

    @property
    def outcomes(self) -> list[str]:
        with closing(Ledger.open(self.folder / ".penstock" / "ledger.db")) as ledger:
            (row,) = ledger.objects(HANDLER)
            return [one.outcome for one in ledger.attempts_of(HANDLER, row.object_id)]

    @property
    def read(self) -> list[str]:
        notes = self.folder / "read"
        return notes.read_text().split() if notes.exists() else []


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    opened = Inbox(tmp_path.resolve())
    opened.file.parent.mkdir()
    (opened.file.parent / ".keep").touch()
    return opened


def assert_read_once_despite_kills(inbox: Inbox) -> None:
    inbox.enqueue()
    for step in LIFE:
        inbox.work(kill_at=step.value)
    inbox.work()
    assert inbox.states == {"processed": 1}
    assert inbox.outcomes.count("processed") == 1
    assert set(inbox.read) == {"hello"}
    assert len(inbox.read) <= 2, "again after the kill before its commit, and never after that"
    inbox.enqueue()
    inbox.work()
    assert len(inbox.read) <= 2, "a processed object is not read again"


def test_a_deleted_object_that_returns_is_read_once(inbox: Inbox) -> None:
    inbox.file.write_text("hello")
    inbox.enqueue()
    moved = inbox.file.rename(inbox.folder / "away")
    inbox.work()
    assert inbox.states == {ObjectState.DELETED.value: 1}
    moved.rename(inbox.file)
    assert_read_once_despite_kills(inbox)


@pytest.mark.parametrize("step", [Step.ATTEMPT_OPENED, Step.COMMITTED])
def test_a_killed_check_does_not_affect_later_notifications(inbox: Inbox, step: Step) -> None:
    inbox.file.write_text("hello")
    inbox.enqueue()
    moved = inbox.file.rename(inbox.folder / "away")
    inbox.work(kill_at=step.value, deleted_after_seconds=NEVER)
    assert inbox.states == {"processing" if step is Step.ATTEMPT_OPENED else "unprocessed": 1}
    moved.rename(inbox.file)
    inbox.enqueue()
    inbox.work(deleted_after_seconds=AT_ONCE)
    assert (inbox.states, inbox.read) == ({"processed": 1}, ["hello"])

"""A worker is killed at every step of giving an object that was found deleted another life: it is read, once."""

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
AT_ONCE, NEVER = "0.2", "3600"  # seconds after which a second look makes a missing object a deleted one
LIFE = (  # of an object; each process begins where the one before was killed
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

    def announce(self) -> None:
        with unread_worker.made(self.folder) as app:
            assert app.announce(QUEUE, str(self.folder / "inbox")) == 1

    def work(self, *, kill_at: str | None = None, gone_after_seconds: str = AT_ONCE) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "GONE_AFTER_SECONDS": gone_after_seconds,
            **({} if kill_at is None else {"PENSTOCK_KILL_AT": kill_at}),
        }
        ended = run_forked(
            [sys.executable, "-m", "tests.integration.unread_worker", str(self.folder)],
            env=environment,
            start_new_session=True,  # a step kills the whole group
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
    made = Inbox(tmp_path.resolve())
    made.file.parent.mkdir()
    (made.file.parent / ".keep").touch()
    return made


def killed_at_each_step(inbox: Inbox) -> None:
    inbox.announce()
    for step in LIFE:
        inbox.work(kill_at=step.value)
    inbox.work()
    assert inbox.states == {"processed": 1}
    assert inbox.outcomes.count("processed") == 1
    assert set(inbox.read) == {"hello"}
    assert len(inbox.read) <= 2, "again after the kill before its commit, and never after that"
    inbox.announce()
    inbox.work()
    assert len(inbox.read) <= 2, "what was read is not read again"


def test_an_object_that_was_gone_lives_again_once(inbox: Inbox) -> None:
    inbox.file.write_text("hello")
    inbox.announce()
    away = inbox.file.rename(inbox.folder / "away")
    inbox.work()
    assert inbox.states == {ObjectState.DELETED.value: 1}
    away.rename(inbox.file)
    killed_at_each_step(inbox)


@pytest.mark.parametrize("step", [Step.ATTEMPT_OPENED, Step.COMMITTED])
def test_a_killed_check_hides_nothing_that_is_announced_later(inbox: Inbox, step: Step) -> None:
    inbox.file.write_text("hello")
    inbox.announce()
    away = inbox.file.rename(inbox.folder / "away")
    inbox.work(kill_at=step.value, gone_after_seconds=NEVER)
    assert inbox.states == {"processing" if step is Step.ATTEMPT_OPENED else "unprocessed": 1}
    away.rename(inbox.file)
    inbox.announce()
    inbox.work(gone_after_seconds=AT_ONCE)
    assert (inbox.states, inbox.read) == ({"processed": 1}, ["hello"])

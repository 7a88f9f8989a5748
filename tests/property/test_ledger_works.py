"""Works against a small model of their rules, in any order of calls, deaths, lost responses and passing time.

The model uses no SQL and no code of the ledger: a dictionary of keys, and the attempts that were ever begun.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import PoolProxiedConnection
from tests.examples import examples

from penstock.ledger import Ledger
from penstock.ledger.records import HolderOutcome, WorkBegun, WorkBusy, WorkDone

pytestmark = pytest.mark.generated

HANDLER = "make"
KEYS = ("a", "b", "c")
WORKERS = ("w-1", "w-2")
LEASE_SECONDS = 10.0

ATTEMPTS = st.integers(min_value=0, max_value=12)
# The fate of each of the next COMMITs: its response arrives, or is lost after the commit took effect or not.
FATES = st.lists(st.sampled_from(["answered", "committed", "rolled back"]), max_size=4)


@dataclass
class Work:
    """One key in the model: its current attempt, and the outcome of the last attempt that did not complete it."""

    attempt: str
    worker: str
    lease_until: float
    began: int = 1
    open: bool = True
    outcome: str | None = None
    ended_at: float = 0.0
    previous: tuple[str, str, str] | None = None  # attempt, outcome, reason

    def end(self, outcome: str, reason: str, now: float) -> None:
        self.open, self.ended_at, self.previous = False, now, (self.attempt, outcome, reason)


class WorksMachine(RuleBasedStateMachine):
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_000.0
        self.works: dict[str, Work] = {}
        self.begun = 0

    @initialize()
    def open_ledger(self) -> None:
        self.ledger = Ledger.open("sqlite://", now=lambda: self.time)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()

    # Actions

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds

    @rule(key=st.sampled_from(KEYS), worker=st.sampled_from(WORKERS), fates=FATES)
    def begin(self, key: str, worker: str, fates: list[str]) -> None:
        attempt = f"attempt-{self.begun}"
        self.begun += 1
        work = self.works.get(key)
        with self.responses_lost(fates):
            begun = self.ledger.begin_work(HANDLER, key, attempt_id=attempt, worker=worker, lease_seconds=LEASE_SECONDS)
        if work is not None and work.outcome is not None:
            expected = WorkDone(
                outcome=work.outcome, completed_at=work.ended_at, worker=work.worker, attempt_id=work.attempt
            )
            assert begun == expected
            return
        if work is not None and work.open and work.lease_until >= self.time:
            assert isinstance(begun, WorkBusy)
            assert begun.seconds == pytest.approx(work.lease_until - self.time)
            return
        if work is not None and work.open:
            work.end("expired", "its lease ran out", self.time)
        fresh = Work(attempt, worker, self.time + LEASE_SECONDS)
        if work is not None:
            fresh.began, fresh.previous = work.began + 1, work.previous
        self.works[key] = fresh
        assert isinstance(begun, WorkBegun)
        previous = begun.previous
        assert (previous and (previous.attempt_id, previous.outcome, previous.reason)) == fresh.previous

    @precondition(lambda self: self.begun)
    @rule(number=ATTEMPTS)
    def extend(self, number: int) -> None:
        attempt = self.one_of_the_latest(number)
        work = self.held_by(attempt)
        assert self.ledger.extend_work(attempt, lease_seconds=LEASE_SECONDS) is (work is not None)
        if work is not None:
            work.lease_until = self.time + LEASE_SECONDS

    @precondition(lambda self: self.begun)
    @rule(number=ATTEMPTS, fates=FATES)
    def finish(self, number: int, fates: list[str]) -> None:
        attempt = self.one_of_the_latest(number)
        work = self.held_by(attempt)
        finished_before = any(one.attempt == attempt and one.outcome is not None for one in self.works.values())
        with self.responses_lost(fates):
            answer = self.ledger.finish_work(attempt, outcome=f'"at {self.time}"')
        assert answer is (work is not None or finished_before)
        if work is not None:
            work.open, work.outcome, work.ended_at = False, f'"at {self.time}"', self.time

    @precondition(lambda self: self.begun)
    @rule(number=ATTEMPTS, how=st.sampled_from(["failed", "given_back"]), fates=FATES)
    def end(self, number: int, how: HolderOutcome, fates: list[str]) -> None:
        attempt = self.one_of_the_latest(number)
        work = self.held_by(attempt)
        ended_so_before = any(
            one.attempt == attempt and one.previous is not None and one.previous[:2] == (attempt, how)
            for one in self.works.values()
        )
        with self.responses_lost(fates):
            answer = self.ledger.end_work(attempt, outcome=how, reason=f"at {self.time}")
        assert answer is (work is not None or ended_so_before)
        if work is not None:
            work.end(how, f"at {self.time}", self.time)

    @rule(worker=st.sampled_from(WORKERS))
    def a_worker_dies(self, worker: str) -> None:
        held = [work for work in self.works.values() if work.open and work.worker == worker]
        for work in held:
            work.end("expired", f"worker {worker} died", self.time)
        assert self.ledger.abandon_worker_works(worker) == len(held)

    @rule(older_than_seconds=st.sampled_from([3.0, 20.0]), limit=st.sampled_from([1, 10]))
    def forget(self, older_than_seconds: float, limit: int) -> None:
        old = sorted(
            (work.ended_at, key)
            for key, work in self.works.items()
            if not work.open and work.ended_at < self.time - older_than_seconds
        )
        assert self.ledger.forget_works(older_than_seconds=older_than_seconds, limit=limit) == min(limit, len(old))
        left = {row.key for row in self.ledger.works()}
        deleted = self.works.keys() - left
        assert deleted <= {key for _, key in old}
        times = {key: ended_at for ended_at, key in old}
        assert sorted(times[key] for key in deleted) == [ended_at for ended_at, _ in old[:limit]], (
            "the oldest are deleted first"
        )
        for key in deleted:
            del self.works[key]

    # Helpers of the model

    def one_of_the_latest(self, number: int) -> str:
        """Return an attempt that was begun, most likely one that is still open."""
        return f"attempt-{max(0, self.begun - 1 - number)}"

    def held_by(self, attempt: str) -> Work | None:
        return next((work for work in self.works.values() if work.open and work.attempt == attempt), None)

    @contextlib.contextmanager
    def responses_lost(self, fates: list[str]) -> Iterator[None]:
        """Apply these fates to the next COMMITs."""
        dialect = self.ledger.database.engine.dialect
        do_commit, left = dialect.do_commit, list(fates)

        def lossy(connection: PoolProxiedConnection) -> None:
            fate = left.pop(0) if left else "answered"
            if fate == "rolled back":
                dialect.do_rollback(connection)
            else:
                do_commit(connection)
            if fate != "answered":
                raise dialect.loaded_dbapi.OperationalError("connection lost")

        with mock.patch.object(dialect, "do_commit", lossy):
            yield

    # Invariants

    @invariant()
    def works_equal_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        rows = {row.key: row for row in self.ledger.works(HANDLER)}
        assert rows.keys() == self.works.keys()
        for key, work in self.works.items():
            row = rows[key]
            state = "open" if work.open else "free" if work.outcome is None else "done"
            assert (row.state, row.attempt_id, row.worker, row.attempts) == (
                state,
                work.attempt,
                work.worker,
                work.began,
            )
            assert row.lease_until == (work.lease_until if work.open else None)
            assert (row.outcome, row.completed_at) == (work.outcome, work.ended_at if work.outcome else None)
            previous = row.previous
            assert (previous and (previous.attempt_id, previous.outcome, previous.reason)) == work.previous


TestLedgerWorks = WorksMachine.TestCase
TestLedgerWorks.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)

"""Every operation of a ledger over a connection that loses answers.

After each call, a separate connection reads the true state, and the ledger's answer is compared with it.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from tests.chaos import books
from tests.services.sql_asking import ask
from tests.services.sql_proxy import Plan, SqlProxy

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    BatchRecord,
    Candidate,
    FailedObject,
    ObjectClaims,
    ObjectResult,
    OriginalMessage,
    WorkBegun,
    WorkBusy,
    WorkDone,
)

PIPELINE = "clicks"
LEASE_SECONDS = 3600.0  # no lease expires
OBJECTS_AT_ONCE = 4
CALLS_MAX = 40  # until an answer arrives: each call meets about five fates

Answer = TypeVar("Answer")


class Story:
    """A ledger over a connection that loses commits, and the expected state of each."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.proxy = SqlProxy(url)
        self.ledger = Ledger.open(self.proxy.url)
        self.ledger.ensure_pipeline(PIPELINE)
        self.calls: Counter[str] = Counter()
        self.without_answer: Counter[str] = Counter()  # calls that ended with a TemporaryError
        self._schemas = 0
        self._number = 0
        self._free: list[bytes] = []  # objects that go around again
        self._counted: Counter[bytes] = Counter()  # attempts that are to count, by object

    def close(self) -> None:
        self.proxy.heal()
        self.ledger.close()
        self.proxy.close()

    def fresh_name(self, word: str) -> str:
        self._number += 1
        return f"{word}-{self._number}"

    def ask(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Repeat a call until there is an answer, as a worker does."""
        for _ in range(CALLS_MAX):
            try:
                return self.once(name, call)
            except TemporaryError:
                continue
        raise AssertionError(f"{name}: no answer to {CALLS_MAX} calls")

    def once(self, name: str, call: Callable[[], Answer]) -> Answer:
        self.calls[name] += 1
        try:
            return call()
        except TemporaryError:
            self.without_answer[name] += 1
            raise
        finally:
            self.proxy.let_late_come()

    # Objects

    def claim(self, worker: str = "w") -> ObjectClaims:
        """Claim objects with as many attempts as necessary, and check that unanswered attempts hold nothing."""
        again, self._free = self._free[:2], self._free[2:]
        new = [self.fresh_name("object").encode().rjust(16, b"\0") for _ in range(OBJECTS_AT_ONCE - len(again))]
        wanted = [*again, *new]
        while True:
            attempt_id = self.fresh_name("attempt")
            try:
                claim = self.once("claim", lambda: self._claim(wanted, attempt_id, worker))  # noqa: B023 - called now
            except TemporaryError:
                self._check_released(attempt_id)
                continue
            assert books.attempt(self.url, attempt_id) == ("open", None)
            assert set(claim.claimed) == set(wanted) == books.held_by(self.url, attempt_id)
            self._counted.update(wanted)
            assert all(each.attempts == self._counted[id] for id, each in claim.claimed.items())
            return claim

    def _claim(self, ids: list[bytes], attempt_id: str, worker: str) -> ObjectClaims:
        candidates = [candidate(id) for id in ids]
        return self.ledger.claim(
            PIPELINE, candidates, attempt_id=attempt_id, worker=worker, lease_seconds=LEASE_SECONDS
        )

    def _check_released(self, attempt_id: str) -> None:
        """Check that an attempt whose claim got no answer holds nothing.

        The ledger releases such a claim. If it is still open, because the release was lost or arrived first, release it
        here.
        """
        if books.attempt(self.url, attempt_id) == ("open", None):
            self.ask("abandon", lambda: self._abandon(attempt_id))
        assert books.attempt(self.url, attempt_id) in (None, ("abandoned", "given_back"))
        assert books.held_by(self.url, attempt_id) == set()

    def _abandon(self, attempt_id: str) -> bool:
        return self.ledger.abandon(attempt_id, reason="test", outcome="given_back", uncounted=True, unattributed=False)

    def commit(self) -> None:
        """Commit processed objects, one failed object, and now and then a new schema."""
        claim = self.claim()
        *done, failed = sorted(claim.claimed)
        failure = self.chance.choice(list(AttemptFailure))
        outcome = BatchOutcome(
            pipeline=PIPELINE,
            attempt_id=claim.attempt_id,
            processed=[ObjectResult(object_id=id, rows=7, lines_quarantined=0) for id in done],
            failed=[
                FailedObject(
                    object_id=failed, failure=failure, reason="test", uncounted=failure is AttemptFailure.RETRY
                )
            ],
            record=BatchRecord(rows=7 * len(done)),
            schema_id=self._schemas,
            new_schema="{}" if self.chance.random() < 0.2 else None,
        )
        committed = self.ask("commit", lambda: self.ledger.commit(outcome))
        assert committed is not None
        self._schemas += outcome.new_schema is not None
        assert books.attempt(self.url, claim.attempt_id) == ("committed", None)
        assert books.batches_of(self.url, claim.attempt_id) == [committed.seq]
        assert self.ask("commit", lambda: self.ledger.commit(outcome)) == committed, (
            "a repeated commit returns the same"
        )
        if failure is AttemptFailure.RETRY:
            self._free.append(failed)
            self._counted[failed] -= 1

    def commit_nothing(self) -> None:
        """Commit a batch without processed objects, and check that its uncounted attempts are subtracted once."""
        claim = self.claim()
        failed = [
            FailedObject(object_id=id, failure=AttemptFailure.RETRY, reason="test", uncounted=True)
            for id in sorted(claim.claimed)
        ]
        outcome = BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=(), failed=failed)
        assert self.ask("commit", lambda: self.ledger.commit(outcome)) is None
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "nothing_processed")
        self._check_free(claim)

    def abandon(self) -> None:
        claim = self.claim()
        assert self.ask("extend", lambda: self.ledger.extend(claim.attempt_id, lease_seconds=LEASE_SECONDS))
        self.ask("abandon", lambda: self._abandon(claim.attempt_id))  # False where the one before it took effect
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "given_back")
        assert not self.ask("abandon", lambda: self._abandon(claim.attempt_id))
        assert not self.ask("extend", lambda: self.ledger.extend(claim.attempt_id, lease_seconds=LEASE_SECONDS))
        self._check_free(claim)

    def abandon_worker(self) -> None:
        claim = self.claim(worker="the late one")
        self.ask("abandon_worker", lambda: self.ledger.abandon_worker(PIPELINE, "the late one"))
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "worker_died")
        assert books.held_by(self.url, claim.attempt_id) == set()
        self._free += claim.claimed  # these attempts stay counted

    def _check_free(self, claim: ObjectClaims) -> None:
        assert books.held_by(self.url, claim.attempt_id) == set()
        self._free += claim.claimed
        self._counted.subtract(set(claim.claimed))

    # Works

    def work(self) -> None:
        """Begin, extend and finish a work, and check that a duplicate gets the recorded outcome and changes nothing."""
        key, outcome = self.fresh_name("key"), f'"{self._number}"'
        attempt_id = self.begin(key)
        assert self.ask("extend_work", lambda: self.ledger.extend_work(attempt_id, lease_seconds=LEASE_SECONDS))
        assert self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome=outcome))
        assert self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome='"another"'))
        status = self.ask("begin_work", lambda: self._begin(key, self.fresh_name("attempt")))
        assert isinstance(status, WorkDone)
        assert (status.outcome, status.attempt_id) == (outcome, attempt_id)
        assert self._work(key) == ("done", attempt_id, outcome)

    def end_work(self) -> None:
        """Begin and release a work, and check that the next attempt gets the claim and the first cannot finish."""
        key = self.fresh_name("key")
        attempt_id = self.begin(key)
        assert self.ask("end_work", lambda: self.ledger.end_work(attempt_id, outcome="failed", reason="test"))
        assert self._work(key) == ("free", attempt_id, None)
        successor = self.begin(key)
        assert not self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome='"stale"'))
        assert self._work(key) == ("open", successor, None)
        assert self.ask("finish_work", lambda: self.ledger.finish_work(successor, outcome='"fine"'))
        assert self._work(key) == ("done", successor, '"fine"')

    def abandon_works(self) -> None:
        key = self.fresh_name("key")
        attempt_id = self.begin(key, worker="the late one")
        self.ask("abandon_worker_works", lambda: self.ledger.abandon_worker_works("the late one"))
        assert self._work(key) == ("free", attempt_id, None)

    def begin(self, key: str, worker: str = "w") -> str:
        """Begin a work with as many attempts as necessary.

        After a call without an answer, the key is free, held until the lease ends, or held by the same attempt.
        """
        attempt_id = self.fresh_name("attempt")
        while True:
            try:
                status = self.once("begin_work", lambda: self._begin(key, attempt_id, worker))  # noqa: B023 - called now
            except TemporaryError:
                if self.chance.random() < 0.5:
                    self.ask("end_work", lambda: self._release(attempt_id))  # noqa: B023 - called now
                    attempt_id = self.fresh_name("attempt")
                continue
            assert isinstance(status, WorkBegun), status
            assert self._work(key) == ("open", attempt_id, None)
            busy = self.ask("begin_work", lambda: self._begin(key, self.fresh_name("attempt")))
            assert isinstance(busy, WorkBusy)
            return attempt_id

    def _begin(self, key: str, attempt_id: str, worker: str = "w") -> WorkBegun | WorkBusy | WorkDone:
        return self.ledger.begin_work("thumbs", key, attempt_id=attempt_id, worker=worker, lease_seconds=LEASE_SECONDS)

    def _release(self, attempt_id: str) -> bool:
        return self.ledger.end_work(attempt_id, outcome="given_back", reason="test")

    def _work(self, key: str) -> tuple[str, str, str | None] | None:
        found = books.work(self.url, key)
        return None if found is None else (found[0], found[1], found[3])

    # Announcements, and the whole run

    def announce(self) -> None:
        """Advance the announced sequence of the pipeline, and check it."""
        self.ask("begin_announcing", lambda: self.ledger.begin_announcing(PIPELINE))
        last = int(ask(self.url, "SELECT next_seq - 1 FROM pipelines WHERE id = %s", PIPELINE)[0][0])
        self.ask("advance_announced", lambda: self.ledger.advance_announced(PIPELINE, last))
        assert ask(self.url, "SELECT told_seq FROM tellings WHERE pipeline = %s", PIPELINE) == [(last,)]

    def until(self, faults: int, plan: Plan) -> None:
        """Run random operations until that many requests got no answer, then compare all counted attempts."""
        self.proxy.follow(plan)
        scenes = [self.commit, self.commit, self.commit_nothing, self.abandon, self.abandon_worker, self.announce]
        scenes += [self.work, self.end_work, self.abandon_works]
        while len(self.proxy.faults) < faults:
            self.chance.choice(scenes)()
            books.check_idle(self.url)
        assert {id: count for id, count in books.counted(self.url).items() if count} == +self._counted


def candidate(id: bytes) -> Candidate:
    name = id.lstrip(b"\0").decode()
    original_message = OriginalMessage(message_id=f"m-{name}", enqueued_at=1.0)
    return Candidate(
        object_id=id,
        bucket="b",
        key=name.encode(),
        size_bytes=10,
        uri=f"s3://b/{name}",
        original_message=original_message,
        version_id="1",
    )

"""Everything that a ledger is asked for, by a way on which answers are lost.

After each call the database is asked by another way what is true, and what the ledger answered is compared with it.
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
LEASE_SECONDS = 3600.0  # no lease runs out by itself
OBJECTS_AT_ONCE = 4
ASKED_MAX = 40  # times, until an answer comes: each of them meets five fates

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
        self.unanswered: Counter[str] = Counter()  # calls that ended with a TemporaryError
        self._schemas = 0
        self._number = 0
        self._free: list[bytes] = []  # objects that go around again
        self._counted: Counter[bytes] = Counter()  # attempts that are to count, by object

    def close(self) -> None:
        self.proxy.heal()
        self.ledger.close()
        self.proxy.close()

    def fresh(self, word: str) -> str:
        self._number += 1
        return f"{word}-{self._number}"

    def ask(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Until there is an answer; a worker does so too."""
        for _ in range(ASKED_MAX):
            try:
                return self.once(name, call)
            except TemporaryError:
                continue
        raise AssertionError(f"{name}: no answer to {ASKED_MAX} calls")

    def once(self, name: str, call: Callable[[], Answer]) -> Answer:
        self.calls[name] += 1
        try:
            return call()
        except TemporaryError:
            self.unanswered[name] += 1
            raise
        finally:
            self.proxy.let_late_come()

    # Objects

    def claim(self, worker: str = "w") -> ObjectClaims:
        """Claimed by one attempt or another; those that the ledger did not answer for hold nothing."""
        again, self._free = self._free[:2], self._free[2:]
        fresh = [self.fresh("object").encode().rjust(16, b"\0") for _ in range(OBJECTS_AT_ONCE - len(again))]
        wanted = [*again, *fresh]
        while True:
            attempt_id = self.fresh("attempt")
            try:
                claim = self.once("claim", lambda: self._claim(wanted, attempt_id, worker))  # noqa: B023 - called now
            except TemporaryError:
                self._gave_back(attempt_id)
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

    def _gave_back(self, attempt_id: str) -> None:
        """An unknown claim is not there, or given back. It waits for its lease where giving it back was lost as well,
        or came before the claim itself had arrived."""
        if books.attempt(self.url, attempt_id) == ("open", None):
            self.ask("abandon", lambda: self._abandon(attempt_id))
        assert books.attempt(self.url, attempt_id) in (None, ("abandoned", "given_back"))
        assert books.held_by(self.url, attempt_id) == set()

    def _abandon(self, attempt_id: str) -> bool:
        return self.ledger.abandon(attempt_id, reason="test", outcome="given_back", uncounted=True, unattributed=False)

    def commit(self) -> None:
        """Some objects processed, one that is to come again, now and then a new schema."""
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
        seq = self.ask("commit", lambda: self.ledger.commit(outcome))
        self._schemas += outcome.new_schema is not None
        assert books.attempt(self.url, claim.attempt_id) == ("committed", None)
        assert books.batches_of(self.url, claim.attempt_id) == [seq]
        assert self.ask("commit", lambda: self.ledger.commit(outcome)) == seq, "asked again, it answers the same"
        if failure is AttemptFailure.RETRY:
            self._free.append(failed)
            self._counted[failed] -= 1

    def commit_nothing(self) -> None:
        """All objects failed: no batch, and what is refunded is refunded once."""
        claim = self.claim()
        failed = [
            FailedObject(object_id=id, failure=AttemptFailure.RETRY, reason="test", uncounted=True)
            for id in sorted(claim.claimed)
        ]
        outcome = BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=(), failed=failed)
        assert self.ask("commit", lambda: self.ledger.commit(outcome)) is None
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "nothing_processed")
        self._came_back(claim)

    def abandon(self) -> None:
        claim = self.claim()
        assert self.ask("extend", lambda: self.ledger.extend(claim.attempt_id, lease_seconds=LEASE_SECONDS))
        self.ask("abandon", lambda: self._abandon(claim.attempt_id))  # False where the one before it took effect
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "given_back")
        assert not self.ask("abandon", lambda: self._abandon(claim.attempt_id))
        assert not self.ask("extend", lambda: self.ledger.extend(claim.attempt_id, lease_seconds=LEASE_SECONDS))
        self._came_back(claim)

    def abandon_worker(self) -> None:
        claim = self.claim(worker="the late one")
        self.ask("abandon_worker", lambda: self.ledger.abandon_worker(PIPELINE, "the late one"))
        assert books.attempt(self.url, claim.attempt_id) == ("abandoned", "worker_died")
        assert books.held_by(self.url, claim.attempt_id) == set()
        self._free += claim.claimed  # charged: they stay counted

    def _came_back(self, claim: ObjectClaims) -> None:
        assert books.held_by(self.url, claim.attempt_id) == set()
        self._free += claim.claimed
        self._counted.subtract(set(claim.claimed))

    # Works

    def work(self) -> None:
        """Begun, held, finished; a duplicate is told of the completion on record, and changes nothing."""
        key, outcome = self.fresh("key"), f'"{self._number}"'
        attempt_id = self.begin(key)
        assert self.ask("extend_work", lambda: self.ledger.extend_work(attempt_id, lease_seconds=LEASE_SECONDS))
        assert self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome=outcome))
        assert self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome='"another"'))
        standing = self.ask("begin_work", lambda: self._begin(key, self.fresh("attempt")))
        assert isinstance(standing, WorkDone)
        assert (standing.outcome, standing.attempt_id) == (outcome, attempt_id)
        assert self._work(key) == ("done", attempt_id, outcome)

    def end_work(self) -> None:
        """Begun, given back, and taken by another, who hears of the one before."""
        key = self.fresh("key")
        attempt_id = self.begin(key)
        assert self.ask("end_work", lambda: self.ledger.end_work(attempt_id, outcome="failed", reason="test"))
        assert self._work(key) == ("free", attempt_id, None)
        heir = self.begin(key)
        assert not self.ask("finish_work", lambda: self.ledger.finish_work(attempt_id, outcome='"stale"'))
        assert self._work(key) == ("open", heir, None)
        assert self.ask("finish_work", lambda: self.ledger.finish_work(heir, outcome='"fine"'))
        assert self._work(key) == ("done", heir, '"fine"')

    def abandon_works(self) -> None:
        key = self.fresh("key")
        attempt_id = self.begin(key, worker="the late one")
        self.ask("abandon_worker_works", lambda: self.ledger.abandon_worker_works("the late one"))
        assert self._work(key) == ("free", attempt_id, None)

    def begin(self, key: str, worker: str = "w") -> str:
        """Begun by one attempt or another; of one that the ledger did not answer for the key is free, or it waits for
        its lease, or for the same attempt."""
        attempt_id = self.fresh("attempt")
        while True:
            try:
                standing = self.once("begin_work", lambda: self._begin(key, attempt_id, worker))  # noqa: B023 - called now
            except TemporaryError:
                if self.chance.random() < 0.5:
                    self.ask("end_work", lambda: self._give_back(attempt_id))  # noqa: B023 - called now
                    attempt_id = self.fresh("attempt")
                continue
            assert isinstance(standing, WorkBegun), standing
            assert self._work(key) == ("open", attempt_id, None)
            busy = self.ask("begin_work", lambda: self._begin(key, self.fresh("attempt")))
            assert isinstance(busy, WorkBusy)
            return attempt_id

    def _begin(self, key: str, attempt_id: str, worker: str = "w") -> WorkBegun | WorkBusy | WorkDone:
        return self.ledger.begin_work("thumbs", key, attempt_id=attempt_id, worker=worker, lease_seconds=LEASE_SECONDS)

    def _give_back(self, attempt_id: str) -> bool:
        return self.ledger.end_work(attempt_id, outcome="given_back", reason="test")

    def _work(self, key: str) -> tuple[str, str, str | None] | None:
        found = books.work(self.url, key)
        return None if found is None else (found[0], found[1], found[3])

    # All of it

    def tell(self) -> None:
        """Of pipelines: what is there is not moved back."""
        self.ask("begin_announcing", lambda: self.ledger.begin_announcing(PIPELINE))
        last = int(ask(self.url, "SELECT next_seq - 1 FROM pipelines WHERE id = %s", PIPELINE)[0][0])
        self.ask("advance_announced", lambda: self.ledger.advance_announced(PIPELINE, last))
        assert ask(self.url, "SELECT told_seq FROM tellings WHERE pipeline = %s", PIPELINE) == [(last,)]

    def until(self, faults: int, plan: Plan) -> None:
        """Go on until so many requests got no answer, then compare the whole of it."""
        self.proxy.follow(plan)
        scenes = [self.commit, self.commit, self.commit_nothing, self.abandon, self.abandon_worker, self.tell]
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

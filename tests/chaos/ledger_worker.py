"""A process that uses every operation of a ledger, in random order, until it is killed.

It writes what the ledger confirmed into a journal before it continues.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.errors import ClaimLost, TemporaryError
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
    WorkDone,
)

PIPELINE = "clicks"
HANDLER = "thumbs"
LATER = 1e11  # later than the clock of any database
LEASE_SECONDS = 3600.0  # never expires: claims of dead processes are abandoned explicitly


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The parameters of one process: its name, its work, and the processes that died before it."""

    url: str
    name: str
    seed: int
    objects: int
    keys: int
    dead: Sequence[str]
    journal: int  # a file descriptor
    last: bool  # it does not die, and ends when everything is done


class LedgerWorker:
    """Work until killed."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._chance = random.Random(child.seed)
        self._ledger = Ledger.open(child.url)
        self._count = 0

    def run(self) -> None:
        self._ledger.ensure_pipeline(PIPELINE)
        for name in self._child.dead:
            self._repeat_until_answered(lambda: self._ledger.abandon_worker(PIPELINE, name))  # noqa: B023 - called now
            self._repeat_until_answered(lambda: self._ledger.abandon_worker_works(name))  # noqa: B023 - called now
        while not self._child.last:
            with suppress(TemporaryError, ClaimLost):
                self._chance.choice(
                    (self._batch, self._batch, self._batch_without_results, self._release, self._work, self._fail)
                )()
        self._finish_all()
        self._ledger.close()

    def _finish_all(self) -> None:
        numbers = list(range(self._child.objects))
        self._chance.shuffle(numbers)
        while numbers:
            with suppress(TemporaryError, ClaimLost):
                claim = self._claim(numbers[:20])
                self._commit(claim, failures=False)
                ended = {bytes(id) for id in claim.ended} | set(claim.claimed)
                numbers = [number for number in numbers if object_id(number) not in ended] if ended else numbers[::-1]
        keys = list(range(self._child.keys))
        while keys:
            with suppress(TemporaryError):
                if self._work_at(keys[0]):
                    keys.pop(0)
                else:
                    self._chance.shuffle(keys)

    # Objects

    def _batch(self) -> None:
        self._commit(self._claim(self._some_numbers()), failures=True)

    def _batch_without_results(self) -> None:
        claim = self._claim(self._some_numbers())
        failed = [
            FailedObject(object_id=id, failure=AttemptFailure.RETRY, reason="", uncounted=True) for id in claim.claimed
        ]
        if claim.claimed:
            self._ledger.extend(claim.attempt_id, lease_seconds=LEASE_SECONDS)
            self._ledger.commit(
                BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=(), failed=failed)
            )

    def _release(self) -> None:
        claim = self._claim(self._some_numbers())
        if claim.claimed:
            self._ledger.abandon(
                claim.attempt_id,
                reason="",
                outcome="given_back",
                uncounted=True,
                unattributed=self._chance.random() < 0.5,
            )

    def _claim(self, numbers: Sequence[int]) -> ObjectClaims:
        attempt_id = self._fresh_id()
        # Either a message newer than every recorded end, so that the object is claimed again, or the first one.
        news = (
            OriginalMessage(message_id=attempt_id, enqueued_at=LATER) if self._child.last or self._is_news() else None
        )
        candidates = [candidate(number, news) for number in numbers]
        try:
            return self._ledger.claim(
                PIPELINE, candidates, attempt_id=attempt_id, worker=self._child.name, lease_seconds=LEASE_SECONDS
            )
        except TemporaryError:  # as the attempts of a pipeline do
            with suppress(TemporaryError):
                self._ledger.abandon(
                    attempt_id, reason="unknown", outcome="given_back", uncounted=True, unattributed=False
                )
            raise

    def _commit(self, claim: ObjectClaims, *, failures: bool) -> None:
        if not claim.claimed:
            return
        bad = {id for id in claim.claimed if failures and self._chance.random() < 0.2}
        done = sorted(set(claim.claimed) - bad)
        failed = [self._failed(id) for id in bad]
        outcome = BatchOutcome(
            pipeline=PIPELINE,
            attempt_id=claim.attempt_id,
            processed=[ObjectResult(object_id=id, rows=3, lines_quarantined=0) for id in done],
            failed=failed,
            record=BatchRecord(rows=3 * len(done)),
        )
        committed = self._repeat_until_answered(lambda: self._ledger.commit(outcome))
        self._note(committed=claim.attempt_id, seq=None if committed is None else committed.seq)

    def _failed(self, id: bytes) -> FailedObject:
        """Return a failure: to be retried, missing for the first time, deleted, or superseded."""
        failure = self._chance.choice(
            (AttemptFailure.RETRY, AttemptFailure.RETRY, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)
        )
        missing = failure is AttemptFailure.DELETED or (failure is AttemptFailure.RETRY and self._chance.random() < 0.5)
        return FailedObject(object_id=id, failure=failure, reason="", missing=missing)

    def _is_news(self) -> bool:
        return self._chance.random() < 0.5

    def _some_numbers(self) -> list[int]:
        return self._chance.sample(range(self._child.objects), min(8, self._child.objects))

    # Works

    def _work(self) -> None:
        self._work_at(self._chance.randrange(self._child.keys))

    def _work_at(self, number: int) -> bool:
        """Return True if the key is done."""
        status, attempt_id = self._begin(number)
        if isinstance(status, WorkBegun):
            self._ledger.extend_work(attempt_id, lease_seconds=LEASE_SECONDS)
            finished = self._repeat_until_answered(
                lambda: self._ledger.finish_work(attempt_id, outcome=f'"{attempt_id}"')
            )
            assert finished, "a claim of a living process was taken over"
            self._note(finished=f"key-{number}", by=attempt_id)
        return isinstance(status, WorkBegun | WorkDone)

    def _fail(self) -> None:
        status, attempt_id = self._begin(self._chance.randrange(self._child.keys))
        if isinstance(status, WorkBegun):
            self._repeat_until_answered(lambda: self._ledger.end_work(attempt_id, outcome="failed", reason=""))

    def _begin(self, number: int) -> tuple[object, str]:
        attempt_id = self._fresh_id()
        status = self._repeat_until_answered(
            lambda: self._ledger.begin_work(
                HANDLER, f"key-{number}", attempt_id=attempt_id, worker=self._child.name, lease_seconds=LEASE_SECONDS
            )
        )
        return status, attempt_id

    def _fresh_id(self) -> str:
        self._count += 1
        return f"{self._child.name}-{self._count}"

    def _repeat_until_answered(self, ask: Callable[[], Any]) -> Any:
        while True:
            with suppress(TemporaryError):
                return ask()

    def _note(self, **confirmed: object) -> None:
        os.write(self._child.journal, (json.dumps(confirmed) + "\n").encode())


def object_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def candidate(number: int, original_message: OriginalMessage | None = None) -> Candidate:
    original_message = original_message or OriginalMessage(message_id=f"m-{number}", enqueued_at=1.0)
    key = f"object-{number}"
    return Candidate(
        object_id=object_id(number),
        bucket="b",
        key=key.encode(),
        size_bytes=1,
        uri=f"s3://b/{key}",
        original_message=original_message,
    )

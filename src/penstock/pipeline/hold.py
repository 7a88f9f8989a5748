"""The attempt that an execution holds: taken, extended, ended once.

The run thread takes it and commits; a heartbeat extends it; a stop, a timeout or a lost claim ends it from another
thread. The ledger decides who was first. Here is what an execution knows of that, and who tells of the end.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import ClaimLost, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, Claim
from penstock.messaging.claims import Extension, HeldClaim
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import RunCancelled
from penstock.pipeline.telling import Telling, Work

GIVEN_BACK = "the batch was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKeeper:
    """A `penstock.messaging.claims.ClaimKeeper` of the attempts of all pipelines."""

    ledger: Ledger

    def extend(self, ids: Sequence[str], *, lease_seconds: float, answer_seconds: float) -> Extension:
        return self.ledger.extend_attempts(ids, lease_seconds=lease_seconds, answer_seconds=answer_seconds)


class Hold:
    """Of one execution, which has one attempt at a time."""

    def __init__(self, ledger: Ledger, telling: Telling, *, lease_seconds: float) -> None:
        self._ledger = ledger
        self._telling = telling
        self._lease_seconds = lease_seconds
        self.lock = threading.Lock()  # all fields below are written under it
        self._work: Work | None = None  # the attempt that is ours and open, as far as we know
        self._ended: Work | None = None  # the attempt whose end was told
        self._taken = threading.Event()  # not set while the run thread takes an attempt
        self._taken.set()
        self._committing = False  # the ledger decides now; a heartbeat has nothing to say any more
        self._stopped = False

    # The run thread

    def take(
        self, claim: Callable[[], Claim | None], refs: Mapping[bytes, ObjectRef]
    ) -> tuple[Claim | None, Work | None]:
        """Claim, and hold what that brought. Raises `RunCancelled` once the execution was stopped."""
        with self.lock:
            if self._stopped:
                raise RunCancelled(GIVEN_BACK)
            self._taken.clear()
        try:
            return self._take(claim, refs)
        finally:
            self._taken.set()

    def _take(
        self, claim: Callable[[], Claim | None], refs: Mapping[bytes, ObjectRef]
    ) -> tuple[Claim | None, Work | None]:
        answer = claim()  # without the lock: heartbeats and stops must not wait for the ledger
        if answer is None or not answer.claimed:
            return answer, None
        work = Work(claim=answer, refs={id: ref for id, ref in refs.items() if id in answer.claimed})
        with self.lock:
            stopped = self._stopped
            if not stopped:
                self._work, self._committing = work, False
        if stopped:  # meanwhile, by a caller that knew of no claim
            with suppress(TemporaryError):  # then its lease ends by itself
                self.give_up(work, reason=GIVEN_BACK, outcome="given_back")
            raise RunCancelled(GIVEN_BACK)
        return answer, work

    def commit(self, work: Work, outcome: BatchOutcome) -> int | None:
        """End the attempt by a commit, whose end the caller tells. Raises what `Ledger.commit` does."""
        with self.lock:
            self._committing = True
        seq = self._ledger.commit(outcome)
        with self.lock:
            self._work, self._ended = None, work
        return seq

    def abandon(self, work: Work, *, reason: str, outcome: str) -> None:
        """End the attempt without a charge, as far as the ledger can be reached; else its lease ends by itself."""
        with suppress(TemporaryError):
            self.give_up(work, reason=reason, outcome=outcome)
        with self.lock:
            self._work = None

    # Any thread

    def give_up(self, work: Work, *, reason: str, outcome: str) -> None:
        """The same; raises where the ledger cannot be reached."""
        ours = self._ledger.abandon(work.attempt_id, reason=reason, outcome=outcome, refund=True, unattributed=False)
        if ours and self._end(work):
            self._telling.given_back(work, reason)

    def lost(self, work: Work) -> None:
        """Somebody ended the attempt. If it was one of us, that was told."""
        if self._end(work):
            self._telling.lost(work)

    def stop(self) -> Work | None:
        """No attempt is taken any more; answers the one that is held."""
        with self.lock:
            self._stopped = True
            return self._work

    def await_taken(self) -> None:
        """After `stop`: wait until the run thread has given up an attempt that it was taking. Ends at `stop_waiting`,
        and after one lease at the latest."""
        self._taken.wait(self._lease_seconds)

    def stop_waiting(self) -> None:
        """After `stop`: end `await_taken`. The run thread still gives up what it takes later."""
        self._taken.set()

    def fail(self, work: Work, outcome: BatchOutcome) -> bool:
        """End the attempt from outside the run; True where the caller is to tell. Raises as `Ledger.commit` does."""
        try:
            self._ledger.commit(outcome)
        except ClaimLost:
            return False
        return self._end(work)

    def claim(self) -> HeldClaim | None:
        """Return what the heartbeat extends."""
        with self.lock:
            work = None if self._committing else self._work
        return None if work is None else HeldClaim(keeper=AttemptKeeper(ledger=self._ledger), id=work.attempt_id)

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if an attempt that the ledger does not know as open is lost, and emit that."""
        with self.lock:
            work = self._work
            if self._committing or work is None or work.attempt_id != claim.id:
                return False  # a commit that overtook the heartbeat ended the attempt, and rightly so
        self.lost(work)
        return True

    def _end(self, work: Work) -> bool:
        """True for the one who tells the attempt's end."""
        with self.lock:
            first, self._ended = self._ended is not work, work
        return first

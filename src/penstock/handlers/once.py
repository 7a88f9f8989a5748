"""Claims of idempotent handlers in the ledger: one recorded completion per key, however often it is delivered.

The claim is taken before the function is called, and ended by exactly one of: finished (recorded with its outcome),
failed, released. A duplicate of finished work is acked. A duplicate of running work waits for the lease of the claim,
and is never acked as if it were done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from ulid import ULID

from penstock.errors import TemporaryError
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.ledger import Ledger
from penstock.ledger.records import WorkAttempt, WorkBusy, WorkDone, WorkOwner
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt
from penstock.messaging.handler import Extension, HeldClaim

FINISH_TRIES = 5
FINISH_WAIT_SECONDS = 0.1
FINISH_WAIT_SECONDS_MAX = 2.0
FORGOTTEN_MAX = 1_000  # completions deleted in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaimExtender:
    """A `penstock.messaging.handler.ClaimExtender` for the keys of all handlers."""

    ledger: Ledger

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        return self.ledger.extend_works(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerKeys:
    """`penstock.handlers.keys.IdempotencyKeys` in the ledger."""

    ledger: Ledger
    handler: str
    worker: str
    lease_seconds: float
    retention_seconds: float  # of completions
    busy_seconds_max: float | None = None  # maximum delay between two tries of a busy key; None: the rest of its lease
    owner: WorkOwner | None = None  # part of each key's identity; None: the handler's name alone
    new_attempt_id: Callable[[], str] = lambda: str(ULID())

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        attempt_id = self.new_attempt_id()
        begun = self.ledger.begin_work(
            self.handler,
            key,
            attempt_id=attempt_id,
            worker=self.worker,
            lease_seconds=self.lease_seconds,
            owner=self.owner,
            retention_seconds=self.retention_seconds,
        )
        if isinstance(begun, WorkDone):
            return KeyDone(outcome=begun.outcome)
        if isinstance(begun, WorkBusy):
            most = self.busy_seconds_max
            return KeyBusy(seconds=begun.seconds if most is None else min(begun.seconds, most))
        return KeyBegun(claim=LedgerClaim(keys=self, attempt_id=attempt_id), previous=_previous(begun.previous))

    def forget(self) -> None:
        if self.owner is None or self.owner.is_plain:  # keys recorded by earlier versions belong to this owner, too
            self.ledger.forget_works(
                older_than_seconds=self.retention_seconds, limit=FORGOTTEN_MAX, handler=self.handler
            )
        else:
            self.ledger.forget_works(limit=FORGOTTEN_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClaim:
    """`penstock.handlers.keys.KeyClaim` in the ledger."""

    keys: LedgerKeys
    attempt_id: str

    @property
    def held(self) -> HeldClaim:
        return HeldClaim(extender=KeyClaimExtender(ledger=self.keys.ledger), id=self.attempt_id)

    def finish(self, outcome: str) -> bool:
        """Record the completion, with a few retries under the claim: after giving up, the work would be done twice."""
        finishing = Retrying(
            retry=retry_if_exception_type(TemporaryError),
            stop=stop_after_attempt(FINISH_TRIES),
            wait=wait_random_exponential(multiplier=FINISH_WAIT_SECONDS, max=FINISH_WAIT_SECONDS_MAX),
            reraise=True,
        )
        return finishing(self.keys.ledger.finish_work, self.attempt_id, outcome=outcome)

    def fail(self, reason: str) -> bool:
        return self.keys.ledger.end_work(self.attempt_id, outcome="failed", reason=reason)

    def release(self) -> bool:
        return self.keys.ledger.end_work(self.attempt_id, outcome="given_back", reason="released at a stop")


def _previous(before: WorkAttempt | None) -> PreviousAttempt | None:
    if before is None:
        return None
    return PreviousAttempt(
        started_at=before.started_at,
        ended_at=before.ended_at,
        worker=before.worker,
        end=AttemptEnd(before.outcome),
        reason=before.reason,
    )

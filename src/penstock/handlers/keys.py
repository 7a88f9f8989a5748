"""The protocols through which an idempotent handler uses its store of keys. The ledger implements them in `once`."""

from dataclasses import dataclass
from typing import Protocol

from penstock.messaging.delivery import PreviousAttempt
from penstock.messaging.handler import HeldClaim


class KeyClaim(Protocol):
    """One attempt on a key, ended by exactly one of `finish`, `fail` and `release`.

    These raise `TemporaryError` if their effect is unknown.
    """

    @property
    def held(self) -> HeldClaim:
        """The claim that the heartbeat extends."""
        ...

    def finish(self, outcome: str) -> bool:
        """Record the completion; return False if the claim was lost, so that the effect belongs to another attempt."""
        ...

    def fail(self, reason: str) -> bool:
        """Free the key for another attempt; return False if the claim was lost, or finished, before."""
        ...

    def release(self) -> bool:
        """Free the key as `fail` does, for work that a stop interrupted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBegun:
    """The key is claimed by this attempt."""

    claim: KeyClaim
    previous: PreviousAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBusy:
    """Another attempt holds the key, for ``seconds`` until its lease ends."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDone:
    """The work was completed before, with this outcome (JSON)."""

    outcome: str


class IdempotencyKeys(Protocol):
    """The idempotency keys of one handler."""

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        """Try to claim the key. Raises `TemporaryError` if the result is unknown."""
        ...

    def forget(self) -> None:
        """Delete some completions past their retention. Raises `TemporaryError` if that is not possible now."""
        ...

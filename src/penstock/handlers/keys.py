"""What an idempotent handler needs of whoever remembers its keys. The ledger does, in `once`."""

from dataclasses import dataclass
from typing import Protocol

from penstock.messaging.delivery import PreviousAttempt
from penstock.messaging.handler import HeldClaim


class KeyClaim(Protocol):
    """Our attempt on one key; ended by exactly one of the last three. They raise `TemporaryError` when unsure."""

    @property
    def held(self) -> HeldClaim:
        """What the heartbeat extends."""
        ...

    def finish(self, outcome: str) -> bool:
        """Record the completion; False when the claim was lost, and the effect is somebody else's."""
        ...

    def fail(self, reason: str) -> bool:
        """Free the key for another attempt; False when the claim was lost, or finished, before."""
        ...

    def give_back(self) -> bool:
        """As `fail`, for work that a stop broke off."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBegun:
    """The key is ours."""

    claim: KeyClaim
    previous: PreviousAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBusy:
    """Another attempt works on it, for as long as its lease holds."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDone:
    """It was completed before, with this outcome (JSON)."""

    outcome: str


class IdempotencyKeys(Protocol):
    """The keys of one handler."""

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        """Try to claim the key. Raises `TemporaryError` when that cannot be told."""
        ...

    def forget(self) -> None:
        """Let go of some completions past their retention. Raises `TemporaryError` when that cannot be done now."""
        ...

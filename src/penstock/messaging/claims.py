"""Claims as a heartbeat extends them: all claims of one keeper in one call."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The outcome of extending several claims; a claim that is in neither set was extended."""

    lost: Set[str] = field(default_factory=frozenset)
    late: Set[str] = field(default_factory=frozenset)  # still held; another transaction had a lock on them: try again


class ClaimKeeper(Protocol):
    """The service that holds claims. Keepers are equal if one call can extend the claims of both."""

    def __hash__(self) -> int: ...

    def extend(self, ids: Sequence[str], *, lease_seconds: float, answer_seconds: float) -> Extension:
        """Let each lease end ``lease_seconds`` from now. Raises `TemporaryError`.

        ``answer_seconds`` bounds the wait for a connection, and the wait for each answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A claim that one execution holds now."""

    keeper: ClaimKeeper
    id: str

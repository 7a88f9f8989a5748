"""Heartbeats of single executions, and claims for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ClaimLost
from penstock.messaging.handler import Execution, Extension, HeldClaim


def extended(execution: Execution, *, lease_seconds: float = 60.0) -> bool:
    """Extend the execution's claim. Return False if it is lost."""
    try:
        claim = execution.claim()
    except ClaimLost:
        return False
    if claim is None:
        return True
    extension = claim.extender.extend([claim.id], lease_seconds=lease_seconds, response_seconds=5.0)
    return not (claim.id in extension.lost and execution.loses(claim))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyExtender:
    """An extender that accepts every claim except ``lost`` ones."""

    lost: frozenset[str] = frozenset()

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        return Extension(lost=self.lost & set(ids))


def claim_named(id: str = "claim", *, lost: bool = False) -> HeldClaim:
    """Return a claim that a heartbeat extends, or finds ``lost``."""
    return HeldClaim(extender=ToyExtender(lost=frozenset([id] if lost else ())), id=id)

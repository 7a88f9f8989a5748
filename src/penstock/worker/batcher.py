"""Decide when a batch is complete. Pure functions: values in, values out.

A batch closes by count, by bytes, by age, or because a receive returned nothing (no message is waiting, so waiting
gains nothing). Count and bytes close it at once. Age and an empty receive close it only when an execution slot is free
and, for a consumer of long runs, none is running: until then more deliveries may join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.messaging.delivery import Delivery


class ClosedBy(StrEnum):
    """Why a batch was closed."""

    COUNT = "count"
    BYTES = "bytes"
    AGE = "age"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one batch."""

    messages_max: int
    bytes_max: int
    wait_seconds: float


EACH_ALONE = Limits(messages_max=1, bytes_max=2**63, wait_seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Deliveries for one execution: at least one, in the order of arrival."""

    deliveries: tuple[Delivery, ...]
    bytes: int
    closed_by: ClosedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch that is still open. ``opened_at`` is the monotonic time of its first delivery."""

    deliveries: tuple[Delivery, ...] = ()
    bytes: int = 0
    opened_at: float = 0.0


NOTHING = OpenBatch()


def collect(
    collecting: OpenBatch, arrived: Sequence[tuple[Delivery, int]], *, limits: Limits, now: float
) -> tuple[OpenBatch, tuple[Batch, ...]]:
    """Add deliveries with their sizes in bytes; return the open batch and the batches that this closed.

    A delivery that would exceed ``bytes_max`` closes the batch and starts the next one. A delivery larger than
    ``bytes_max`` runs alone.
    """
    held, weight, opened_at = list(collecting.deliveries), collecting.bytes, collecting.opened_at
    closed: list[Batch] = []

    def close(reason: ClosedBy) -> None:
        nonlocal held, weight
        closed.append(Batch(deliveries=tuple(held), bytes=weight, closed_by=reason))
        held, weight = [], 0

    for delivery, delivery_bytes in arrived:
        if held and weight + delivery_bytes > limits.bytes_max:
            close(ClosedBy.BYTES)
        if not held:
            opened_at = now
        held.append(delivery)
        weight += delivery_bytes
        if len(held) >= limits.messages_max:
            close(ClosedBy.COUNT)
        elif weight >= limits.bytes_max:
            close(ClosedBy.BYTES)
    if not held:
        return NOTHING, tuple(closed)
    return OpenBatch(deliveries=tuple(held), bytes=weight, opened_at=opened_at), tuple(closed)


def due(collecting: OpenBatch, *, limits: Limits, now: float, receive_was_empty: bool) -> Batch | None:
    """Close and return the open batch if a free slot should run it now; return None if it is empty or should wait."""
    if not collecting.deliveries:
        return None
    if receive_was_empty:
        reason = ClosedBy.EMPTY
    elif now - collecting.opened_at >= limits.wait_seconds:
        reason = ClosedBy.AGE
    else:
        return None
    return Batch(deliveries=collecting.deliveries, bytes=collecting.bytes, closed_by=reason)

"""A delivery of SQS's, and what SQS said of it beside."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.brokers.sqs.envelope import opened
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivery):
    """``received_at`` is this machine's clock, the others SQS's."""

    first_received_at: float  # epoch seconds: the first of its hand-overs
    began_at: float  # monotonic: SQS holds nothing longer than 12 h from here


def received(queue: str, raw: Mapping[str, Any], clock: Clock) -> Received:
    """A message as `ReceiveMessage` brings it."""
    system: Mapping[str, str] = raw.get("Attributes", {})
    body, attributes, group = opened(raw)
    now = clock.now()
    return Received(
        message=Message(
            id=raw["MessageId"],
            body=body,
            enqueued_at=_seconds(system.get("SentTimestamp"), now),
            attributes=attributes,
            group=group,
        ),
        queue=queue,
        receipt=raw["ReceiptHandle"],
        attempt=int(system.get("ApproximateReceiveCount", 1)),
        received_at=now,
        first_received_at=_seconds(system.get("ApproximateFirstReceiveTimestamp"), now),
        began_at=clock.monotonic(),
    )


def held_seconds(delivery: Delivery, clock: Clock) -> float:
    """How long it has been leased already."""
    if isinstance(delivery, Received):
        return clock.monotonic() - delivery.began_at
    return clock.now() - delivery.received_at


def _seconds(milliseconds: str | None, otherwise: float) -> float:
    return otherwise if milliseconds is None else int(milliseconds) / 1000

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


def source_of(raw: Mapping[str, Any]) -> str | None:
    """The ARN of the queue from which SQS itself moved the message here; None where nobody did."""
    arn = raw.get("Attributes", {}).get("DeadLetterQueueSourceArn")
    return str(arn) if arn else None


def received(queue: str, raw: Mapping[str, Any], clock: Clock, *, receives_before: int | None = 0) -> Received:
    """A message as `ReceiveMessage` brings it.

    ``receives_before`` is how often it was received in the queue from which SQS moved it: SQS's count goes on, and what
    we count begins anew. None: nobody knows; it then counts as received for the first time, each time, so that nobody
    gives up on a letter that was never looked at.
    """
    source = source_of(raw)
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
        attempt=_attempt(int(system.get("ApproximateReceiveCount", 1)), receives_before),
        received_at=now,
        moved_from=None if source is None else source.rpartition(":")[2],
        first_received_at=_seconds(system.get("ApproximateFirstReceiveTimestamp"), now),
        began_at=clock.monotonic(),
    )


def held_seconds(delivery: Delivery, clock: Clock) -> float:
    """How long it has been leased already."""
    if isinstance(delivery, Received):
        return clock.monotonic() - delivery.began_at
    return clock.now() - delivery.received_at


def _attempt(receives: int, before: int | None) -> int:
    return 1 if before is None else max(receives - before, 1)


def _seconds(milliseconds: str | None, otherwise: float) -> float:
    return otherwise if milliseconds is None else int(milliseconds) / 1000

"""Between the rows of the queue file and messages."""

import json
from collections.abc import Sequence
from typing import Any

from penstock.brokers import rules
from penstock.brokers.attributes import decode_attributes, decode_group
from penstock.messaging.death import Try
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.message import Message

Row = tuple[Any, ...]


def message_of(store: str, row: Row) -> Message:
    """Of (id, body, enqueued_at, attributes, grp, ...)."""
    seq, body, enqueued_at, attributes, group = row[:5]
    return Message(
        id=rules.message_id(store, seq),
        body=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body,  # other programs may insert text
        enqueued_at=enqueued_at,
        attributes=decode_attributes(attributes),
        group=decode_group(group),
    )


def delivery_of(store: str, queue: str, row: Row, now: float) -> Delivery:
    """Of a row of the statement `messages`, as it was before this hand-over."""
    receive_count, refunds = row[5:7]
    return Delivery(
        message=message_of(store, row),
        queue=queue,
        receipt=rules.receipt(store, rules.HandOver(seq=row[0], number=receive_count + 1)),
        attempt=receive_count + 1 - refunds,
        received_at=now,
        previous=_previous_of(row),
    )


def tries_of(text: str | None) -> Sequence[Try]:
    """What the statements wrote of a message's attempts. Of those that an older program began the times are not
    known."""
    return [
        Try(started_at=started_at, ended_at=ended_at, worker=worker, end=end, reason=reason)
        for started_at, ended_at, worker, end, reason in json.loads(text or "[]")
        if started_at is not None
    ]


def _previous_of(row: Row) -> PreviousAttempt | None:
    leased_at, ended_at, holder, ended, reason = row[7:12]
    if leased_at is None or ended is None:  # the first hand-over, or one of a file's older version
        return None
    return PreviousAttempt(started_at=leased_at, ended_at=ended_at, worker=holder, end=AttemptEnd(ended), reason=reason)

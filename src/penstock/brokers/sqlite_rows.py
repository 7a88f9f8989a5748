"""Between the rows of the queue file and messages."""

import base64
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from penstock.brokers import rules
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Message

Row = tuple[Any, ...]


def encode_group(group: str | None) -> str:
    """Empty for no group, else a colon and the group, so that one comparison serves both."""
    return "" if group is None else f":{group}"


def decode_group(text: str) -> str | None:
    """The group that `encode_group` wrote."""
    return text[1:] if text else None


def encode_attributes(attributes: Attributes) -> str | None:
    """JSON; a binary value is a list of one base64 text, which no text value can be taken for."""
    if not attributes:
        return None
    return json.dumps(
        {
            name: value if isinstance(value, str) else [base64.b64encode(value).decode("ascii")]
            for name, value in attributes.items()
        }
    )


def decode_attributes(text: str | None) -> Attributes:
    """The attributes that `encode_attributes` wrote."""
    if text is None:
        return NO_ATTRIBUTES
    fields: Mapping[str, str | list[str]] = json.loads(text)
    return MappingProxyType(
        {name: value if isinstance(value, str) else base64.b64decode(value[0]) for name, value in fields.items()}
    )


def message_of(store: str, row: Row) -> Message:
    """Of (id, body, enqueued_at, attributes, grp, ...)."""
    seq, body, enqueued_at, attributes, group = row[:5]
    return Message(
        id=rules.message_id(store, seq),
        body=body,
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


def _previous_of(row: Row) -> PreviousAttempt | None:
    leased_at, ended_at, holder, ended, reason = row[7:12]
    if leased_at is None or ended is None:  # the first hand-over, or one of a file's older version
        return None
    return PreviousAttempt(started_at=leased_at, ended_at=ended_at, worker=holder, end=AttemptEnd(ended), reason=reason)

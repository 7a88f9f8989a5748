"""Conversion between the scripts' replies and deliveries."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.brokers import shared
from penstock.brokers.shared import decode_attributes, decode_group, encode_attributes, encode_group
from penstock.messaging.death import AttemptRecord
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.drafts import new_delivery, new_message
from penstock.messaging.message import NO_ATTRIBUTES, Message, Outgoing

_ENDS = {b"F": AttemptEnd.FAILED, b"G": AttemptEnd.RELEASED, b"E": AttemptEnd.EXPIRED}
_ENTRY = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_EARLIER = re.compile(rb"([0-9]{1,19}) ([0-9]{1,19}) ([FGE]) ([^\t]*)\t(.*)", re.DOTALL)
_FRESH = 2  # fields in the state of a message never delivered before


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageState:
    """The delivery history of a message. Times are epoch seconds."""

    seq: int
    enqueued_at: float
    delivery_count: int = 0
    uncounted_count: int = 0
    first_failed_at: float | None = None
    last_failed_at: float | None = None
    previous: PreviousAttempt | None = None
    earlier: bytes = b""  # the attempts before `previous`, as the scripts store them

    @property
    def tries(self) -> Sequence[AttemptRecord]:
        """Return the deliveries on record, oldest first."""
        if self.previous is None:
            return ()
        lines = (_EARLIER.fullmatch(line) for line in self.earlier.split(b"\n"))
        return [*(_attempt_of(line) for line in lines if line), shared.attempt_record(self.previous)]

    @property
    def attempts(self) -> int:
        """Return how many ended deliveries count as attempts."""
        return self.delivery_count - self.uncounted_count


def state_of(text: bytes) -> MessageState:
    """Return the state in a text written by the scripts (`ended` in common.lua)."""
    line, _, rest = text.partition(b"\n")
    reason, _, earlier = rest.rpartition(b"\0") if b"\0" in rest else (rest, b"", b"")
    fields = line.split(b" ", 11)
    if len(fields) == _FRESH:
        return MessageState(seq=int(fields[0]), enqueued_at=int(fields[1]) / 1000)
    first, last, started, ended = (int(field) for field in fields[6:10])
    return MessageState(
        seq=int(fields[0]),
        enqueued_at=int(fields[1]) / 1000,
        delivery_count=int(fields[3]),
        uncounted_count=int(fields[4]),
        first_failed_at=first / 1000 if first else None,
        last_failed_at=last / 1000 if last else None,
        previous=PreviousAttempt(
            started_at=started / 1000,
            ended_at=ended / 1000,
            worker=fields[11].decode("utf-8", "replace"),
            end=_ENDS[fields[10]],
            reason=reason.decode("utf-8", "replace") or None,
        ),
        earlier=earlier,
    )


def message_of(store: str, state: MessageState, group: bytes, head: bytes, body: bytes) -> Message:
    return Message(
        id=shared.message_id(store, state.seq),
        body=body,
        enqueued_at=state.enqueued_at,
        attributes=decode_attributes(head) if head else NO_ATTRIBUTES,
        group=_group_of(group),
    )


def delivery_of(
    queue: str,
    store: str,
    entry_id: bytes,
    *,
    at: float,
    state: MessageState,
    group: bytes = b"",
    head: bytes = b"",
    body: bytes,
) -> Delivery:
    """Return a delivery begun at time ``at``. Its receipt handle is the store's name and the entry's id."""
    return Delivery(
        message=message_of(store, state, group, head, body),
        queue=queue,
        receipt=f"{store}-{entry_id.decode()}",
        attempt=state.delivery_count - state.uncounted_count + 1,
        received_at=at,
        previous=state.previous,
    )


def first_delivery_of(
    queue: str, store: str, entry_id: bytes, *, at: float, text: bytes, body: bytes, group: bytes, head: bytes
) -> Delivery | None:
    """Return the delivery of a message never delivered before, which most are; None for any other message.

    Same as `delivery_of`, but without a `MessageState`: it runs for every message, and takes half the time (measured).
    """
    seq, _, enqueued = text.partition(b" ")
    if b" " in enqueued:
        return None
    return new_delivery(
        new_message(
            shared.message_id(store, int(seq)),
            body,
            int(enqueued) / 1000,
            decode_attributes(head) if head else NO_ATTRIBUTES,
            _group_of(group) if group else None,
        ),
        queue,
        f"{store}-{entry_id.decode()}",
        1,
        at,
    )


def entry_of(receipt: str) -> str | None:
    """Return the entry id in a receipt handle; None if no Redis broker issued it."""
    _, found, entry = receipt.partition("-")
    return entry if found and _ENTRY.fullmatch(entry) else None


def sent(messages: Sequence[Outgoing]) -> list[bytes | str]:
    """Return the arguments of `send.lua`: options, attributes and body of each message."""
    arguments: list[bytes | str] = []
    attributes, head = NO_ATTRIBUTES, ""
    for message in messages:
        if message.attributes is not attributes:  # usually all messages share one mapping
            attributes, head = message.attributes, encode_attributes(message.attributes) or ""
        arguments += (_options(message), head, message.body)
    return arguments


def milliseconds(seconds: float) -> int:
    """Return the duration rounded up, so that no delay is shorter than requested."""
    return -int(-seconds * 1000 // 1)


def _attempt_of(line: re.Match[bytes]) -> AttemptRecord:
    started, ended, kind, worker, reason = line.groups()
    return AttemptRecord(
        started_at=int(started) / 1000,
        ended_at=int(ended) / 1000,
        worker=worker.decode("utf-8", "replace"),
        end=_ENDS[kind].value,
        reason=reason.decode("utf-8", "ignore") or None,  # may be cut within a character
    )


def _group_of(tag: bytes) -> str | None:
    return decode_group(tag.decode("utf-8", "replace")) if tag else None  # other clients write arbitrary bytes


def _options(message: Outgoing) -> str:
    if message.group is None and not message.delay_seconds and message.deduplication_id is None:
        return ""
    options = {"group": encode_group(message.group), "delay": milliseconds(message.delay_seconds)}
    if message.deduplication_id is not None:
        options["once"] = message.deduplication_id
    return json.dumps(options)

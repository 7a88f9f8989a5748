"""Between what the scripts answer and deliveries."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.brokers import shared
from penstock.brokers.shared import decode_attributes, decode_group, encode_attributes, encode_group
from penstock.messaging.death import AttemptRecord
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.message import NO_ATTRIBUTES, Message, Outgoing

_ENDS = {b"F": AttemptEnd.FAILED, b"G": AttemptEnd.GIVEN_BACK, b"E": AttemptEnd.EXPIRED}
_ENTRY = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_EARLIER = re.compile(rb"([0-9]{1,19}) ([0-9]{1,19}) ([FGE]) ([^\t]*)\t(.*)", re.DOTALL)
_FRESH = 2  # fields of the state of a message that was never handed over


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageState:
    """What a message went through so far. Times are epoch seconds."""

    seq: int
    enqueued_at: float
    hand_overs: int = 0
    refunds: int = 0
    first_failed_at: float | None = None
    last_failed_at: float | None = None
    previous: PreviousAttempt | None = None
    earlier: bytes = b""  # the attempts before that one, as the scripts keep them

    @property
    def tries(self) -> Sequence[AttemptRecord]:
        """All hand-overs that are remembered, oldest first."""
        if self.previous is None:
            return ()
        lines = (_EARLIER.fullmatch(line) for line in self.earlier.split(b"\n"))
        return [*(_try_of(line) for line in lines if line), shared.tried(self.previous)]

    @property
    def attempts(self) -> int:
        """Those that count, of the hand-overs that ended."""
        return self.hand_overs - self.refunds


def state_of(text: bytes) -> MessageState:
    """The state that the scripts wrote (`ended` in common.lua)."""
    line, _, rest = text.partition(b"\n")
    reason, _, earlier = rest.rpartition(b"\0") if b"\0" in rest else (rest, b"", b"")
    fields = line.split(b" ", 11)
    if len(fields) == _FRESH:
        return MessageState(seq=int(fields[0]), enqueued_at=int(fields[1]) / 1000)
    first, last, started, ended = (int(field) for field in fields[6:10])
    return MessageState(
        seq=int(fields[0]),
        enqueued_at=int(fields[1]) / 1000,
        hand_overs=int(fields[3]),
        refunds=int(fields[4]),
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
    """The message itself."""
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
    """A hand-over that began at that time: its receipt is the store and the entry's id."""
    return Delivery(
        message=message_of(store, state, group, head, body),
        queue=queue,
        receipt=f"{store}-{entry_id.decode()}",
        attempt=state.hand_overs - state.refunds + 1,
        received_at=at,
        previous=state.previous,
    )


def first_delivery_of(
    queue: str, store: str, entry_id: bytes, *, at: float, text: bytes, body: bytes, group: bytes, head: bytes
) -> Delivery:
    """As `delivery_of`, for what most messages are: never handed over before.

    Built in one go, since this is done for every message (half the time of the longer way, measured).
    """
    seq, enqueued = text.split(b" ")
    return Delivery(
        message=Message(
            id=shared.message_id(store, int(seq)),
            body=body,
            enqueued_at=int(enqueued) / 1000,
            attributes=decode_attributes(head) if head else NO_ATTRIBUTES,
            group=_group_of(group),
        ),
        queue=queue,
        receipt=f"{store}-{entry_id.decode()}",
        attempt=1,
        received_at=at,
    )


def entry_of(receipt: str) -> str | None:
    """The id of the entry that a receipt names; None for one that no broker of this kind ever gave."""
    _, found, entry = receipt.partition("-")
    return entry if found and _ENTRY.fullmatch(entry) else None


def sent(messages: Sequence[Outgoing]) -> list[bytes | str]:
    """What `send.lua` wants of each message: how, head and body."""
    arguments: list[bytes | str] = []
    attributes, head = NO_ATTRIBUTES, ""
    for message in messages:
        if message.attributes is not attributes:  # most often one mapping goes with all of them
            attributes, head = message.attributes, encode_attributes(message.attributes) or ""
        arguments += (_how(message), head, message.body)
    return arguments


def _try_of(line: re.Match[bytes]) -> AttemptRecord:
    started, ended, kind, worker, reason = line.groups()
    return AttemptRecord(
        started_at=int(started) / 1000,
        ended_at=int(ended) / 1000,
        worker=worker.decode("utf-8", "replace"),
        end=_ENDS[kind].value,
        reason=reason.decode("utf-8", "ignore") or None,  # it may be cut within a character
    )


def _group_of(tag: bytes) -> str | None:
    return decode_group(tag.decode("utf-8", "replace")) if tag else None  # others write any bytes


def _how(message: Outgoing) -> str:
    if message.group is None and not message.delay_seconds and message.deduplication_id is None:
        return ""
    how = {"group": encode_group(message.group), "delay": milliseconds(message.delay_seconds)}
    if message.deduplication_id is not None:
        how["once"] = message.deduplication_id
    return json.dumps(how)


def milliseconds(seconds: float) -> int:
    """Rounded up, so that no delay is shorter than asked."""
    return -int(-seconds * 1000 // 1)

"""The encoding of messages for SQS, and deliveries with the fields that only SQS has.

Text bodies and attributes are sent unchanged, so that other consumers can read them. Content that SQS does not accept
goes, as JSON, into one additional attribute, `penstock`: that the body is base64 or empty, the group, and attributes
that SQS has no room for or refuses (empty ones, invalid names or characters, those beyond the tenth). Messages from
other senders lack that attribute and are delivered unchanged; one that this module cannot have written is treated like
any other attribute.

Attributes of SQS's type Number are received as text and sent on as text.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.brokers.sqs.limits import ATTRIBUTES_MAX
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Message

NOTES = "penstock"  # name of the attribute
EMPTY_BODY = "(empty)"  # SQS accepts no empty body
_GROUPLESS = "none"  # for messages without a group, in queues that require one
_OWN = "penstock-"  # prefix of our own attributes
# Characters that XML does not allow; SQS refuses them with InvalidMessageContents.
_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!aws\.|amazon\.)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.IGNORECASE)
_NAME_CHARS_MAX = 256
_GROUP_ID = re.compile(r"[!-~]{1,128}")
Entry = dict[str, Any]


def sealed(body: bytes, attributes: Attributes, group: str | None, *, fifo: bool) -> Entry:
    """Return the entry for `SendMessageBatch`, except ids and delay."""
    notes: dict[str, Any] = {}
    text, encoding = _written(body)
    if encoding is not None:
        notes["body"] = encoding
    group_id = _GROUPLESS if group is None and fifo else None if group is None else _group_id(group)
    if group_id != group or (group is not None and not fifo):  # some servers lose the group of a standard queue
        notes["group"] = group
    entry: Entry = {"MessageBody": text}
    if group_id is not None:
        entry["MessageGroupId"] = group_id
    if notes or attributes:
        entry["MessageAttributes"] = _packed(attributes, notes)
    return entry


def unnoted(body: bytes, attributes: Attributes, group: str | None, *, fifo: bool) -> Entry | None:
    """Return the entry without our notes, as other senders write it; None if the message requires them."""
    text, encoding = _written(body)
    plain = all(_is_taken(name, value) or _is_others_note(name, value) for name, value in attributes.items())
    if encoding is not None or not plain or len(attributes) > ATTRIBUTES_MAX:
        return None
    if (group is None and fifo) or (group is not None and _group_id(group) != group):
        return None
    entry: Entry = {"MessageBody": text}
    if group is not None:
        entry["MessageGroupId"] = group
    if attributes:
        entry["MessageAttributes"] = {name: _typed(value) for name, value in attributes.items()}
    return entry


def opened(raw: Mapping[str, Any]) -> tuple[bytes, Attributes, str | None]:
    """Return body, attributes and group of a message from `ReceiveMessage`. Raises nothing, whatever the sender."""
    attributes = {name: _value(attribute) for name, attribute in raw.get("MessageAttributes", {}).items()}
    group = raw.get("Attributes", {}).get("MessageGroupId")
    text: str = raw.get("Body", "")
    notes = _notes(attributes.get(NOTES)) if NOTES in attributes else None
    body = None if notes is None else _read(text, notes.get("body"))
    if notes is None or body is None:
        return _bytes(text), MappingProxyType(attributes) if attributes else NO_ATTRIBUTES, group
    del attributes[NOTES]
    attributes.update(_unpacked(notes.get("attributes", {})))
    return body, MappingProxyType(attributes), notes.get("group", group)


def deduplication_id(text: str) -> str:
    """Return a deduplication id in SQS's form: unchanged if valid, else its hash."""
    return _group_id(text)


def size_bytes(entry: Entry) -> int:
    """Return the size as SQS counts it, and a little more for binary attributes, which are sent as base64."""
    size = len(entry["MessageBody"].encode("utf-8"))
    for name, attribute in entry.get("MessageAttributes", {}).items():
        size += len(name) + len(attribute["DataType"])
        binary = attribute.get("BinaryValue")
        size += len(attribute["StringValue"].encode("utf-8")) if binary is None else (len(binary) + 2) // 3 * 4
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsDelivery(Delivery):
    """A delivery from SQS. ``received_at`` is by this machine's clock; other epoch times are by that of SQS."""

    first_received_at: float  # epoch seconds; of the message's first delivery
    began_at: float  # monotonic; SQS holds a message at most 12 h from here


def source_of(raw: Mapping[str, Any]) -> str | None:
    """Return the ARN of the queue from which SQS itself moved the message here; None if it did not."""
    arn = raw.get("Attributes", {}).get("DeadLetterQueueSourceArn")
    return str(arn) if arn else None


def received(queue: str, raw: Mapping[str, Any], clock: Clock, *, receives_before: int | None = 0) -> SqsDelivery:
    """Return the delivery of a message from `ReceiveMessage`.

    ``receives_before`` is how often the message was received in the queue from which SQS moved it: SQS continues its
    count, Penstock restarts the attempts. None means unknown: every delivery then counts as the first, so that no dead
    letter is given up before a worker has seen it.
    """
    source = source_of(raw)
    system: Mapping[str, str] = raw.get("Attributes", {})
    body, attributes, group = opened(raw)
    now = clock.now()
    return SqsDelivery(
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


def seconds_since_receive(delivery: Delivery, clock: Clock) -> float:
    """Return how long the delivery has been leased, in seconds."""
    if isinstance(delivery, SqsDelivery):
        return clock.monotonic() - delivery.began_at
    return clock.now() - delivery.received_at


def _written(body: bytes) -> tuple[str, str | None]:
    if not body:
        return EMPTY_BODY, "empty"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"
    if _REFUSED.search(text) is not None:
        return base64.b64encode(body).decode("ascii"), "base64"
    return text, None


def _read(text: str, encoding: object) -> bytes | None:
    """Return the decoded body; None if the text does not have that encoding."""
    match encoding:
        case None:
            return _bytes(text)
        case "empty":
            return b"" if text == EMPTY_BODY else None
        case "base64":
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return None
    return None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # handlers refuse text that is not valid Unicode


def _group_id(text: str) -> str:
    return text if _GROUP_ID.fullmatch(text) else f"sha256-{hashlib.sha256(text.encode('utf-8')).hexdigest()}"


def _packed(attributes: Attributes, notes: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in attributes.items() if _is_taken(name, value)}
    packed = {name: value for name, value in attributes.items() if name not in plain}
    positions = ATTRIBUTES_MAX - 1 if notes or packed else ATTRIBUTES_MAX
    if len(plain) > positions:
        names = sorted(plain, key=lambda name: name.startswith(_OWN))  # our attributes give way to the sender's
        packed.update((name, plain.pop(name)) for name in names[ATTRIBUTES_MAX - 1 :])
    written = {name: _typed(value) for name, value in plain.items()}
    if packed:
        notes["attributes"] = {
            name: value if isinstance(value, str) else [base64.b64encode(value).decode("ascii")]
            for name, value in packed.items()
        }
    if notes:
        written[NOTES] = _typed(json.dumps(notes, separators=(",", ":")))
    return written


def _is_taken(name: str, value: str | bytes) -> bool:
    """Return True if SQS accepts it as an attribute."""
    if name == NOTES or not value or len(name) > _NAME_CHARS_MAX or not _NAME.fullmatch(name):
        return False
    return isinstance(value, bytes) or _REFUSED.search(value) is None


def _is_others_note(name: str, value: str | bytes) -> bool:
    """Return True if it has our attribute's name but not our content, and so is delivered unchanged."""
    return name == NOTES and bool(value) and _notes(value) is None


def _typed(value: str | bytes) -> dict[str, Any]:
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    return {"DataType": "Binary", "BinaryValue": value}


def _value(attribute: Mapping[str, Any]) -> str | bytes:
    value: str | bytes | None = attribute.get("BinaryValue")
    if value is None:
        value = attribute.get("StringValue", "")
    return value if isinstance(value, bytes) else str(value)


def _notes(text: str | bytes | None) -> Mapping[str, Any] | None:
    """Return the notes that `sealed` wrote; None for a text that it cannot have written."""
    if not isinstance(text, str):
        return None
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notes, dict) or not notes.keys() <= {"body", "group", "attributes"}:
        return None
    group, attributes = notes.get("group"), notes.get("attributes", {})
    if not (group is None or (isinstance(group, str) and _is_unicode(group))) or not isinstance(attributes, dict):
        return None
    return notes if all(map(_is_packed, attributes.values())) else None


def _is_unicode(text: str) -> bool:
    """Return True if there is no lone surrogate, which JSON can contain but UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_packed(value: object) -> bool:
    match value:
        case str():
            return True
        case [str(text)]:
            try:
                base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return False
            return True
    return False


def _unpacked(attributes: Mapping[str, Any]) -> dict[str, str | bytes]:
    return {name: value if isinstance(value, str) else base64.b64decode(value[0]) for name, value in attributes.items()}


def _attempt(receives: int, before: int | None) -> int:
    return 1 if before is None else max(receives - before, 1)


def _seconds(milliseconds: str | None, otherwise: float) -> float:
    return otherwise if milliseconds is None else int(milliseconds) / 1000

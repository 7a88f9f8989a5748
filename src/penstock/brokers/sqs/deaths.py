"""What a dead letter says of its death, as far as there is room: body and attributes go first."""

from collections.abc import Iterator
from dataclasses import replace

from penstock.brokers import rules
from penstock.brokers.sqs.envelope import Entry, deduplication_id, sealed, size_bytes, unnoted
from penstock.brokers.sqs.received import Received
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, encode_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import DeadLetter

_TRIMMED_BYTES_MAX = 40 * 1024
_REASON_CHARS_MAX = 200


def dead_letter(
    delivery: Delivery, settlement: DeadLetter, *, worker: str, now: float, fifo: bool, bytes_max: int
) -> Entry:
    """What the dead-letter queue is sent: body, group and attributes as they were, and the death.

    What another program filled to the brim goes as it came, without a word. When it failed first SQS does not know;
    the time of its first hand-over is told instead.
    """
    first = delivery.first_received_at if isinstance(delivery, Received) and delivery.attempt > 1 else None
    death = rules.death_by_settlement(settlement, delivery, worker=worker, first_failed_at=first, now=now)
    message = delivery.message
    for text in _told(death):
        attributes = {**message.attributes, DEATH_ATTRIBUTE: text} if text else message.attributes
        entry = sealed(message.body, attributes, message.group, fifo=fifo)
        if size_bytes(entry) <= bytes_max:
            break
    else:
        entry = unnoted(message.body, message.attributes, message.group, fifo=fifo) or entry
    if fifo:
        entry["MessageDeduplicationId"] = deduplication_id(f"{message.id}.{delivery.attempt}")
    return entry


def _told(death: Death) -> Iterator[str]:
    """All of it, then less and less."""
    yield encode_death(death)
    yield encode_death(death, bytes_max=_TRIMMED_BYTES_MAX)
    brief = replace(death, traceback=None, exception=None)
    yield encode_death(brief)
    yield encode_death(replace(brief, reason=brief.reason[:_REASON_CHARS_MAX]))
    yield ""

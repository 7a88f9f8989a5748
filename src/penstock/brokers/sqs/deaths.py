"""What a dead letter says of its death, as far as there is room: body and attributes go first."""

from collections.abc import Iterator
from dataclasses import replace

from penstock.brokers import rules
from penstock.brokers.sqs.envelope import Entry, deduplication_id, sealed, size_bytes, unnoted
from penstock.brokers.sqs.received import Received
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, buried, encode_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes
from penstock.messaging.past import PAST_ATTRIBUTE
from penstock.messaging.settlement import DeadLetter

_TRIMMED_BYTES_MAX = 40 * 1024
_REASON_CHARS_MAX = 200


def dead_letter(
    delivery: Delivery, settlement: DeadLetter, *, worker: str, now: float, fifo: bool, bytes_max: int
) -> Entry:
    """What the dead-letter queue is sent: body, group and attributes as they were, and the death; from the first tier
    to the second, the death that is there and why it goes on.

    What another program filled to the brim goes as it came, without a word. When it failed first SQS does not know;
    the time of its first hand-over is told instead.
    """
    first = delivery.first_received_at if isinstance(delivery, Received) and delivery.attempt > 1 else None
    death = rules.death_by_settlement(settlement, delivery, worker=worker, first_failed_at=first, now=now)
    message = delivery.message
    for attributes in _told(message.attributes, settlement, death):
        entry = sealed(message.body, attributes, message.group, fifo=fifo)
        if size_bytes(entry) <= bytes_max:
            break
    else:
        entry = unnoted(message.body, message.attributes, message.group, fifo=fifo) or entry
    if fifo:
        entry["MessageDeduplicationId"] = deduplication_id(f"{message.id}.{delivery.attempt}")
    return entry


def _told(before: Attributes, settlement: DeadLetter, death: Death) -> Iterator[Attributes]:
    """All of it, then less and less; the past goes before the death does."""
    whole = buried(before, settlement, death)
    brief = replace(settlement, reason=settlement.reason[:_REASON_CHARS_MAX])
    yield whole
    if settlement.set_aside:
        yield buried(before, brief, death)
        yield _without_past(buried(before, brief, death))
    else:
        yield {**whole, DEATH_ATTRIBUTE: encode_death(death, bytes_max=_TRIMMED_BYTES_MAX)}
        short = replace(death, traceback=None, exception=None, tries=())
        yield {**whole, DEATH_ATTRIBUTE: encode_death(short)}
        shortest = {**whole, DEATH_ATTRIBUTE: encode_death(replace(short, reason=brief.reason))}
        yield shortest
        yield _without_past(shortest)
    yield before


def _without_past(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if name != PAST_ATTRIBUTE}

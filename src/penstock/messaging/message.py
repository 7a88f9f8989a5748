"""Messages, as written by a sender and as held by a queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Attributes = Mapping[str, str | bytes]

# Attributes by which the inbox recognises a message, whatever id the broker assigns.
OUTBOX_ID_ATTRIBUTE = "penstock-outbox-id"
DEDUPLICATION_ATTRIBUTE = "penstock-deduplication-id"
ORIGIN_ATTRIBUTE = "penstock-origin-id"  # of a replayed message: the id of its first delivery
IDENTITY_ATTRIBUTES = frozenset({OUTBOX_ID_ATTRIBUTE, DEDUPLICATION_ATTRIBUTE})

# Prefix of attributes that a broker could not decode.
UNREADABLE_ATTRIBUTE = "penstock-unreadable-attributes"

# Python 3.11's dataclasses reject a mapping proxy as a mutable default, hence the factories below.
NO_ATTRIBUTES: Attributes = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send; the broker assigns its id and time."""

    body: bytes
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES)
    group: str | None = None  # the tenant: groups of a queue take turns
    deduplication_id: str | None = None  # the broker drops a second send with the same id within its window
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as held by its queue: immutable, whatever happens to its deliveries.

    Attributes:
        id: The id that the broker assigned.
        body: The body as sent.
        enqueued_at: When it was put into the queue, in epoch seconds by the broker's clock.
        attributes: Text or bytes by name, including Penstock's own.
        group: The group (tenant); None if it has none.
    """

    id: str
    body: bytes
    enqueued_at: float
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES)
    group: str | None = None

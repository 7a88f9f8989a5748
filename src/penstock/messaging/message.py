"""Messages: what a sender writes and what a queue holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Attributes = Mapping[str, str | bytes]

# What the inbox knows a message again by, whatever id a broker gives it.
OUTBOX_ID_ATTRIBUTE = "penstock-outbox-id"
DEDUPLICATION_ATTRIBUTE = "penstock-deduplication-id"
ORIGIN_ATTRIBUTE = "penstock-origin-id"  # of a replayed message: the id that it was first delivered under
IDENTITY_ATTRIBUTES = frozenset({OUTBOX_ID_ATTRIBUTE, DEDUPLICATION_ATTRIBUTE})

# The beginning of attributes that a broker could not decode.
UNREADABLE_ATTRIBUTE = "penstock-unreadable-attributes"

# Python 3.11's dataclasses take a proxy for a mutable default, so it is handed out by a factory.
NO_ATTRIBUTES: Attributes = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way into a queue; the broker gives it an id and a time."""

    body: bytes
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES)
    group: str | None = None  # the tenant
    deduplication_id: str | None = None  # a second send of the same id within the broker's window is dropped
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as its queue holds it: immutable, whatever happens to its deliveries."""

    id: str
    body: bytes
    enqueued_at: float  # epoch seconds, the broker's clock
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES)
    group: str | None = None

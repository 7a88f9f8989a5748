"""What happens to outboxes and inboxes."""

from dataclasses import dataclass

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent(Event):
    """A relay sent rows of an outbox, and the outbox holds them no more."""

    queue: str
    message_ids: tuple[str, ...]  # the broker's


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRefused(Event):
    """The broker does not take a row of the outbox. It stays there, and is tried again."""

    queue: str
    outbox_id: str
    tries: int
    reason: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFailed(Event):
    """The broker or the database of an outbox is away; nothing is lost, and it is tried again."""

    database: str  # its address, for people
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxForgotten(Event):
    """Rows of an inbox that are old enough were deleted."""

    database: str  # its address, for people
    count: int  # messages

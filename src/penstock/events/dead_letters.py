"""What becomes of dead letters."""

from dataclasses import dataclass
from typing import Literal

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadReplayed(Event):
    """A replayer decided what becomes of a dead letter now. ``result`` is sent, already_sent (before a crash, as it is
    on record), held (its wait is not over), put_back (broker or record are away), or set_aside (to the second tier)."""

    queue: str | None  # where the message died, and goes back to; None: nobody can tell
    letter_queue: str
    message_id: str  # the letter's
    replay_id: str
    count: int  # this is its n-th replay in a row; how many it had, of one that is set aside
    due_at: float | None  # epoch seconds
    new_message_id: str | None  # of what was sent now
    result: Literal["sent", "already_sent", "held", "put_back", "set_aside"]
    reason: str | None = None  # of what is put back or set aside


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaysUnmarked(Event):
    """Messages are in their queues again and the record could not be told; their letters are deleted nevertheless."""

    replay_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersAgeing(Event):
    """Dead letters wait in a queue that deletes them at the end of its retention; told once a day while it lasts."""

    queue: str
    letters: int  # that have waited for the share of their retention that the settings name
    oldest_age_seconds: float
    first_deleted_at: float  # epoch seconds
    archived: bool  # whether they go to the archive before


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersArchived(Event):
    """Dead letters near their end left their queue for a file."""

    queue: str
    letters: int
    file: str

"""What `penstock send` knows of its sending, and how it says what it cannot know."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.output import counted

IDS_SHOWN_MAX = 1_000


@dataclass(slots=True, kw_only=True)
class Tally:
    """What is known of the sending so far."""

    deduplicated: bool
    ids: list[str] = field(default_factory=list)  # the first ones
    count: int = 0  # sent for sure
    unknown: int = 0  # given to the broker, which has not answered

    def answered(self, ids: Sequence[str]) -> None:
        """The broker took them."""
        self.count, self.unknown = self.count + len(ids), 0
        self.ids += ids[: IDS_SHOWN_MAX - len(self.ids)]

    def document(self, queue: str) -> dict[str, Any]:
        """For --json, however the sending ended."""
        return {"queue": queue, "sent": self.count, "unknown": self.unknown, "message_ids": self.ids}

    @property
    def interrupted(self) -> str:
        """How it stands after Ctrl-C."""
        parts = [f"{counted(self.count, 'message')} sent"] if self.count else []
        if self.unknown:
            perhaps = f"perhaps the next {self.unknown:,}"
            parts.append(perhaps if self.count else f"perhaps {counted(self.unknown, 'message')} sent")
        return ", ".join([*parts, "and no more"]) if parts else "nothing was sent"

    @property
    def failed(self) -> str:
        """How it stands after an error, and whether it is safe to send again."""
        sure = f"{counted(self.count, 'message')} sent" if self.count else ""
        if not self.unknown:
            return f"{sure}, the rest was not." if sure else "Nothing was sent."
        one = self.unknown == 1
        which = "the next message was" if one else f"the next {self.unknown:,} messages were"
        doubt = f"nobody knows whether {which} sent, and the rest was not."
        again = "it" if one else "them"
        safe = (
            "Within five minutes it is safe to send it again: its deduplication id drops a second one."
            if self.deduplicated
            else f"Sending {again} again may send {again} twice; with a deduplication id that would be safe."
        )
        return f"{sure}; {doubt} {safe}" if sure else f"Nothing is sent for sure: {doubt} {safe}"

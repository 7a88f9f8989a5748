"""What the replayer tells: an event a letter."""

from collections.abc import Sequence
from typing import Literal

from penstock.errors import PenstockError
from penstock.events import Bus, DeadReplayed, ReplaysUnmarked
from penstock.messaging.delivery import Delivery
from penstock.messaging.replays import Replay, letter_replay_id, replays_so_far
from penstock.replay.sources import Source, Sources

Result = Literal["sent", "already_sent", "held", "put_back", "set_aside"]


class Telling:
    """Any thread may call it."""

    def __init__(self, bus: Bus, sources: Sources) -> None:
        self._bus = bus
        self._sources = sources

    def sent(self, letter: Delivery, replay: Replay, *, new_message_id: str | None) -> None:
        """It is in its queue, as the message of that id; None: and was before."""
        result: Result = "already_sent" if new_message_id is None else "sent"
        self._tell(letter, replay, result=result, new_message_id=new_message_id)

    def held(self, letter: Delivery, replay: Replay) -> None:
        """It waits where it is."""
        self._tell(letter, replay, result="held")

    def set_aside(self, letter: Delivery, reason: str) -> None:
        """It goes to the second tier."""
        self._tell(letter, None, result="set_aside", reason=reason)

    def put_back(self, letter: Delivery, replay: Replay | None, error: PenstockError) -> None:
        """Broker or log are away; it is looked at again."""
        self._tell(letter, replay, result="put_back", reason=_said(error))

    def unmarked(self, letters: Sequence[Delivery], error: PenstockError) -> None:
        """They are in their queues, and the record does not say so."""
        ids = tuple(letter_replay_id(letter.queue, letter.message) for letter in letters)
        self._bus.emit(ReplaysUnmarked(replay_ids=ids, error=_said(error)))

    def _tell(
        self,
        letter: Delivery,
        replay: Replay | None,
        *,
        result: Result,
        reason: str | None = None,
        new_message_id: str | None = None,
    ) -> None:
        source = self._sources.of(letter)
        so_far = replays_so_far(letter.message.attributes)
        self._bus.emit(
            DeadReplayed(
                queue=source.queue if isinstance(source, Source) else None,
                letter_queue=letter.queue,
                message_id=letter.message.id,
                replay_id=letter_replay_id(letter.queue, letter.message),
                count=so_far if replay is None else replay.count,
                due_at=None if replay is None else replay.due_at,
                new_message_id=new_message_id,
                result=result,
                reason=reason,
            )
        )


def _said(error: PenstockError) -> str:
    return f"{type(error).__name__}: {error}"

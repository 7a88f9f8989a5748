"""When letters are due whose replays nobody records: times that come out the same whenever a letter is looked at.

A replay's wait is drawn from its id, and so always the same; what is missing without a record is when it began. The
letter itself says when it died, where Penstock buried it. One that SQS moved says nothing: its wait is drawn so short
that the queue keeps it as a delay, and the letter need not be looked at again. A FIFO queue keeps no delays, so there
the wait begins at the letter's first receive, which SQS remembers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.messaging.broker import is_fifo
from penstock.messaging.death import death_of
from penstock.messaging.replays import NoLog, Replay, letter_replay_id
from penstock.replay.policy import spread

if TYPE_CHECKING:
    from penstock.brokers.sqs.received import Received

DELAY_SECONDS_MAX = 900.0  # of a message that is sent on SQS


class Unrecorded(NoLog):
    """A `penstock.messaging.replays.ReplayLog` for these letters, planned at ``now``."""

    def __init__(self, letters: "Sequence[Received]", *, now: float) -> None:
        self._letters = {letter_replay_id(letter.queue, letter.message): letter for letter in letters}
        self._now = now

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        return {replay.replay_id: replace(replay, due_at=self._due_at(replay)) for replay in replays}

    def _due_at(self, replay: Replay) -> float:
        letter = self._letters[replay.replay_id]
        wait_seconds = max(replay.due_at - self._now, 0.0)
        first_received_at = min(letter.first_received_at, self._now)
        death = death_of(letter.message.attributes)
        if death is not None and letter.moved_from is None:
            # Nobody can have received it before it died: a later death is forged, and would be put off with each look.
            return min(death.last_failed_at, first_received_at) + wait_seconds
        # uniform(0, min(900, ceiling)), as where the ceiling is higher the draw is a share of 900 s.
        short_seconds = min(wait_seconds, spread(replay.replay_id) * DELAY_SECONDS_MAX)
        began_at = first_received_at if is_fifo(letter.queue) else self._now
        return began_at + short_seconds

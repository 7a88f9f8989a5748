"""Replay dead-lettered messages on request, in chunks, so that a person can stop it.

A message is sent as the automatic replayer sends it (intent, send, mark, delete), with the same replay id and the same
record, so that neither repeats a send of the other. Only the replay counter differs: it restarts at zero, and so do
the automatic replays.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.reader import DeadLetteredMessage, DeadLetterReader
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import Broker, chunk_of, send_each
from penstock.messaging.clock import Clock
from penstock.messaging.replay import Replay, ReplayLog, dead_letter_replay_id, replayed
from penstock.messaging.steps import Probe, Step, no_probe

CHUNK = 100  # messages between two checks of ``stopped``
_PAUSE_SECONDS = 0.2  # between two such checks, while waiting for the rate
_NONE_SO_FAR = 0

Stopped = Callable[[], bool]
ProgressCallback = Callable[[int], None]  # called with the number of messages done since the last call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem:
    """A dead-lettered message and its target queue."""

    dead_letter: DeadLetteredMessage
    queue: str

    @property
    def replay(self) -> Replay:
        """Its replay, to be sent now, with the replay counter at zero."""
        return Replay(
            replay_id=dead_letter_replay_id(self.dead_letter.queue, self.dead_letter.message),
            dead_letter_queue=self.dead_letter.queue,
            dead_letter_id=self.dead_letter.id,
            queue=self.queue,
            count=_NONE_SO_FAR,
            due_at=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedChunk:
    """The outcome of a chunk. ``ids`` are the new message ids, in the order of ``items``.

    Messages in ``refused``, and those not listed here, stay where they are.
    """

    items: Sequence[ReplayItem]  # sent now
    ids: Sequence[str]
    sent_before: int  # messages sent earlier: now only their dead-lettered originals were deleted
    refused: Sequence[tuple[ReplayItem, ConfigurationError]] = ()  # their queues cannot accept these messages
    failed: PenstockError | None = None  # why the rest was not sent, or why that is unknown


class ReplaySender:
    """Replay dead-lettered messages of one broker. Used by the thread of one command."""

    def __init__(self, broker: Broker, log: ReplayLog, *, clock: Clock, probe: Probe = no_probe) -> None:
        self._broker = broker
        self._log = log
        self._clock = clock
        self._probe = probe

    def send(self, dead_letters: DeadLetterReader, items: Sequence[ReplayItem]) -> ReplayedChunk:
        """Send a chunk, then delete the dead-lettered messages that were sent.

        Safe to repeat after an interruption at any step: messages that a queue accepted are marked before more are
        sent. Raises the error of a queue if no message of the chunk was sent.
        """
        intents = {item.replay.replay_id: replace(item.replay, due_at=self._clock.now()) for item in items}
        known = self._log.open(list(intents.values()))
        self._probe(Step.REPLAY_INTENDED)
        due = [item for item in items if not known[item.replay.replay_id].sent]
        by_queue: dict[str, list[ReplayItem]] = defaultdict(list)
        for item in due:
            by_queue[item.queue].append(item)
        accepted: list[tuple[ReplayItem, str]] = []
        refused: list[tuple[ReplayItem, ConfigurationError]] = []
        failed: PenstockError | None = None
        for portion in self._portions(by_queue):
            try:
                outcomes = self._send(portion)
            except ConfigurationError as error:
                if not (accepted or len(due) < len(items)):
                    raise
                failed = error  # messages accepted before must still be deleted
                break
            accepted += [(item, result) for item, result in outcomes if isinstance(result, str)]
            refused += [(item, result) for item, result in outcomes if isinstance(result, ConfigurationError)]
            failed = next((result for _, result in outcomes if isinstance(result, TemporaryError)), None)
            if failed is not None:
                break
        self._probe(Step.REPLAY_MARKED)
        before = [item for item in items if known[item.replay.replay_id].sent]
        dead_letters.remove([item.dead_letter.id for item in [*before, *(item for item, _ in accepted)]])
        return ReplayedChunk(
            items=[item for item, _ in accepted],
            ids=[id for _, id in accepted],
            sent_before=len(before),
            refused=refused,
            failed=failed,
        )

    def _portions(self, by_queue: Mapping[str, Sequence[ReplayItem]]) -> Iterator[Sequence[ReplayItem]]:
        """Yield groups of messages to one queue, each to be sent in one call and then marked."""
        for items in by_queue.values():
            size = chunk_of(self._broker, len(items))
            for start in range(0, len(items), size):
                yield items[start : start + size]

    def _send(self, portion: Sequence[ReplayItem]) -> Sequence[tuple[ReplayItem, str | PenstockError]]:
        """Send messages to one queue and mark those that it accepted."""
        # The recorded intent may be the automatic replayer's, with another count or queue: send this replay instead.
        outgoing = [replayed(item.dead_letter.message, item.replay, delay_seconds=0.0) for item in portion]
        outcomes = list(zip(portion, send_each(self._broker, portion[0].queue, outgoing), strict=True))
        self._probe(Step.REPLAY_SENT)
        accepted = [item.replay.replay_id for item, result in outcomes if isinstance(result, str)]
        if accepted:
            self._log.mark_sent(accepted)
        return outcomes


class ReplayRate:
    """The rate limit for a series of chunks. Used by the thread of one command."""

    def __init__(self, per_second: float | None, *, clock: Clock, stopped: Stopped) -> None:
        self._per_second = per_second
        self._clock = clock
        self._stopped = stopped
        self._began_at = clock.monotonic()
        self._done = 0

    @property
    def chunk(self) -> int:
        """The number of messages per chunk."""
        return CHUNK if self._per_second is None else max(1, min(CHUNK, int(self._per_second)))

    def wait(self, done: int) -> None:
        """Wait after ``done`` more messages until the next chunk is due, or ``stopped`` returns True."""
        self._done += done
        if self._per_second is None:
            return
        due_at = self._began_at + self._done / self._per_second
        while (left := due_at - self._clock.monotonic()) > 0 and not self._stopped():
            self._clock.wait(threading.Event(), min(left, _PAUSE_SECONDS))


def matching(
    dead_letters: DeadLetterReader, wanted: DeadLetterFilter, *, clock: Clock, stopped: Stopped, until: float = math.inf
) -> Iterator[Sequence[DeadLetteredMessage]]:
    """Yield the matching messages page by page until ``stopped`` returns True.

    ``until`` (epoch seconds) excludes messages dead-lettered later. Replays need it: a message that fails again would
    otherwise be replayed again and again.
    """
    for page in dead_letters.pages():
        if stopped():
            return
        now = clock.now()
        found = [
            dead_letter
            for dead_letter in page
            if dead_letter.message.enqueued_at <= until and wanted.matches(dead_letter, now=now)
        ]
        if found:
            yield found

"""What a person does with dead letters: send them back, or delete them; a chunk at a time, so that it can be stopped.

A letter goes back as the automatic replayer sends it, with the same replay id and by the same record, so that neither
sends again what the other one sent: intent, send, mark, delete. Only the counter differs: it begins anew, and with it
the automatic replays.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.letters import DeadLetteredMessage, DeadLetterReader
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import Broker, chunk_of, send_each
from penstock.messaging.clock import Clock
from penstock.messaging.replay import Replay, ReplayLog, letter_replay_id, replayed
from penstock.messaging.steps import Probe, Step, no_probe

CHUNK = 100  # letters between two looks at whether to stop
_NAP_SECONDS = 0.2  # waiting for the rate, between two such looks
_NONE_SO_FAR = 0

Stopped = Callable[[], bool]
Told = Callable[[int], None]  # of how many more are done


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem:
    """A letter and the queue it is to go to."""

    letter: DeadLetteredMessage
    queue: str

    @property
    def replay(self) -> Replay:
        """Its intent, due when it is sent. The counter begins anew."""
        return Replay(
            replay_id=letter_replay_id(self.letter.queue, self.letter.message),
            letter_queue=self.letter.queue,
            letter_id=self.letter.id,
            queue=self.queue,
            count=_NONE_SO_FAR,
            due_at=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedChunk:
    """The outcome of a chunk. ``ids`` are those in their queues, in the order of ``errands``.

    The letters of ``refused`` and of those that are named nowhere here stay where they are.
    """

    errands: Sequence[ReplayItem]  # that were sent
    ids: Sequence[str]
    sent_before: int  # were in their queues already, and only their letters were deleted
    refused: Sequence[tuple[ReplayItem, ConfigurationError]] = ()  # their queues never take these messages
    failed: PenstockError | None = None  # why the rest was not sent, or why it is unknown whether it was


class ReplaySender:
    """Sends letters back."""

    def __init__(self, broker: Broker, log: ReplayLog, *, clock: Clock, probe: Probe = no_probe) -> None:
        self._broker = broker
        self._log = log
        self._clock = clock
        self._probe = probe

    def send(self, letters: DeadLetterReader, errands: Sequence[ReplayItem]) -> ReplayedChunk:
        """Send a chunk, and then delete the letters of those that were taken.

        Safe to do again wherever it broke off: what a queue took is marked before more is sent. Raises an error of a
        queue that took nothing of the chunk.
        """
        intents = {errand.replay.replay_id: replace(errand.replay, due_at=self._clock.now()) for errand in errands}
        known = self._log.open(list(intents.values()))
        self._probe(Step.REPLAY_INTENDED)
        due = [errand for errand in errands if not known[errand.replay.replay_id].sent]
        by_queue: dict[str, list[ReplayItem]] = defaultdict(list)
        for errand in due:
            by_queue[errand.queue].append(errand)
        taken: list[tuple[ReplayItem, str]] = []
        refused: list[tuple[ReplayItem, ConfigurationError]] = []
        failed: PenstockError | None = None
        for some in self._parts(by_queue):
            try:
                outcomes = self._send(some)
            except ConfigurationError as error:
                if not (taken or len(due) < len(errands)):
                    raise
                failed = error  # what was taken before is still to be deleted
                break
            taken += [(errand, answer) for errand, answer in outcomes if isinstance(answer, str)]
            refused += [(errand, answer) for errand, answer in outcomes if isinstance(answer, ConfigurationError)]
            failed = next((answer for _, answer in outcomes if isinstance(answer, TemporaryError)), None)
            if failed is not None:
                break
        self._probe(Step.REPLAY_MARKED)
        before = [errand for errand in errands if known[errand.replay.replay_id].sent]
        letters.remove([errand.letter.id for errand in [*before, *(errand for errand, _ in taken)]])
        return ReplayedChunk(
            errands=[errand for errand, _ in taken],
            ids=[id for _, id in taken],
            sent_before=len(before),
            refused=refused,
            failed=failed,
        )

    def _parts(self, by_queue: Mapping[str, Sequence[ReplayItem]]) -> Iterator[Sequence[ReplayItem]]:
        """As many of one queue as are sent before they are marked."""
        for together in by_queue.values():
            size = chunk_of(self._broker, len(together))
            for start in range(0, len(together), size):
                yield together[start : start + size]

    def _send(self, some: Sequence[ReplayItem]) -> Sequence[tuple[ReplayItem, str | PenstockError]]:
        """Send messages to one queue and mark those that it took."""
        # What is on record may be the replayer's intent, with a count and a queue of its own: what is sent is ours.
        outgoing = [replayed(each.letter.message, each.replay, delay_seconds=0.0) for each in some]
        outcomes = list(zip(some, send_each(self._broker, some[0].queue, outgoing), strict=True))
        self._probe(Step.REPLAY_SENT)
        taken = [errand.replay.replay_id for errand, answer in outcomes if isinstance(answer, str)]
        if taken:
            self._log.sent(taken)
        return outcomes


class ReplayRate:
    """Holds a row of chunks to a rate. Used by one thread."""

    def __init__(self, per_second: float | None, *, clock: Clock, stopped: Stopped) -> None:
        self._per_second = per_second
        self._clock = clock
        self._stopped = stopped
        self._began_at = clock.monotonic()
        self._done = 0

    @property
    def chunk(self) -> int:
        """How many at once."""
        return CHUNK if self._per_second is None else max(1, min(CHUNK, int(self._per_second)))

    def wait(self, done: int) -> None:
        """After so many more: until the next are due, or somebody asks to stop."""
        self._done += done
        if self._per_second is None:
            return
        due_at = self._began_at + self._done / self._per_second
        while (left := due_at - self._clock.monotonic()) > 0 and not self._stopped():
            self._clock.wait(threading.Event(), min(left, _NAP_SECONDS))


def matching(
    letters: DeadLetterReader, wanted: DeadLetterFilter, *, clock: Clock, stopped: Stopped, until: float = math.inf
) -> Iterator[Sequence[DeadLetteredMessage]]:
    """Those that are wanted, page by page, until somebody asks to stop. Who sends them back gives ``until``: what died
    after that is left alone, or it would come again and again."""
    for page in letters.pages():
        if stopped():
            return
        now = clock.now()
        found = [each for each in page if each.message.enqueued_at <= until and wanted.matches(each, now=now)]
        if found:
            yield found

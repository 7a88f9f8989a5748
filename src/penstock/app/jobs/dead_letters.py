"""Dead letters near the end of their retention: told of in time, and kept in an archive before the queue deletes them.

Beside a replayer, rarely. A letter leaves its queue only when the file that holds it is durable. A file is named by its
content, so a pass that was cut short in between writes the same file again; where letters were added since, one may be
in two files, which an import knows again. On SQS a look is a receive, so there it is done only where an archive is set,
and about forty times in the life of a letter by each process that replays.
"""

import hashlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from penstock.app.rounds import PeriodicJob
from penstock.app.service import ServiceContext
from penstock.dead_letters.jsonl import line_of
from penstock.dead_letters.letters import DeadLetteredMessage, DeadLetterReader, letters_in
from penstock.events import Bus, DeadLettersAgeing, DeadLettersArchived
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker, listed_name
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.storage.files import Files
from penstock.storage.roots import files_at
from penstock.worker.shutdown import StopSignal

NAME = "dead letters"  # of what failed, in events
ARCHIVED_FROM_SHARE = 0.95  # of its retention a letter has waited; its last replay was due before
FILE_LETTERS_MAX, FILE_BYTES_MAX = 1_000, 8 * 1024 * 1024
TOLD_EVERY_SECONDS = 86_400.0  # while it lasts
_REST_SHARE = 1 / 40  # of the retention: twice before the end of those that are to be archived
_REST_SECONDS_MIN, _REST_SECONDS_MAX = 60.0, 3_600.0
_RECEIVED_REST_SECONDS_MIN, _RECEIVED_REST_SECONDS_MAX = 3_600.0, 86_400.0  # where a look counts as a receive
_AWAY_REST_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessages:
    """The letters of a queue that have waited long and stay there. Times are epoch seconds."""

    letters: int
    oldest_at: float


class ExpiryWatch(PeriodicJob):
    """Looks at the letters of these queues again and again."""

    def __init__(
        self,
        queues: Sequence[str],
        *,
        broker: Broker,
        archive: Files | None,
        warn_share: float,
        bus: Bus,
        clock: Clock,
        random: Random,
        stop: StopSignal | None = None,
        probe: Probe = no_probe,
    ) -> None:
        super().__init__(NAME, clock=clock, random=random, tell=bus.emit, stop=stop)
        self._queues = queues
        self._broker = broker
        self._archive = archive
        self._warn_share = warn_share
        self._bus = bus
        self._probe = probe
        self._told_at: dict[str, float] = {}  # monotonic, by queue; of the rounds' thread

    def once(self) -> float:
        """One look at each; answers in how many seconds the next one makes sense."""
        least, most = self._rests()
        rest_seconds = most
        for queue in self._queues:
            if self._is_over():
                break
            try:
                retention_seconds = self._broker.retention_seconds(queue)
                if retention_seconds is not None:
                    self._look(queue, retention_seconds)
                    rest_seconds = min(rest_seconds, retention_seconds * _REST_SHARE)
            except Exception as error:  # broker or archive away, or no right to it: another round tries again
                self._failed(error, whose=queue)
                rest_seconds = min(rest_seconds, _AWAY_REST_SECONDS)
            else:
                self._succeeded(whose=queue)
        return max(rest_seconds, least)

    def _round(self) -> float:
        return self.once()

    def _rests(self) -> tuple[float, float]:
        """Seconds between two looks, at least and at most."""
        if self._broker.capabilities.browsable:
            return _REST_SECONDS_MIN, _REST_SECONDS_MAX
        return _RECEIVED_REST_SECONDS_MIN, _RECEIVED_REST_SECONDS_MAX

    def _look(self, queue: str, retention_seconds: float) -> None:
        if not self._broker.capabilities.browsable and (self._archive is None or not self._broker.stats(queue).visible):
            return
        now = self._clock.now()
        with letters_in(self._broker, queue, clock=self._clock) as letters:
            aged = self._aged(letters, now, retention_seconds)
        if aged.letters:
            self._warn(queue, aged, now, retention_seconds)
        else:
            self._told_at.pop(queue, None)

    def _aged(self, letters: DeadLetterReader, now: float, retention_seconds: float) -> AgedMessages:
        archiving = None if self._archive is None else _Archiving(self._archive, letters, self._bus, self._probe)
        count, oldest_at = 0, now
        for page in letters.pages():
            for letter in page:
                at = letter.message.enqueued_at
                if now - at < self._warn_share * retention_seconds:
                    continue
                if archiving is not None and now - at >= ARCHIVED_FROM_SHARE * retention_seconds:
                    archiving.add(letter)
                    continue
                count, oldest_at = count + 1, min(oldest_at, at)
            if self._is_over():
                break
        if archiving is not None:
            archiving.flush()
        return AgedMessages(letters=count, oldest_at=oldest_at)

    def _warn(self, queue: str, aged: AgedMessages, now: float, retention_seconds: float) -> None:
        at = self._clock.monotonic()
        if at - self._told_at.get(queue, float("-inf")) < TOLD_EVERY_SECONDS:
            return
        self._told_at[queue] = at
        self._bus.emit(
            DeadLettersAgeing(
                queue=queue,
                letters=aged.letters,
                oldest_age_seconds=now - aged.oldest_at,
                first_deleted_at=aged.oldest_at + retention_seconds,
                archived=self._archive is not None,
            )
        )


class _Archiving:
    """Letters on their way from a queue into files."""

    def __init__(self, files: Files, letters: DeadLetterReader, bus: Bus, probe: Probe) -> None:
        self._files = files
        self._letters = letters
        self._bus = bus
        self._probe = probe
        self._ids: list[str] = []
        self._lines: list[bytes] = []
        self._bytes = 0
        self._first_at = 0.0

    def add(self, letter: DeadLetteredMessage) -> None:
        line = line_of(letter)
        if self._ids and (len(self._ids) >= FILE_LETTERS_MAX or self._bytes + len(line) > FILE_BYTES_MAX):
            self.flush()
        if not self._ids:
            self._first_at = letter.message.enqueued_at
        self._ids.append(letter.id)
        self._lines.append(line)
        self._bytes += len(line)

    def flush(self) -> None:
        """The file first, and durable; only then do its letters go."""
        if not self._ids:
            return
        data = b"".join(self._lines)
        day = time.strftime("%Y-%m-%d", time.gmtime(self._first_at))
        path = f"{listed_name(self._letters.queue)}/{day}/{hashlib.sha256(data).hexdigest()[:32]}.jsonl"
        with self._files.open_output(path) as file:
            file.write(data)
            self._probe(Step.LETTERS_WRITTEN)
        if self._files.is_local:
            self._files.make_durable([path])
        self._probe(Step.LETTERS_KEPT)
        self._letters.remove(self._ids)
        self._probe(Step.LETTERS_REMOVED)
        self._bus.emit(
            DeadLettersArchived(queue=self._letters.queue, letters=len(self._ids), file=f"{self._files.uri}/{path}")
        )
        self._ids, self._lines, self._bytes = [], [], 0


def ageing(queues: Sequence[str], host: ServiceContext) -> AbstractContextManager[object]:
    """Look after the letters of these queues, of whichever tier, until the block ends.

    Raises `UsageError` where the setting dead_letters_archive is no place for files.
    """
    settings = host.settings
    if not queues:
        return nullcontext()
    address = settings.dead_letters_archive
    duty = ExpiryWatch(
        list(dict.fromkeys(queues)),
        broker=host.broker,
        archive=None if address is None else files_at(address, settings.aws),
        warn_share=settings.dead_letters_warn_share,
        bus=host.bus,
        clock=host.clock,
        random=host.random,
        stop=host.stop,
        probe=host.probe,
    )
    return duty.beside()

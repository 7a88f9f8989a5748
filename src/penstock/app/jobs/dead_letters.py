"""Warn of dead letters that are about to expire, and archive them before the queue deletes them.

A background job beside a replayer. A message leaves its queue only once the file that holds it is durable. A file is
named by its content, so a repeated pass writes the same file again; if messages were added in between, one may be in
two files, which an import recognises. On SQS an inspection is a receive, so it happens only with an archive, about
forty times in the lifetime of a message per replaying process.
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

NAME = "dead letters"  # the job's name in events about failures
ARCHIVED_FROM_SHARE = 0.95  # age as a share of the retention; the last replay was due before
FILE_LETTERS_MAX, FILE_BYTES_MAX = 1_000, 8 * 1024 * 1024
TOLD_EVERY_SECONDS = 86_400.0  # while messages are about to expire
_REST_SHARE = 1 / 40  # of the retention: two passes between archiving age and expiry
_REST_SECONDS_MIN, _REST_SECONDS_MAX = 60.0, 3_600.0
_RECEIVED_REST_SECONDS_MIN, _RECEIVED_REST_SECONDS_MAX = 3_600.0, 86_400.0  # if an inspection counts as a receive
_AWAY_REST_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessages:
    """The old messages of a queue that are not archived yet. Times are epoch seconds."""

    letters: int
    oldest_at: float


class ExpiryWatch(PeriodicJob):
    """A background job that inspects the dead letters of these queues."""

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
        self._told_at: dict[str, float] = {}  # monotonic, by queue; used by the thread of the rounds

    def once(self) -> float:
        """Inspect each queue once; return the seconds until the next inspection is useful."""
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
            except Exception as error:  # broker or archive unavailable, or access denied: the next round retries
                self._failed(error, whose=queue)
                rest_seconds = min(rest_seconds, _AWAY_REST_SECONDS)
            else:
                self._succeeded(whose=queue)
        return max(rest_seconds, least)

    def _round(self) -> float:
        return self.once()

    def _rests(self) -> tuple[float, float]:
        """Return the minimum and maximum seconds between two inspections."""
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
    """Write dead-lettered messages of one queue to files and remove them from the queue."""

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
        """Write the file and make it durable, then remove its messages from the queue."""
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
    """Watch the dead letters of these queues, DLQ or final DLQ, inside the block.

    Raises `UsageError` if the setting dead_letters_archive is not a valid folder or prefix.
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

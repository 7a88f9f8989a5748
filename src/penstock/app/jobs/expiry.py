"""The job that warns of dead letters that are about to expire, and archives them before the queue deletes them.

It inspects the queues whose dead letters are replayed, and their final DLQs. A message leaves its queue only once the
file that holds it is durable. A file is named by its content, so a repeated pass writes the same file again; if
messages were added in between, one may be in two files, which an import recognises. On SQS an inspection is a receive,
so it happens only with an archive, about forty times in the lifetime of a message.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from penstock.app.jobs.elected import ElectedJob, JobTask, TaskRun, elected_job, is_overlong
from penstock.app.replayer import ReplayedQueue
from penstock.app.service import ServiceContext
from penstock.config import Settings
from penstock.dead_letters.jsonl import line_of
from penstock.dead_letters.reader import DeadLetteredMessage, DeadLetterReader, dead_letters_in
from penstock.events import Bus, DeadLettersArchived, DeadLettersExpiring
from penstock.messaging.broker import Broker, listed_name
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.storage.files import Files
from penstock.storage.roots import files_at

NAME = "expiry"
UNUSED_ARCHIVE = "expiring dead letters are archived only by workers with dead_letters.replay"
CLAIMED_AS = "penstock expiry"  # two holders do no harm: both write the same files
ARCHIVED_FROM_SHARE = 0.95  # age as a share of the retention; the last replay was due before
FILE_MESSAGES_MAX, FILE_BYTES_MAX = 1_000, 8 * 1024 * 1024
WARNED_EVERY_SECONDS = 86_400.0  # while messages are about to expire
_PAUSE_SHARE = 1 / 40  # of the retention: two passes between archiving age and expiry
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 60.0, 3_600.0
_RECEIVED_PAUSE_SECONDS_MIN, _RECEIVED_PAUSE_SECONDS_MAX = 3_600.0, 86_400.0  # if an inspection counts as a receive


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessages:
    """The old messages of a queue that are not archived yet. Times are epoch seconds."""

    dead_letters: int
    oldest_at: float


def is_archive_unused(settings: Settings) -> bool:
    """Return True if an archive of expiring dead letters is set, but nothing writes it: no worker watches the DLQs."""
    return settings.dead_letters_archive is not None and NAME in settings.jobs and not settings.dead_letters_replay


def expiry_job(
    dlqs: Sequence[ReplayedQueue], context: ServiceContext, *, app: str, address: str | None
) -> ElectedJob | None:
    """Return the job for these DLQs and their final DLQs; None without one.

    ``app`` and the broker's ``address`` tell apart queues of the same name if several apps share a ledger. Raises
    `UsageError` if the setting dead_letters.archive is not a valid folder or prefix.
    """
    queues = list(dict.fromkeys(queue for dlq in dlqs for queue in (dlq.queue, dlq.final_dlq)))
    if not queues:
        return None
    settings = context.settings
    archive = settings.dead_letters_archive
    watch = ExpiryWatch(
        broker=context.broker,
        archive=None if archive is None else files_at(archive, settings.aws),
        warn_share=settings.dead_letters_warn_share,
        bus=context.bus,
        clock=context.clock,
        probe=context.probe,
    )
    return elected_job(
        NAME,
        [
            JobTask(
                name=queue,
                run=partial(watch.inspect, queue),
                is_stuck=is_overlong,
                key=json.dumps([app, address, queue]),
                every_seconds=partial(period_seconds, context.broker, [queue]),
            )
            for queue in queues
        ],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=period_seconds(context.broker, queues),
    )


def period_seconds(broker: Broker, queues: Sequence[str]) -> float:
    """Return the seconds between two inspections, by the shortest retention of these queues."""
    retentions = [broker.retention_seconds(queue) for queue in queues]
    least, most = _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX
    if not broker.capabilities.browsable:
        least, most = _RECEIVED_PAUSE_SECONDS_MIN, _RECEIVED_PAUSE_SECONDS_MAX
    return max(min([most, *(seconds * _PAUSE_SHARE for seconds in retentions if seconds is not None)]), least)


class ExpiryWatch:
    """The inspection of queues for old dead letters. Used by one thread at a time."""

    def __init__(
        self,
        *,
        broker: Broker,
        archive: Files | None,
        warn_share: float,
        bus: Bus,
        clock: Clock,
        probe: Probe = no_probe,
    ) -> None:
        self._broker = broker
        self._archive = archive
        self._warn_share = warn_share
        self._bus = bus
        self._clock = clock
        self._probe = probe
        self._warned_at: dict[str, float] = {}  # monotonic, by queue

    def inspect(self, queue: str, task_run: TaskRun) -> None:
        """Inspect a queue once: warn of old messages, and archive those that are about to expire."""
        retention_seconds = self._broker.retention_seconds(queue)
        if retention_seconds is None:
            return
        if not self._broker.capabilities.browsable and (self._archive is None or not self._broker.stats(queue).visible):
            return
        now = self._clock.now()
        with dead_letters_in(self._broker, queue, clock=self._clock) as dead_letters:
            aged = self._find_aged(dead_letters, now, retention_seconds, task_run)
        if aged.dead_letters:
            self._warn(queue, aged, now, retention_seconds)
        else:
            self._warned_at.pop(queue, None)

    def _find_aged(
        self, dead_letters: DeadLetterReader, now: float, retention_seconds: float, task_run: TaskRun
    ) -> AgedMessages:
        archiving = None if self._archive is None else _Archiving(self._archive, dead_letters, self._bus, self._probe)
        count, oldest_at = 0, now
        for page in dead_letters.pages():
            for dead_letter in page:
                at = dead_letter.message.enqueued_at
                if now - at < self._warn_share * retention_seconds:
                    continue
                if archiving is not None and now - at >= ARCHIVED_FROM_SHARE * retention_seconds:
                    archiving.add(dead_letter)
                    continue
                count, oldest_at = count + 1, min(oldest_at, at)
            if task_run.is_over():
                break
        if archiving is not None:
            archiving.flush()
        return AgedMessages(dead_letters=count, oldest_at=oldest_at)

    def _warn(self, queue: str, aged: AgedMessages, now: float, retention_seconds: float) -> None:
        at = self._clock.monotonic()
        if at - self._warned_at.get(queue, float("-inf")) < WARNED_EVERY_SECONDS:
            return
        self._warned_at[queue] = at
        self._bus.emit(
            DeadLettersExpiring(
                queue=queue,
                count=aged.dead_letters,
                oldest_age_seconds=now - aged.oldest_at,
                first_deleted_at=aged.oldest_at + retention_seconds,
                archived=self._archive is not None,
            )
        )


class _Archiving:
    """Write dead-lettered messages of one queue to files and remove them from the queue."""

    def __init__(self, files: Files, dead_letters: DeadLetterReader, bus: Bus, probe: Probe) -> None:
        self._files = files
        self._dead_letters = dead_letters
        self._bus = bus
        self._probe = probe
        self._ids: list[str] = []
        self._lines: list[bytes] = []
        self._bytes = 0
        self._first_at = 0.0

    def add(self, dead_letter: DeadLetteredMessage) -> None:
        line = line_of(dead_letter)
        if self._ids and (len(self._ids) >= FILE_MESSAGES_MAX or self._bytes + len(line) > FILE_BYTES_MAX):
            self.flush()
        if not self._ids:
            self._first_at = dead_letter.message.enqueued_at
        self._ids.append(dead_letter.id)
        self._lines.append(line)
        self._bytes += len(line)

    def flush(self) -> None:
        """Write the file and make it durable, then remove its messages from the queue."""
        if not self._ids:
            return
        data = b"".join(self._lines)
        day = time.strftime("%Y-%m-%d", time.gmtime(self._first_at))
        path = f"{listed_name(self._dead_letters.queue)}/{day}/{hashlib.sha256(data).hexdigest()[:32]}.jsonl"
        with self._files.open_output(path) as file:
            file.write(data)
            self._probe(Step.DEAD_LETTERS_WRITTEN)
        if self._files.is_local:
            self._files.make_durable([path])
        self._probe(Step.DEAD_LETTERS_KEPT)
        self._dead_letters.remove(self._ids)
        self._probe(Step.DEAD_LETTERS_REMOVED)
        self._bus.emit(
            DeadLettersArchived(queue=self._dead_letters.queue, count=len(self._ids), file=f"{self._files.uri}/{path}")
        )
        self._ids, self._lines, self._bytes = [], [], 0

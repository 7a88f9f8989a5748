"""Read the health of queues, dead letters and pipelines: a dataclass for each, and the only function that reads it.

`penstock status`, `penstock queues`, `penstock doctor` and the monitor's gauges share them. Reading changes nothing and
never receives a message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.app.brokers import cloudwatch_of
from penstock.app.registry import SERVING, WorkerRecord
from penstock.config import Settings
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import AgeSource, Broker, QueueStats, listed_name, names_final_dlq
from penstock.messaging.clock import Clock, SystemClock

if TYPE_CHECKING:
    from penstock.brokers.sqs.cloudwatch import CloudWatch
    from penstock.ledger import Ledger
    from penstock.ledger.pipelines import Reconciliation
    from penstock.ledger.queries import ProcessedCount

HasSettled = Callable[[str, float], bool]  # a pipeline, and the age of the messages to look for: see `PipelineReader`
Tier = Literal["dlq", "dead"]  # DLQ, which may be replayed automatically; final DLQ, which waits for people

COUNT_SECONDS_MIN, COUNT_SECONDS_MAX = 600.0, 21_600.0  # between two full counts of processed objects
COUNT_REST_FACTOR = 1_000.0  # the time between two counts, as a multiple of the duration of one
RECOUNT_REST_FACTOR = 100.0  # the same if the count may be wrong: after a replacement, a retraction or a repair


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """The counts and ages of one queue.

    An age is None if it is unknown, the visible age also if no message is visible. Its source is the broker (exact),
    CloudWatch, or an estimate from the receives of this host's workers.
    """

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_visible_message_age_seconds: float | None
    oldest_visible_message_age_source: AgeSource
    oldest_message_age_seconds: float | None
    oldest_message_age_source: AgeSource

    @property
    def messages(self) -> int:
        """The number of all messages, including those in flight and delayed."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHealth:
    """One DLQ or final DLQ. ``queue`` is the queue it is reported under: its only source, or else its own name."""

    queue: str
    tier: Tier
    dead_letters: int
    oldest_age_seconds: float | None  # since the first of them was dead-lettered; 0 without any, None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineHealth:
    """One pipeline or object handler, as recorded in the ledger."""

    pipeline: str
    objects: Mapping[ObjectState, int]
    objects_overdue: int  # unprocessed for longer than allowed
    oldest_unprocessed_age_seconds: float | None  # None if no object waits
    batches_committed: int  # also the number of the last batch
    reconciled: "Reconciliation | None"  # the latest reconcile
    warned_objects: int = 0  # with too many bad lines, neither replayed nor dismissed
    warned_lines: int = 0  # the bad lines of these objects
    objects_missing: int = 0  # at the latest reconcile, without those whose messages have left the queue since

    @property
    def objects_left(self) -> int:
        """Return the number of objects that are not in a terminal state."""
        return sum(number for state, number in self.objects.items() if state not in TERMINAL)


def has_left(queue: QueueStats | QueueHealth, *, seconds: float) -> bool:
    """Return True if no message is left that was in the queue ``seconds`` before it was read. In doubt, False."""
    if not queue.messages:
        return True
    is_exact = isinstance(queue, QueueStats) or queue.oldest_message_age_source == "exact"
    age_seconds = queue.oldest_message_age_seconds if is_exact else None  # CloudWatch's is minutes old
    return age_seconds is not None and age_seconds < seconds


class AgeReader:
    """Read the ages of one broker's queues.

    For one thread. Keep the instance between reads: it remembers empty queues.
    """

    def __init__(self, broker: Broker, *, clock: Clock | None = None, cloudwatch: "CloudWatch | None" = None) -> None:
        self.cloudwatch = cloudwatch
        self._exact = broker.capabilities.exact_stats
        self._clock = clock or SystemClock()
        self._empty: dict[str, AgeEstimate] = {}  # when a read found nothing visible, by queue

    @property
    def oldest_source(self) -> AgeSource:
        """The source of the oldest message's age."""
        return "exact" if self._exact else "cloudwatch"

    @property
    def oldest_visible_source(self) -> AgeSource:
        """The source of the oldest visible message's age."""
        return "exact" if self._exact else "estimated"

    def query(self, queues: Sequence[str]) -> Mapping[str, float]:
        """Return CloudWatch's ages of these queues; empty without CloudWatch.

        Raises as `CloudWatch.oldest_ages` does.
        """
        return {} if self.cloudwatch is None or not queues else self.cloudwatch.oldest_ages(queues)

    def oldest_seconds(self, queue: str, stats: QueueStats, cloudwatch_ages: Mapping[str, float]) -> float | None:
        """Return the age of the oldest message. ``cloudwatch_ages`` is the result of `query`."""
        return stats.oldest_message_age_seconds if self._exact else cloudwatch_ages.get(queue)

    def oldest_visible_seconds(self, queue: str, stats: QueueStats, workers: Iterable[WorkerRecord]) -> float | None:
        """Return the age of the oldest visible message; None if none is visible.

        ``workers`` are those of this host, which may have received from the queue.
        """
        if self._exact:
            return stats.oldest_visible_message_age_seconds
        now = self._clock.now()
        if stats.visible == 0:
            self._empty[queue] = AgeEstimate(empty_at=now)
            return None
        # A draining worker's receives are outdated: it does not know which messages others have received since.
        seen = [record.seen[queue] for record in workers if record.state == SERVING and queue in record.seen]
        estimate = AgeEstimate.merged([*seen, self._empty.get(queue, AgeEstimate())])
        return estimate.visible_age_seconds(now, visible=stats.visible)

    def dead_letter_seconds(self, queue: str, stats: QueueStats, cloudwatch_ages: Mapping[str, float]) -> float | None:
        """Return the age of the oldest message of a DLQ. Replays that release it do not restart it."""
        return stats.oldest_enqueued_age_seconds if self._exact else cloudwatch_ages.get(queue)

    def close(self) -> None:
        """Close the connection to CloudWatch."""
        if self.cloudwatch is not None:
            self.cloudwatch.close()


def ages_of(settings: Settings, broker: Broker, *, clock: Clock | None = None) -> AgeReader:
    """Return a reader, with CloudWatch if the broker cannot report ages itself; each of its queries is billed.

    Raises `ConfigurationError`.
    """
    clock = clock or SystemClock()
    cloudwatch = None if broker.capabilities.exact_stats else cloudwatch_of(settings, clock=clock)
    return AgeReader(broker, clock=clock, cloudwatch=cloudwatch)


def read_queue(
    broker: Broker,
    queue: str,
    ages: AgeReader,
    *,
    cloudwatch_ages: Mapping[str, float],
    workers: Iterable[WorkerRecord],
) -> QueueHealth:
    """Read the health of one queue. See `AgeReader` for the ages and workers."""
    stats = broker.stats(queue)
    return QueueHealth(
        queue=queue,
        visible=stats.visible,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        oldest_visible_message_age_seconds=ages.oldest_visible_seconds(queue, stats, workers),
        oldest_visible_message_age_source=ages.oldest_visible_source,
        oldest_message_age_seconds=ages.oldest_seconds(queue, stats, cloudwatch_ages),
        oldest_message_age_source=ages.oldest_source,
    )


def dead_letter_queues(broker: Broker, queue: str) -> tuple[str, str]:
    """Return the DLQ of a queue, which may be replayed automatically, and its final DLQ, which waits for people."""
    first = broker.dead_letter_queue(queue)
    return first, broker.dead_letter_queue(first)


def tier_by_dlq(broker: Broker, queue: str) -> Mapping[str, Tier]:
    """Return the DLQ and the final DLQ of a queue with their tiers. A DLQ that is its own final DLQ appears once."""
    first, final = dead_letter_queues(broker, queue)
    if first == final or names_final_dlq(listed_name(first)):
        return {first: "dead"}
    return {first: "dlq", final: "dead"}


def read_dead_letters(
    broker: Broker,
    name: str,
    ages: AgeReader,
    *,
    queue: str,
    tier: Tier,
    cloudwatch_ages: Mapping[str, float],
) -> DeadLetterHealth:
    """Read the health of the DLQ with this name, to be reported under ``queue``."""
    stats = broker.stats(name)
    return DeadLetterHealth(
        queue=queue,
        tier=tier,
        dead_letters=stats.messages,
        oldest_age_seconds=ages.dead_letter_seconds(name, stats, cloudwatch_ages) if stats.messages else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownCount:
    """A count of processed objects, and when to count them again (monotonic)."""

    count: "ProcessedCount"
    due_at: float
    due_at_if_inexact: float


class PipelineReader:
    """Read the health of pipelines. For one thread.

    Keep the instance between reads: nearly all objects are processed ones, so they are counted rarely, and the count is
    updated from new batches in between. Counting takes at most a hundredth of the time, however many objects there are:
    where batches replace objects, the count of a large ledger is too high for a while. It also remembers that the
    messages of a reconcile have left their queue.
    """

    def __init__(self, *, overdue_after_seconds: float, clock: Clock) -> None:
        self._overdue_after_seconds = overdue_after_seconds
        self._clock = clock
        self._counts: dict[str, _KnownCount] = {}  # by pipeline
        self._settled: dict[str, float] = {}  # by pipeline: the end of the reconcile whose messages left the queue

    def read(self, ledger: "Ledger", pipelines: Sequence[str], *, has_settled: HasSettled) -> Sequence[PipelineHealth]:
        """Return the health of these pipelines. Raises `TemporaryError` if the ledger is unavailable.

        ``has_settled`` returns True if no message is left in the queue of a pipeline that was there that many seconds
        ago. In doubt, False.
        """
        reconciled = {reconciliation.pipeline: reconciliation for reconciliation in ledger.reconciliations()}
        return [self._read(ledger, pipeline, reconciled.get(pipeline), has_settled) for pipeline in pipelines]

    def count_anew(self) -> None:
        """Count the processed objects again soon: a repair of the ledger may have invalidated the counts."""
        self._counts = {
            pipeline: replace(known, count=replace(known.count, is_exact=False))
            for pipeline, known in self._counts.items()
        }

    def _read(
        self, ledger: "Ledger", pipeline: str, reconciled: "Reconciliation | None", has_settled: HasSettled
    ) -> PipelineHealth:
        unprocessed = ledger.ages.waiting(pipeline, overdue_after_seconds=self._overdue_after_seconds)
        objects = {
            state: self._count_processed(ledger, pipeline)
            if state is ObjectState.PROCESSED
            else unprocessed.objects.get(state, 0)
            for state in ObjectState
        }
        warning = ledger.quarantines.warning(pipeline)
        waits = any(number for state, number in objects.items() if state not in TERMINAL)
        return PipelineHealth(
            pipeline=pipeline,
            objects=objects,
            objects_overdue=unprocessed.overdue,
            oldest_unprocessed_age_seconds=unprocessed.oldest_age_seconds if waits else None,
            batches_committed=unprocessed.committed_seq,
            reconciled=reconciled,
            warned_objects=warning.objects,
            warned_lines=warning.lines,
            objects_missing=0 if reconciled is None else self._missing(ledger, reconciled, has_settled),
        )

    def _missing(self, ledger: "Ledger", last: "Reconciliation", has_settled: HasSettled) -> int:
        """Return the objects that the latest reconcile found missing.

        Without those it sent, once their messages have left the queue: their result shows in their states.
        """
        if not (last.missing and last.sent):
            return last.missing
        if self._settled.get(last.pipeline) != last.finished_at:
            seconds = ledger.seconds_since_reconciliation(last.pipeline)
            if seconds is None or not has_settled(last.pipeline, seconds):
                return last.missing
            self._settled[last.pipeline] = last.finished_at
        return max(0, last.missing - last.sent)

    def _count_processed(self, ledger: "Ledger", pipeline: str) -> int:
        now = self._clock.monotonic()
        known = self._counts.get(pipeline)
        if known is not None and now < known.due_at:
            count = ledger.ages.updated_count(pipeline, known.count)
            if count.is_exact or now < known.due_at_if_inexact:
                self._counts[pipeline] = replace(known, count=count)
                return count.processed
        count = ledger.ages.processed_count(pipeline)
        took_seconds = self._clock.monotonic() - now
        rest_seconds = min(max(COUNT_REST_FACTOR * took_seconds, COUNT_SECONDS_MIN), COUNT_SECONDS_MAX)
        self._counts[pipeline] = _KnownCount(
            count=count, due_at=now + rest_seconds, due_at_if_inexact=now + RECOUNT_REST_FACTOR * took_seconds
        )
        return count.processed

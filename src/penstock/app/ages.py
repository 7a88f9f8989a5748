"""How old the messages of queues are, and who says so: the broker, CloudWatch, or an estimate of what workers saw."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.registry import SERVING, WorkerRecord
from penstock.app.sqs_address import aws_of, is_sqs
from penstock.config import Settings
from penstock.messaging.broker import AgeSource, Broker, QueueStats
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.estimate import Estimate

if TYPE_CHECKING:
    from penstock.brokers.sqs.cloudwatch import CloudWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAges:
    """Of one queue. Ages are None where nobody can tell; the visible one also where nothing is visible."""

    oldest_seconds: float | None
    oldest_visible_seconds: float | None


class Ages:
    """The ages of one broker's queues. For one thread; who looks again and again keeps it."""

    def __init__(self, broker: Broker, *, clock: Clock | None = None, cloudwatch: "CloudWatch | None" = None) -> None:
        self.cloudwatch = cloudwatch
        self._exact = broker.capabilities.exact_stats
        self._clock = clock or SystemClock()
        self._empty: dict[str, Estimate] = {}  # when nothing was visible at a look of ours, by queue

    @property
    def oldest_source(self) -> AgeSource:
        """Who tells the age of the oldest message."""
        return "exact" if self._exact else "cloudwatch"

    @property
    def oldest_visible_source(self) -> AgeSource:
        """The same of the oldest visible one."""
        return "exact" if self._exact else "estimated"

    def asked(self, queues: Sequence[str]) -> Mapping[str, float]:
        """What CloudWatch says of these; nothing where it is not asked. Raises as `CloudWatch.oldest_ages` does."""
        return {} if self.cloudwatch is None or not queues else self.cloudwatch.oldest_ages(queues)

    def of(
        self, queue: str, stats: QueueStats, *, told: Mapping[str, float], workers: Iterable[WorkerRecord]
    ) -> QueueAges:
        """Of a queue that stands like this. ``told``: what `asked` answered; ``workers`` of this host, which may have
        received from it."""
        if self._exact:
            return QueueAges(
                oldest_seconds=stats.oldest_message_age_seconds,
                oldest_visible_seconds=stats.oldest_visible_message_age_seconds,
            )
        return QueueAges(
            oldest_seconds=told.get(queue), oldest_visible_seconds=self._estimated(queue, stats.visible, workers)
        )

    def close(self) -> None:
        """Give back connections."""
        if self.cloudwatch is not None:
            self.cloudwatch.close()

    def _estimated(self, queue: str, visible: int, workers: Iterable[WorkerRecord]) -> float | None:
        now = self._clock.now()
        if visible == 0:
            self._empty[queue] = Estimate(empty_at=now)
            return None
        # One that drains saw the queue's head long ago, and what others took since it does not know.
        seen = [each.seen[queue] for each in workers if each.state == SERVING and queue in each.seen]
        estimate = Estimate.merged([*seen, self._empty.get(queue, Estimate())])
        return estimate.visible_age_seconds(now, visible=visible)


def ages_of(settings: Settings, broker: Broker, *, clock: Clock | None = None) -> Ages:
    """With CloudWatch, where the broker is SQS: each look at it costs something. Raises `ConfigurationError`."""
    clock = clock or SystemClock()
    if broker.capabilities.exact_stats or not is_sqs(settings.broker):
        return Ages(broker, clock=clock)
    from penstock.brokers.sqs.cloudwatch import CloudWatch

    return Ages(broker, clock=clock, cloudwatch=CloudWatch(aws_of(settings.broker, settings.aws), clock=clock))

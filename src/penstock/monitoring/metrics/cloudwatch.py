"""Metrics sent to CloudWatch itself, for processes whose log does not go there.

What could not be sent waits for the next time, as much as a few calls hold; beyond that the oldest is given up. A call
whose answer got lost is sent again, and then counted twice.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ConfigurationError
from penstock.messaging.clock import Clock
from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Reading
from penstock.monitoring.metrics.points import Point, points

DATA_MAX = 1_000  # in one call, as CloudWatch says
VALUES_MAX = 150  # of one metric in a call, likewise
CALLS_MAX = 20  # that wait


class CloudWatchOutlet:
    """``client`` makes boto3's client when it is needed first. Tries again as boto3 does, before anything waits."""

    name = "cloudwatch"

    def __init__(
        self, client: Callable[[], Any], *, namespace: str, catalogue: Mapping[str, Metric], clock: Clock
    ) -> None:
        self._make_client = client
        self._client: Any = None  # this and the next: the exporter's thread's alone
        self._waiting: deque[Sequence[Mapping[str, Any]]] = deque(maxlen=CALLS_MAX)  # the oldest call first
        self._namespace = namespace
        self._catalogue = catalogue
        self._clock = clock

    def export(self, fresh: Reading) -> None:
        at = datetime.fromtimestamp(self._clock.now(), UTC)
        data = [_datum(point, at) for point in points(fresh, self._catalogue)]
        self._waiting.extend(data[first : first + DATA_MAX] for first in range(0, len(data), DATA_MAX))
        if self._waiting and self._client is None:
            self._client = self._make_client()
        while self._waiting:
            self._client.put_metric_data(Namespace=self._namespace, MetricData=self._waiting[0])
            self._waiting.popleft()


def require_boto3() -> None:
    """Raises `ConfigurationError` where it is missing."""
    try:
        import boto3  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ConfigurationError(
            "The setting metrics_export names cloudwatch, which needs the package boto3; `pip install 'penstock[aws]'` "
            "installs it."
        ) from error


def _datum(point: Point, at: datetime) -> Mapping[str, Any]:
    return {
        "MetricName": point.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in point.dimensions],
        "Timestamp": at,
        "Values": list(point.values[:VALUES_MAX]),
        "Counts": [float(count) for count in point.counts[:VALUES_MAX]],
        "Unit": point.unit,
    }

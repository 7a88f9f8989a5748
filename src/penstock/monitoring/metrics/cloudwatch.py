"""Export metrics to CloudWatch: by API calls, or as log lines in the embedded metric format (EMF).

`CloudWatchDestination` is for processes whose log does not go to CloudWatch Logs. Data that could not be sent wait for
the next export, up to `CALLS_MAX` calls; beyond that the oldest are dropped. A call whose response is lost is sent
again and counts twice.

`EmfDestination` writes log lines that CloudWatch Logs turns into metrics. On ECS and Lambda it receives a process's
output anyway, so this needs no permission and no call. Format and limits: "Specification: Embedded metric format" in
the CloudWatch user guide. CloudWatch silently drops a document that violates them. Dimensions are a metric's labels, so
they are few; a test checks the catalogue.

Both send `Point`s. In CloudWatch each combination of dimensions is a separately priced metric. So the worker
label is not a dimension: the values of all workers are combined there. A histogram's values are sent as the middles of
their buckets, with counts.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.errors import ConfigurationError
from penstock.messaging.clock import Clock
from penstock.monitoring.logs.lines import LineWriter
from penstock.monitoring.metrics.catalogue import PREFIX, Metric
from penstock.monitoring.metrics.meters import Distribution, Labels, Reading

NO_DIMENSIONS = frozenset({"worker"})
VALUE_CHARACTERS_MAX = 1_024  # of a dimension

CloudWatchUnit = Literal["Count", "Seconds", "Bytes"]
Dimensions = tuple[tuple[str, str], ...]

_UNITS: Mapping[str, CloudWatchUnit] = {"seconds": "Seconds", "bytes": "Bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One metric under its dimensions: the distinct values and their counts. ``sum`` is exact."""

    name: str
    unit: CloudWatchUnit
    dimensions: Dimensions
    values: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


def points(fresh: Reading, catalogue: Mapping[str, Metric]) -> Iterator[Point]:
    """Yield the points to send for these changes."""
    for name, series in fresh.values.items():
        gathered: dict[Dimensions, list[float]] = {}
        for labels, value in series.items():
            gathered.setdefault(_dimensions(catalogue[name], labels), []).append(value)
        for dimensions, values in gathered.items():
            yield _point(catalogue[name], dimensions, values, [1] * len(values), sum(values))
    for name, distributions in fresh.distributions.items():
        merged: dict[Dimensions, Distribution] = {}
        for labels, seen in distributions.items():
            dimensions = _dimensions(catalogue[name], labels)
            merged[dimensions] = _merged(merged.get(dimensions), seen)
        for dimensions, seen in merged.items():
            yield _point(catalogue[name], dimensions, *_spread(seen, catalogue[name].bounds), seen.sum)


def _point(
    metric: Metric, dimensions: Dimensions, values: Sequence[float], counts: Sequence[int], sum_: float
) -> Point:
    return Point(
        name=PREFIX + metric.name,
        unit=_UNITS.get(metric.unit, "Count"),
        dimensions=dimensions,
        values=tuple(values),
        counts=tuple(counts),
        sum=sum_,
    )


def _dimensions(metric: Metric, labels: Labels) -> Dimensions:
    """Return the dimensions without empty ones, which CloudWatch rejects, and in printable ASCII, as it requires."""
    pairs = zip(metric.labels, labels, strict=True)
    return tuple((name, _plain(value)) for name, value in pairs if name not in NO_DIMENSIONS and value.strip())


def _plain(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        value = value.encode("unicode_escape").decode("ascii")
    return value[:VALUE_CHARACTERS_MAX]


def _merged(distribution: Distribution | None, other: Distribution) -> Distribution:
    if distribution is None:
        return other
    counts = tuple(a + b for a, b in zip(distribution.counts, other.counts, strict=True))
    return Distribution(counts=counts, sum=distribution.sum + other.sum)


def _spread(seen: Distribution, bounds: tuple[float, ...]) -> tuple[Sequence[float], Sequence[int]]:
    """Return the values and their counts. A single value is known exactly."""
    if seen.count == 1:
        return [seen.sum], [1]
    kept = [(middle, count) for middle, count in zip(_middles(bounds), seen.counts, strict=True) if count]
    return [middle for middle, _ in kept], [count for _, count in kept]


def _middles(bounds: tuple[float, ...]) -> Sequence[float]:
    """Return the middle of each bucket; for the last, which has no upper bound, its lower bound."""
    inner = [(below + above) / 2 for below, above in zip((0.0, *bounds), bounds, strict=False)]
    return [*inner, bounds[-1]]


DATA_MAX = 1_000  # of one call: CloudWatch's limit
VALUES_MAX = 150  # of one metric in a call: CloudWatch's limit
CALLS_MAX = 20  # waiting calls


class CloudWatchDestination:
    """The destination that sends metrics with put_metric_data, which boto3 retries. Used by the exporter's thread.

    ``client`` returns boto3's client; it is called on first use.
    """

    name = "cloudwatch"

    def __init__(
        self, client: Callable[[], Any], *, namespace: str, catalogue: Mapping[str, Metric], clock: Clock
    ) -> None:
        self._make_client = client
        self._client: Any = None  # this and _waiting: used only by the exporter's thread
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
    """Raise `ConfigurationError` if boto3 is missing."""
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


METRICS_MAX = 100  # metrics of a document
EMF_VALUES_MAX = 100  # values of a metric in a document
DOCUMENT_BYTES_MAX = 256 * 1024  # the size of a log event


class EmfDestination:
    """The destination that writes a line to the log for each combination of dimensions with changes.

    Used by the exporter's thread.
    """

    name = "emf"

    def __init__(
        self,
        writer: LineWriter,
        *,
        namespace: str,
        properties: Mapping[str, str],
        catalogue: Mapping[str, Metric],
        clock: Clock,
    ) -> None:
        """``properties`` are on every line, for searching. They are not dimensions, so they cost nothing."""
        self._writer = writer
        self._namespace = namespace
        self._properties = dict(properties)
        self._catalogue = catalogue
        self._clock = clock

    def export(self, fresh: Reading) -> None:
        """Write the changes. Raises `OSError` if the stream refuses a line."""
        by_dimensions: dict[Dimensions, list[Point]] = {}
        for point in points(fresh, self._catalogue):
            by_dimensions.setdefault(point.dimensions, []).append(point)
        at_milliseconds = round(self._clock.now() * 1_000)
        dropped = self._writer.dropped
        for dimensions, found in by_dimensions.items():
            for first in range(0, len(found), METRICS_MAX):
                for document in self._documents(dimensions, found[first : first + METRICS_MAX], at_milliseconds):
                    self._writer.write(document)
        if self._writer.dropped > dropped:
            raise OSError("the stream of the log did not take it")

    def _documents(self, dimensions: Dimensions, found: Sequence[Point], at_milliseconds: int) -> Iterator[str]:
        """Yield one document, or several if one would be too large for a log event."""
        line = json.dumps(self._document(dimensions, found, at_milliseconds), separators=(",", ":"), allow_nan=False)
        if len(line) <= DOCUMENT_BYTES_MAX or len(found) == 1:  # the line is ASCII
            yield line
            return
        half = len(found) // 2
        yield from self._documents(dimensions, found[:half], at_milliseconds)
        yield from self._documents(dimensions, found[half:], at_milliseconds)

    def _document(self, dimensions: Dimensions, found: Sequence[Point], at_milliseconds: int) -> Mapping[str, Any]:
        directive = {
            "Dimensions": [[name for name, _ in dimensions]],
            "Metrics": [{"Name": point.name, "Unit": point.unit} for point in found],
            "Namespace": self._namespace,
        }
        return {
            **dict(dimensions),
            **self._properties,
            "_aws": {"Timestamp": at_milliseconds, "CloudWatchMetrics": [directive]},
            **{point.name: _value(point) for point in found},
        }


def _value(point: Point) -> float | Mapping[str, Any]:
    """Return a single value as it is, and several as a statistic set with counts.

    The specification shows lists of values. CloudWatch also accepts this form: the OpenTelemetry Collector's EMF
    exporter writes it. With lists, 10,000 calls a minute would take a hundred lines.
    """
    if point.counts == (1,):
        return point.sum
    return {
        "Values": list(point.values[:EMF_VALUES_MAX]),
        "Counts": list(point.counts[:EMF_VALUES_MAX]),
        "Min": min(point.values),
        "Max": max(point.values),
        "Count": point.count,
        "Sum": point.sum,
    }

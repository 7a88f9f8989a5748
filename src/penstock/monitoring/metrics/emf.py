"""Metrics as lines of the log that CloudWatch Logs makes metrics of: its embedded metric format.

On ECS and Lambda what a process writes is in CloudWatch Logs anyway, so this needs no permission and no call. The
documents are made by aws-embedded-metrics; its sinks and its agent are not used.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ConfigurationError
from penstock.messaging.clock import Clock
from penstock.monitoring.lines import LineWriter
from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Reading
from penstock.monitoring.metrics.points import Dimensions, Point, points

try:
    from aws_embedded_metrics.logger.metrics_context import MetricsContext
    from aws_embedded_metrics.serializers.log_serializer import LogSerializer
except ImportError as error:
    raise ConfigurationError(
        "The setting metrics_export names emf, which needs the package aws-embedded-metrics; "
        "`pip install 'penstock[emf]'` installs it."
    ) from error

VALUES_MAX = 100  # of one metric in a document, as CloudWatch says


class EmfOutlet:
    """Writes a line for each combination of dimensions that something happened to."""

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
        """``properties`` are on every line, to search for, and no dimensions: they cost nothing."""
        self._writer = writer
        self._namespace = namespace
        self._properties = dict(properties)
        self._catalogue = catalogue
        self._clock = clock

    def export(self, fresh: Reading) -> None:
        by_dimensions: dict[Dimensions, list[Point]] = {}
        for point in points(fresh, self._catalogue):
            by_dimensions.setdefault(point.dimensions, []).append(point)
        at = datetime.fromtimestamp(self._clock.now(), UTC)
        dropped = self._writer.dropped
        for dimensions, found in by_dimensions.items():
            for document in self._documents(dimensions, found, at):
                self._writer.write(document)
        if self._writer.dropped > dropped:
            raise OSError("the stream of the log did not take it")

    def _documents(self, dimensions: Dimensions, found: Sequence[Point], at: datetime) -> Sequence[str]:
        context = MetricsContext(namespace=self._namespace, properties=dict(self._properties))
        context.set_timestamp(at)
        context.set_dimensions([dict(dimensions)])
        for point in found:
            context.put_metric(point.name, point.sum, point.unit)
            if point.counts != (1,):
                told: Any = _told(point)  # the library knows of numbers alone, and passes on what it is given
                context.metrics[point.name].values = [told]
        documents: Sequence[str] = LogSerializer.serialize(context)
        return [json.dumps(json.loads(document), separators=(",", ":")) for document in documents]


def _told(point: Point) -> Mapping[str, Any]:
    """Many values in one, as CloudWatch takes them here too: with their counts."""
    return {
        "Values": list(point.values[:VALUES_MAX]),
        "Counts": list(point.counts[:VALUES_MAX]),
        "Min": min(point.values),
        "Max": max(point.values),
        "Count": point.count,
        "Sum": point.sum,
    }

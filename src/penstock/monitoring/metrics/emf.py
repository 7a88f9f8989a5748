"""Metrics as log lines that CloudWatch Logs turns into metrics: the embedded metric format (EMF).

On ECS and Lambda, CloudWatch Logs receives a process's output anyway, so this needs no permission and no call.
Format and limits: "Specification: Embedded metric format" in the CloudWatch user guide. CloudWatch drops a document
that breaks them without an error. Dimensions are a metric's labels, so they are few; a test checks the catalogue.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.messaging.clock import Clock
from penstock.monitoring.lines import LineWriter
from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Reading
from penstock.monitoring.metrics.points import Dimensions, Point, points

METRICS_MAX = 100  # metrics of a document
VALUES_MAX = 100  # values of a metric in a document
DOCUMENT_BYTES_MAX = 256 * 1024  # the size of a log event


class EmfOutlet:
    """Write a line for each combination of dimensions that has changes."""

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
        """``properties`` are on every line, to search for. They are no dimensions, so they cost nothing."""
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
        """Yield one document, or several where one would be too large for a log event."""
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

    The specification shows lists of values. CloudWatch accepts this form too: the OpenTelemetry Collector's EMF
    exporter writes it. With lists, 10,000 calls a minute would be a hundred lines.
    """
    if point.counts == (1,):
        return point.sum
    return {
        "Values": list(point.values[:VALUES_MAX]),
        "Counts": list(point.counts[:VALUES_MAX]),
        "Min": min(point.values),
        "Max": max(point.values),
        "Count": point.count,
        "Sum": point.sum,
    }

"""EMF documents follow the published format.

The limits are those of "Specification: Embedded metric format" in the CloudWatch user guide (JSON schema of the
directive: 1 to 100 metrics, at most 30 dimensions of a set, names of 1 to 250 characters for dimensions and 1 to 1,024
for metrics and namespaces; a log event has at most 256 KiB). They are repeated here, so that the code cannot change
both.
"""

import io
import json
from typing import Any

import pytest

from penstock.messaging.clock import SystemClock
from penstock.monitoring.logs.lines import LineWriter
from penstock.monitoring.metrics.catalogue import METRICS, PREFIX, Metric
from penstock.monitoring.metrics.cloudwatch import EmfDestination
from penstock.monitoring.metrics.meters import Meters, Reading

AT_SECONDS = 1_764_000_000.1234
UNITS = {"Count", "Seconds", "Bytes"}  # of the 27 that CloudWatch knows


class FixedClock(SystemClock):
    def now(self) -> float:
        return AT_SECONDS


def lines_of(reading: Reading, catalogue: dict[str, Metric] | None = None) -> list[str]:
    stream = io.StringIO()
    EmfDestination(
        LineWriter(stream),
        namespace="Shop",
        properties={"service": "shop", "worker": "w1"},
        catalogue=catalogue or METRICS,
        clock=FixedClock(),
    ).export(reading)
    return stream.getvalue().splitlines()


def test_a_document_is_written_exactly() -> None:
    meters = Meters()
    meters.count("messages_received_total", ("orders",), 3)
    for seconds in (0.02, 90.0):
        meters.observe("handler_duration_seconds", ("orders", "h", "finished"), seconds)
    assert lines_of(meters.read()) == [
        (
            '{"queue":"orders","service":"shop","worker":"w1","_aws":{"Timestamp":1764000000123,"CloudWatchMetrics":'
            '[{"Dimensions":[["queue"]],"Metrics":[{"Name":"penstock_messages_received_total","Unit":"Count"}],'
            '"Namespace":"Shop"}]},"penstock_messages_received_total":3.0}'
        ),
        (
            '{"queue":"orders","handler":"h","outcome":"finished","service":"shop","worker":"w1","_aws":{"Timestamp":'
            '1764000000123,"CloudWatchMetrics":[{"Dimensions":[["queue","handler","outcome"]],"Metrics":'
            '[{"Name":"penstock_handler_duration_seconds","Unit":"Seconds"}],"Namespace":"Shop"}]},'
            '"penstock_handler_duration_seconds":{"Values":[0.0175,90.0],"Counts":[1,1],"Min":0.0175,"Max":90.0,'
            '"Count":2,"Sum":90.02}}'
        ),
    ]


def full_reading() -> Reading:
    """Return a reading in which every metric has two series."""
    meters = Meters()
    for name, metric in METRICS.items():
        for index in (0, -1):
            labels = tuple(
                metric.values.get(label, (f"one {label}", f"zwölf\n{label}"))[index] for label in metric.labels
            )
            if metric.kind == "histogram":
                for seconds in (0.02, 0.3, 7.5, 1e6):
                    meters.observe(name, labels, seconds)
            elif metric.kind == "counter":
                meters.count(name, labels, 3)
            else:
                meters.replace(name, {labels: 2.5})
    return meters.read()


def test_every_metric_is_written_as_a_valid_document() -> None:
    documents = lines_of(full_reading())
    for line in documents:
        check(line)
    names = {entry["Name"] for line in documents for entry in directive_of(json.loads(line))["Metrics"]}
    assert names == {PREFIX + name for name in METRICS}


def directive_of(document: dict[str, Any]) -> dict[str, Any]:
    [directive] = document["_aws"]["CloudWatchMetrics"]
    assert isinstance(directive, dict)
    return directive


def check(line: str) -> None:
    """Compare a line with the published schema."""
    assert line.isascii()
    assert len(line) <= 256 * 1024
    document = json.loads(line, parse_constant=pytest.fail)
    assert set(document["_aws"]) == {"Timestamp", "CloudWatchMetrics"}
    assert document["_aws"]["Timestamp"] == 1_764_000_000_123
    directive = directive_of(document)
    assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
    assert 1 <= len(directive["Namespace"]) <= 1_024
    [dimensions] = directive["Dimensions"]
    assert len(dimensions) <= 30
    for name in dimensions:
        assert 1 <= len(name) <= 250
        assert not name.startswith(":")
        assert 1 <= len(document[name].strip()) <= 1_024
        assert document[name].isprintable()
    assert 1 <= len(directive["Metrics"]) <= 100
    for entry in directive["Metrics"]:
        assert set(entry) == {"Name", "Unit"}
        assert 1 <= len(entry["Name"]) <= 1_024
        assert entry["Unit"] in UNITS
        value = document[entry["Name"]]
        if not isinstance(value, int | float):
            assert 1 <= len(value["Values"]) == len(value["Counts"]) <= 100


def gauges(count: int, name: str = "gauge_{}") -> dict[str, Metric]:
    names = [name.format(number) for number in range(count)]
    return {name: Metric(name=name, kind="gauge", labels=("worker",), help="") for name in names}


@pytest.mark.parametrize(("metrics", "documents"), [(1, 1), (100, 1), (101, 2), (250, 3)])
def test_a_document_has_at_most_a_hundred_metrics(metrics: int, documents: int) -> None:
    catalogue = gauges(metrics)
    lines = lines_of(Reading(values={name: {("w1",): 1.0} for name in catalogue}, distributions={}), catalogue)
    for line in lines:
        check(line)
    assert len(lines) == documents
    names = [entry["Name"] for line in lines for entry in directive_of(json.loads(line))["Metrics"]]
    assert names == [PREFIX + name for name in catalogue]


def test_a_document_that_is_too_large_for_a_log_event_is_split() -> None:
    catalogue = gauges(100, "long_name_" * 90 + "{}")
    series: dict[tuple[str, ...], float] = {(f"w{number}",): number * 1e99 / 7 for number in range(150)}
    lines = lines_of(Reading(values=dict.fromkeys(catalogue, series), distributions={}), catalogue)
    for line in lines:
        check(line)
    assert len(lines) > 1
    names = [entry["Name"] for line in lines for entry in directive_of(json.loads(line))["Metrics"]]
    assert names == [PREFIX + name for name in catalogue]
    value = json.loads(lines[0])[PREFIX + next(iter(catalogue))]
    assert len(value["Values"]) == len(value["Counts"]) == 100


def test_a_nan_value_raises() -> None:
    catalogue = gauges(1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines_of(Reading(values={name: {("w1",): float("nan")} for name in catalogue}, distributions={}), catalogue)

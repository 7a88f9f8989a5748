"""Check the metrics, labels and label values in PromQL expressions against the catalogue.

promtool checks the syntax of expressions, but it cannot know which names exist.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.tools import run

from penstock.monitoring.metrics.catalogue import METRICS, PREFIX, Metric

# Labels that the scrape adds, and those by which the rules distinguish deployments.
OF_THE_SCRAPE = frozenset({"job", "instance", "cluster", "namespace", "environment"})
HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
# Metrics of Prometheus itself and of prometheus_client.
NOT_OURS = frozenset({"up", "process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"})

_SELECTOR = re.compile(rf"(?<![\w:])(?P<name>{PREFIX}\w+|process_\w+|up)\b(?!\()(?:\{{(?P<matchers>[^}}]*)\}})?")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<operator>=~|!~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A metric in an expression. ``matchers``: label, operator, value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def ask(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool. Skip the test if it is missing, which fails in CI."""
    return run("promtool", *arguments)


def selectors(expression: str) -> Iterator[Selector]:
    for found in _SELECTOR.finditer(_without_groupings(expression)):
        matchers = _MATCHER.finditer(found["matchers"] or "")
        yield Selector(
            name=found["name"], matchers=tuple((one["label"], one["operator"], one["value"]) for one in matchers)
        )


def problems(expression: str) -> Sequence[str]:
    """Return the metrics, labels and label values of the expression that do not exist, as sentences."""
    found: list[str] = []
    known: set[str] = set(OF_THE_SCRAPE)
    for selector in selectors(expression):
        if selector.name in NOT_OURS:
            continue
        metric = metric_of(selector.name)
        if metric is None:
            found.append(f"there is no metric {selector.name}")
            continue
        labels = labels_of(selector.name, metric)
        known |= labels
        found.extend(_unfit(selector, labels, metric.values))
    found.extend(f"nothing here has the label {label}" for label in _grouped_by(expression) if label not in known)
    return found


def metric_of(name: str) -> Metric | None:
    """Return the catalogue's metric for a name in Prometheus."""
    plain = name.removeprefix(PREFIX)
    metric = METRICS.get(plain)
    if metric is not None:
        return metric if metric.kind != "histogram" else None  # only a histogram's parts exist as series
    for suffix in HISTOGRAM_SUFFIXES:
        metric = METRICS.get(plain.removesuffix(suffix))
        if plain.endswith(suffix) and metric is not None and metric.kind == "histogram":
            return metric
    return None


def labels_of(name: str, metric: Metric) -> frozenset[str]:
    return frozenset(metric.labels) | OF_THE_SCRAPE | ({"le"} if name.endswith("_bucket") else set())


def _unfit(selector: Selector, labels: frozenset[str], values: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for label, operator, value in selector.matchers:
        if label not in labels:
            yield f"{selector.name} has no label {label}"
        elif label in values:
            wanted = value.split("|") if "~" in operator else [value]
            yield from (
                f"{label} of {selector.name} never says {one}"
                for one in wanted
                if one not in values[label] and not one.startswith("$")
            )


def _without_groupings(expression: str) -> str:
    return _GROUPING.sub(" ", expression)


def _grouped_by(expression: str) -> Iterator[str]:
    for labels in _GROUPING.findall(expression):
        yield from (label.strip() for label in labels.split(",") if label.strip())

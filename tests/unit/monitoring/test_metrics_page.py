"""docs/run/metrics.md agrees with the catalogue of metrics."""

import re
from pathlib import Path

import pytest

from penstock.monitoring.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "run" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_]+)` \| ([a-z]+)(?:, [^|]+)? \| ((?:`[a-z]+` ?)+) \| (.+) \|$", re.MULTILINE)


def test_the_page_has_every_metric_with_its_type_and_labels() -> None:
    found = ROW.findall(PAGE.split("## The table")[1].split("###")[0])
    on_page = {name: (kind, tuple(re.findall(r"`(.+?)`", labels))) for name, kind, labels, _ in found}
    assert len(found) == len(on_page)
    assert on_page == {metric.name: (metric.kind, metric.labels) for metric in METRICS.values()}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_the_page_lists_every_value_of_the_labels(name: str) -> None:
    text = PAGE.split("## Prometheus")[0]
    values = {
        value for label, listed in METRICS[name].values.items() for value in listed if label not in ("state", "source")
    }
    assert {value for value in values if f"`{value}`" not in text} == set()


def test_histograms_reach_from_milliseconds_to_hours() -> None:
    work = METRICS["handler_duration_seconds"].bounds
    assert (work[0], work[-1]) == (0.005, 14_400.0)
    for metric in METRICS.values():
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert bool(metric.bounds) == (metric.kind == "histogram")


def test_every_label_has_a_bounded_set_of_values() -> None:
    bounded = {"queue", "handler", "pipeline", "worker"}
    for metric in METRICS.values():
        assert set(metric.labels) <= bounded | metric.values.keys(), metric.name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_queries_on_pages_name_labels_and_values_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, selectors in re.findall(r"\b(?:penstock_)?([a-z_]+)\{([a-z_]+!?=~?[^}]*)\}", text):
        metric = METRICS.get(re.sub(r"_(?:bucket|count|sum)$", "", name))
        if metric is None:
            continue
        for label, value in re.findall(r'([a-z_]+)!?="([^"]*)"', selectors):
            assert label in metric.labels, f"{name}: {label}"
            assert value in metric.values.get(label, (value,)), f"{name}: {label}={value}"

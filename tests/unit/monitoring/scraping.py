"""What a scrape says, by value."""

from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.monitoring.endpoint import registry_of
from penstock.monitoring.metrics.meters import Meters


def samples_in(text: str, prefix: str = "penstock_") -> Mapping[str, float]:
    """Every sample by its name, without the prefix, and its labels: ``name{a=1,b=2}``, the labels in order."""
    return {
        _written(sample.name.removeprefix(prefix), sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


def scraped(meters: Meters) -> Mapping[str, float]:
    """What they say to Prometheus."""
    return samples_in(generate_latest(registry_of(meters)).decode())


def _written(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f"{label}={value}" for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name

"""Read the samples of a Prometheus scrape."""

from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.monitoring.endpoint import registry_of
from penstock.monitoring.metrics.meters import Meters


def samples_in(text: str, prefix: str = "penstock_") -> Mapping[str, float]:
    """Return each sample by its name without the prefix and its sorted labels, as in ``name{a=1,b=2}``."""
    return {
        _sample_name(sample.name.removeprefix(prefix), sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


def scraped(meters: Meters) -> Mapping[str, float]:
    """Return the samples that Prometheus would scrape from these meters."""
    return samples_in(generate_latest(registry_of(meters)).decode())


def _sample_name(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f"{label}={value}" for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name

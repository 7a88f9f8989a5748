"""The metrics of workers and monitor, once a second."""

import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

QUEUE = "orders"
TELLING = ("state", "outcome")  # labels that distinguish samples of one queue
Figures = defaultdict[str, float]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The metrics at one moment; for workers that have ended, their last values."""

    at: float
    visible: float
    in_flight: float
    oldest_visible_seconds: float
    received: float
    acked: float
    released: float
    orphaned: float


class Scraper:
    """A thread that reads the metrics of all endpoints once a second, more often than Prometheus would."""

    def __init__(self, monitor_port: int) -> None:
        self._monitor_port = monitor_port
        self._ports: list[int] = []  # appended to by the stage
        self._last: dict[int, Figures] = {}  # of the workers, by port, ended ones included
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []  # written by the thread

    def watch(self, port: int) -> None:
        self._ports.append(port)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            for port in list(self._ports):
                with _away():
                    self._last[port] = scraped(port)
            with _away():
                self.samples.append(self._sample(scraped(self._monitor_port)))

    def _sample(self, queue: Figures) -> Sample:
        workers: Figures = defaultdict(float)
        for figures in self._last.values():
            for name, value in figures.items():
                workers[name] += value
        return Sample(
            at=time.time(),
            visible=queue["penstock_queue_messages state=visible"],
            in_flight=queue["penstock_queue_messages state=in_flight"],
            oldest_visible_seconds=queue["penstock_queue_oldest_visible_message_age_seconds"],
            received=workers["penstock_messages_received_total"],
            acked=workers["penstock_messages_settled_total outcome=acked"],
            released=workers["penstock_messages_settled_total outcome=released"],
            orphaned=workers["penstock_expired_leases_total"],
        )


@contextmanager
def _away() -> Iterator[None]:
    """An endpoint does not exist yet, or no longer."""
    with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
        yield


def scraped(port: int) -> Figures:
    """Return the samples of the queue, by name and by the label that distinguishes them, if there is one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
        text = answer.read().decode()
    figures: Figures = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("queue") != QUEUE:
                continue
            labels = (f" {name}={sample.labels[name]}" for name in TELLING if name in sample.labels)
            figures[f"{sample.name}{next(labels, '')}"] += sample.value
    return figures


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False

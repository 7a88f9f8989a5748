"""The ages of queues' oldest messages from CloudWatch, since SQS itself does not report them.

SQS publishes the metric once a minute, and not for an inactive queue: one without messages that was not polled for six
hours. Reading it needs the permission cloudwatch:GetMetricData, and costs AWS's price per requested metric.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.config import Config

from penstock.brokers.sqs import client
from penstock.errors import ConfigurationError, PenstockError
from penstock.messaging.broker import listed_name
from penstock.messaging.clock import Clock
from penstock.storage.aws import Aws

REFRESH_SECONDS = 60.0  # AWS publishes one value a minute
REFUSED_SECONDS = 900.0  # between tries without permission, which may have been granted meanwhile
WINDOW_SECONDS = 600.0  # older values are not current; AWS's own lag by a few minutes
QUERIES_MAX = 500  # per call
PAGES_MAX = 20  # per response; one is enough if AWS keeps to its limits
ACTION = "cloudwatch:GetMetricData"


class CloudWatch:
    """The ages of one account's queues. Thread-safe; queries AWS once a minute at most."""

    def __init__(self, aws: Aws, *, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Any = None  # written under the lock, as are the next three
        self._read_at: float | None = None  # monotonic
        self._ages: dict[str, float | None] = {}  # by the queue's name
        self._error: PenstockError | None = None

    def oldest_ages(self, queues: Sequence[str]) -> Mapping[str, float]:
        """Return ApproximateAgeOfOldestMessage in seconds by queue, named as in the argument; without queues that have
        none.

        Raises `ConfigurationError` without permission, and `TemporaryError` if CloudWatch is away; the same error again
        until the next try is due.
        """
        names = {queue: listed_name(queue) for queue in queues}
        with self._lock:
            if self._is_due(names.values()):
                self._query(sorted(set(names.values()) | self._ages.keys()))
            if self._error is not None:
                raise self._error
            known = {queue: self._ages[name] for queue, name in names.items()}
        return {queue: age for queue, age in known.items() if age is not None}

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _is_due(self, names: Iterable[str]) -> bool:
        if self._read_at is None:
            return True
        since = self._clock.monotonic() - self._read_at
        if self._error is not None:
            refused = isinstance(self._error, ConfigurationError)
            return since >= (REFUSED_SECONDS if refused else REFRESH_SECONDS)
        return since >= REFRESH_SECONDS or not self._ages.keys() >= set(names)

    def _query(self, names: Sequence[str]) -> None:
        self._read_at, self._error = self._clock.monotonic(), None
        try:
            for at in range(0, len(names), QUERIES_MAX):
                page = names[at : at + QUERIES_MAX]
                self._ages |= dict.fromkeys(page) | dict(self._read_ages(page))
        except PenstockError as error:  # no client can be created
            self._error = error
        except (*client.ERRORS, ValueError) as error:
            self._error = client.translate_error(
                error, action=ACTION, queue="", endpoint="CloudWatch", known=False, final=False
            )

    def _read_ages(self, names: Sequence[str]) -> Iterator[tuple[str, float]]:
        now = self._clock.now()
        request: dict[str, Any] = {
            "MetricDataQueries": [_query(n, name) for n, name in enumerate(names)],
            "StartTime": datetime.fromtimestamp(now - WINDOW_SECONDS, UTC),
            "EndTime": datetime.fromtimestamp(now, UTC),
            "ScanBy": "TimestampDescending",
        }
        latest: dict[int, float] = {}
        for _ in range(PAGES_MAX):
            response = self._connect().get_metric_data(**request)
            for result in response.get("MetricDataResults", ()):
                if result.get("Values"):
                    latest.setdefault(int(result["Id"].removeprefix("q")), float(result["Values"][0]))
            if not response.get("NextToken"):
                break
            request["NextToken"] = response["NextToken"]
        for n, age in latest.items():
            yield names[n], age

    def _connect(self) -> Any:
        if self._client is None:
            config = Config(
                connect_timeout=2.0,
                read_timeout=5.0,
                retries={"mode": "standard", "total_max_attempts": 2},
                user_agent_extra="penstock",
            )
            self._client = self._aws.client("cloudwatch", config=config)
        return self._client


def _query(n: int, name: str) -> Mapping[str, Any]:
    metric = {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": name}],
    }
    return {"Id": f"q{n}", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Maximum"}, "ReturnData": True}

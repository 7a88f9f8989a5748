"""Ages of queues from CloudWatch, page by page."""

from typing import Any

from penstock.brokers.sqs.cloudwatch import PAGES_MAX, CloudWatch
from penstock.storage.aws import Aws
from penstock.testing import FakeClock


class Endless(Aws):
    """AWS with a response that never ends."""

    def client(self, service: str, **_: Any) -> Any:
        assert service == "cloudwatch"
        return Pages()


class Pages:
    def __init__(self) -> None:
        self._calls = 0

    def get_metric_data(self, **_: object) -> dict[str, Any]:
        self._calls += 1
        assert self._calls <= PAGES_MAX
        values = [float(self._calls)] if self._calls > 1 else []  # a page may be empty
        return {"MetricDataResults": [{"Id": "q0", "Values": values}], "NextToken": "more"}


def test_an_endless_response_is_read_up_to_the_page_limit_and_its_newest_value_counts() -> None:
    assert CloudWatch(Endless(), clock=FakeClock()).oldest_ages(["orders"]) == {"orders": 2.0}

"""What CloudWatch answers of queues' ages, page by page."""

from typing import Any

from penstock.brokers.sqs.cloudwatch import PAGES_MAX, CloudWatch
from penstock.storage.aws import Aws
from penstock.testing import FakeClock


class Endless(Aws):
    """AWS, whose answer always goes on."""

    def client(self, service: str, **_: Any) -> Any:
        assert service == "cloudwatch"
        return Pages()


class Pages:
    def __init__(self) -> None:
        self._asked = 0

    def get_metric_data(self, **_: object) -> dict[str, Any]:
        self._asked += 1
        assert self._asked <= PAGES_MAX
        values = [float(self._asked)] if self._asked > 1 else []  # a page may hold nothing
        return {"MetricDataResults": [{"Id": "q0", "Values": values}], "NextToken": "more"}


def test_an_answer_that_goes_on_for_ever_is_read_no_further_and_its_latest_number_counts() -> None:
    assert CloudWatch(Endless(), clock=FakeClock()).oldest_ages(["orders"]) == {"orders": 2.0}

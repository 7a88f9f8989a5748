"""Looking for the queues that are served, where nobody answers."""

import pytest

from penstock.app.brokers import check_queues
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.clock import SystemClock


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """SQS at an address where nobody listens."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return Settings(broker="sqs://eu-west-1", aws_endpoint_url="http://127.0.0.1:1")


def test_a_worker_waits_for_a_server_that_is_away_and_a_bounded_job_does_not(away: Settings) -> None:
    check_queues(["orders"], away, clock=SystemClock(), waits=True)
    with pytest.raises(TemporaryError):
        check_queues(["orders"], away, clock=SystemClock())


def test_of_another_broker_nothing_is_asked(away: Settings) -> None:
    check_queues(["orders"], away.model_copy(update={"broker": "memory://"}), clock=SystemClock())

"""Checks of served queues at a server that is down."""

import pytest

from penstock.app.brokers import check_queues
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.clock import SystemClock


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings for SQS at an address where no server listens."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return Settings(broker="sqs://eu-west-1", aws_endpoint_url="http://127.0.0.1:1")


def test_a_worker_waits_for_an_unreachable_server_and_a_bounded_job_does_not(unreachable: Settings) -> None:
    check_queues(["orders"], unreachable, clock=SystemClock(), waits=True)
    with pytest.raises(TemporaryError):
        check_queues(["orders"], unreachable, clock=SystemClock())


def test_other_brokers_are_not_checked(unreachable: Settings) -> None:
    check_queues(["orders"], unreachable.model_copy(update={"broker": "memory://"}), clock=SystemClock())

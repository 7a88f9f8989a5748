"""Addresses of SQS brokers: the region, and the messages for invalid addresses."""

import pytest

from penstock.app import brokers
from penstock.app.brokers import broker_aws, has_workers_elsewhere, open_broker
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.storage.aws import Aws

HERE = Aws(region="us-east-1", endpoint_url="http://127.0.0.1:1")


def test_an_address_without_a_region_uses_the_settings() -> None:
    assert broker_aws(Settings(broker="sqs://"), HERE) == HERE


@pytest.mark.parametrize("region", ["eu-west-1", "us-gov-east-1", "ap-southeast-2"])
def test_a_region_in_the_address_overrides_the_setting(region: str) -> None:
    assert broker_aws(Settings(broker=f"sqs://{region}"), HERE) == Aws(region=region, endpoint_url=HERE.endpoint_url)
    assert broker_aws(Settings(broker=f"sqs://{region}/"), HERE) == Aws(region=region, endpoint_url=HERE.endpoint_url)


@pytest.mark.parametrize("rest", ["orders", "eu-west-1/orders", "user:secret@eu-west-1", "localhost:4566", "?region=x"])
def test_an_address_that_is_no_region_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write sqs:// or sqs://REGION, as in sqs://eu-west-1") as caught:
        broker_aws(Settings(broker=f"sqs://{rest}"), HERE)
    assert "secret" not in str(caught.value)


def test_workers_of_several_hosts_can_share_an_sqs_broker() -> None:
    assert has_workers_elsewhere(Settings(broker="sqs://eu-west-1"))


def test_a_broker_is_opened_without_connecting() -> None:
    settings = Settings(broker="sqs://eu-west-1", aws_endpoint_url="http://127.0.0.1:1")
    broker = open_broker(settings, holder="me")
    assert isinstance(broker, SqsBroker)
    broker.close()


@pytest.mark.parametrize(("stop", "drain", "poll"), [(30, None, 5.0), (10, None, 2.0), (60, 3.5, 3.0), (60, 0, 1.0)])
def test_a_poll_ends_before_the_time_to_drain_is_over(
    monkeypatch: pytest.MonkeyPatch, stop: float, drain: float | None, poll: float
) -> None:
    opened: list[float] = []
    monkeypatch.setattr(
        SqsBroker, "__init__", lambda self, aws, *, holder, poll_seconds, emit: opened.append(poll_seconds)
    )
    open_broker(Settings(broker="sqs://", worker_stop_timeout=stop, worker_drain=drain), holder="me")
    assert opened == [poll]


def test_missing_packages_are_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ConfigurationError("run pip install 'penstock[aws]'")

    monkeypatch.setattr(brokers, "require_aws", missing)
    with pytest.raises(ConfigurationError, match="penstock\\[aws\\]"):
        open_broker(Settings(broker="sqs://"), holder="me")


def test_the_error_for_an_unknown_broker_lists_sqs() -> None:
    with pytest.raises(ConfigurationError, match=r"sqs:// \(or sqs://REGION\)"):
        open_broker(Settings(broker="amqp://h"), holder="me")

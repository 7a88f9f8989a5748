"""Metrics in CloudWatch, simulated by moto: the values that arrive, compressed if they are long."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from penstock.app.metering import open_metering
from penstock.config import Settings, load_settings
from penstock.events import Event, MessagesReceived, MetricsExportFailed

DEADLINE_SECONDS = 180.0


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def settings_for(endpoint: str) -> Settings:
    return load_settings(
        metrics_export=["cloudwatch"],
        metrics_cloudwatch_namespace="Shop",
        aws_endpoint_url=endpoint,
        aws_region="eu-west-1",
    )


def test_counted_values_arrive_in_cloudwatch(endpoint: str) -> None:
    events: list[Event] = []
    settings = settings_for(endpoint)
    metering = open_metering(settings, worker="w1", health=None, queues={}, emit=events.append)
    with metering.beside():
        metering.listener(MessagesReceived(queue="orders", message_ids=("a", "b", "c"), redelivered=1))
        for seconds in (1.6, 1.7, 100.0):
            metering.meters.observe("handler_duration_seconds", ("orders", "h", "finished"), seconds)
        for number in range(300):  # more than boto3 sends uncompressed
            metering.meters.count("batch_rows_total", (f"p{number}",), 2)
        metering.begin_flush()
        assert metering.await_flush(DEADLINE_SECONDS)
    assert events == []
    client = settings.aws.client("cloudwatch")
    assert statistic(client, "penstock_messages_received_total", queue="orders")["Sum"] == 3
    assert statistic(client, "penstock_batch_rows_total", pipeline="p299")["Sum"] == 2
    worked = statistic(client, "penstock_handler_duration_seconds", queue="orders", handler="h", outcome="finished")
    assert (worked["SampleCount"], worked["Maximum"]) == (3, 90.0), "values are the middles of their buckets"
    assert worked["Unit"] == "Seconds"


def test_an_unavailable_service_is_reported_and_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    events: list[Event] = []
    metering = open_metering(
        settings_for("http://127.0.0.1:9"), worker="w1", health=None, queues={}, emit=events.append
    )
    with metering.beside():
        metering.listener(MessagesReceived(queue="orders", message_ids=("a",), redelivered=0))
        metering.begin_flush()
        assert metering.await_flush(DEADLINE_SECONDS)
    [failed] = events
    assert isinstance(failed, MetricsExportFailed)
    assert (failed.exporter, "EndpointConnectionError" in failed.error) == ("cloudwatch", True)


def statistic(client: Any, name: str, **dimensions: str) -> Any:
    now = datetime.now(UTC)
    response = client.get_metric_statistics(
        Namespace="Shop",
        MetricName=name,
        Dimensions=[{"Name": label, "Value": value} for label, value in dimensions.items()],
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=3_600,
        Statistics=["SampleCount", "Sum", "Maximum"],
    )
    [point] = response["Datapoints"]
    return point

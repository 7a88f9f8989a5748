"""Ages on SQS: CloudWatch's value, the estimate, and a worker's gauge, on servers that speak AWS's protocols."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from tests.integration.sqs_scene import Scene, outgoing
from tests.services.aws_server import AwsServer

from penstock.app.app import App
from penstock.app.jobs.monitor.monitor import Monitor, monitor_targets
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.queues import queue_statuses
from penstock.app.registry import RecordWriter, SeenAges
from penstock.app.scope import Scope
from penstock.brokers.sqs.cloudwatch import REFRESH_SECONDS, REFUSED_SECONDS, CloudWatch
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import Event, MessagesReceived, MonitorPollFailed, ReceiveEmpty
from penstock.messaging.broker import QueueSettings
from penstock.messaging.clock import SystemClock
from penstock.messaging.settlement import Release
from penstock.monitoring.metrics.meters import Meters
from penstock.operations.status.status import StatusReader
from penstock.storage.aws import Aws
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


@pytest.fixture
def on_moto(moto: AwsServer) -> Iterator[Scene]:
    opened = Scene(moto)
    yield opened
    opened.close()


def report_age(server: AwsServer, queue: str, *ages: float, minutes_ago: int = 1) -> None:
    """Report ages as SQS does: one value a minute, the last of them that long ago."""
    now = datetime.now(UTC)
    server.client("cloudwatch").put_metric_data(
        Namespace="AWS/SQS",
        MetricData=[
            {
                "MetricName": "ApproximateAgeOfOldestMessage",
                "Dimensions": [{"Name": "QueueName", "Value": queue}],
                "Timestamp": now - timedelta(minutes=minutes_ago + len(ages) - 1 - n),
                "Value": age,
                "Unit": "Seconds",
            }
            for n, age in enumerate(ages)
        ],
    )


class RequestCounter:
    """Count the requests to CloudWatch, through botocore's events."""

    def __init__(self, aws: Aws) -> None:
        self.calls = 0
        aws.session().events.register("before-send.cloudwatch.GetMetricData", self._count)
        self._aws = aws

    def _count(self, **_: object) -> None:
        self.calls += 1

    def end(self) -> None:
        self._aws.session().events.unregister("before-send.cloudwatch.GetMetricData", self._count)


@pytest.fixture
def counting(moto: AwsServer) -> Iterator[RequestCounter]:
    opened = RequestCounter(moto.aws)
    yield opened
    opened.end()


def test_the_latest_age_of_each_queue_is_read_in_one_call_a_minute(moto: AwsServer, counting: RequestCounter) -> None:
    report_age(moto, "orders", 60, 120, 90)
    report_age(moto, "mails", 0)
    report_age(moto, "asleep", 500, minutes_ago=30)
    clock = FakeClock(start=datetime.now(UTC).timestamp())
    cloudwatch = CloudWatch(moto.aws, clock=clock)
    arn = "arn:aws:sqs:eu-west-1:123456789012:orders"
    queues = ["orders", "mails", "asleep", "never", arn]
    assert cloudwatch.oldest_ages(queues) == {"orders": 90.0, "mails": 0.0, arn: 90.0}
    report_age(moto, "orders", 150, minutes_ago=0)
    clock.advance(REFRESH_SECONDS - 1)
    assert cloudwatch.oldest_ages(["orders"]) == {"orders": 90.0}
    assert counting.calls == 1
    clock.advance(1)
    assert cloudwatch.oldest_ages(["orders"]) == {"orders": 150.0}
    assert counting.calls == 2
    cloudwatch.close()


def test_a_denied_request_is_reported_and_not_repeated_for_a_while(moto: AwsServer, counting: RequestCounter) -> None:
    clock = FakeClock()
    cloudwatch = CloudWatch(moto.aws, clock=clock)

    client = cloudwatch._connect()

    def denied(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricData")

    client.meta.events.register("before-send.cloudwatch.GetMetricData", denied)
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="cloudwatch:GetMetricData"):
            cloudwatch.oldest_ages(["orders"])
        clock.advance(REFRESH_SECONDS)
    assert counting.calls == 1
    clock.advance(REFUSED_SECONDS)
    with pytest.raises(ConfigurationError):
        cloudwatch.oldest_ages(["orders"])
    assert counting.calls == 2


def test_an_unavailable_cloudwatch_is_a_temporary_error() -> None:
    clock = FakeClock()
    nowhere = Aws(region="eu-west-1", endpoint_url="http://127.0.0.1:1")
    cloudwatch = CloudWatch(nowhere, clock=clock)
    for _ in range(2):
        with pytest.raises(TemporaryError):
            cloudwatch.oldest_ages(["orders"])


def monitored(server: AwsServer, state: Path, clock: FakeClock, events: list[Event]) -> tuple[App, Monitor]:
    settings = Settings.model_construct(
        broker="sqs://",
        aws_endpoint_url=server.aws.endpoint_url,
        aws_region=server.aws.region,
        data_dir=str(state),
    )
    app = App(settings=settings)
    app.handler("q")(print)
    return app, Monitor(monitor_targets(app, clock=clock), clock=clock, emit=events.append)


def test_the_monitor_exports_cloudwatchs_age_and_estimates_the_other_from_workers_of_its_host(
    on_moto: Scene, tmp_path: Path
) -> None:
    events: list[Event] = []
    clock = FakeClock(start=datetime.now(UTC).timestamp())
    broker = on_moto.broker(QueueSettings(name="q"))
    app, monitor = monitored(on_moto.server, tmp_path, clock, events)
    report_age(on_moto.server, "q", 300)
    (queue,) = monitor.measure().queues
    assert (queue.oldest_message_age_seconds, queue.oldest_message_age_source) == (300.0, "cloudwatch")
    assert (queue.oldest_visible_message_age_seconds, queue.oldest_visible_message_age_source) == (None, "estimated")

    broker.send("q", outgoing("a", "b"))
    sample = monitor.measure()
    assert sample.queues[0].visible == 2
    assert (
        sample.queues[0].oldest_visible_message_age_seconds is None
    )  # no worker received anything: the age is unknown
    assert sample.up == {"broker": True, "cloudwatch": True}

    with worker(tmp_path, clock, enqueued_at=clock.now() - 40):
        clock.advance(20)
        (queue,) = monitor.measure().queues
        # the waiting messages were sent after the poll that found none
        assert queue.oldest_visible_message_age_seconds == 20.0
        # without a poll of its own, it uses the worker's record
        (status,) = queue_statuses(app.settings, broker, ["q"])
        assert status.oldest_visible_message_age_seconds == pytest.approx(60.0, abs=30.0)
        assert status.oldest_visible_message_age_source == "estimated"
        assert status.oldest_message_age_seconds is None  # CloudWatch is queried only on request
    assert monitor.measure().queues[0].oldest_visible_message_age_seconds is None
    assert events == []
    app.close()


def test_repeated_status_polls_know_when_nothing_waited(on_moto: Scene, tmp_path: Path) -> None:
    clock = FakeClock(start=datetime.now(UTC).timestamp())
    broker = on_moto.broker(QueueSettings(name="q"))
    app, _ = monitored(on_moto.server, tmp_path, clock, [])
    settings = app.settings.model_copy(update={"ledger": f"sqlite:///{tmp_path / 'ledger.db'}"})
    reader = StatusReader(Scope(settings=settings, served={"q": "q"}), clock=clock)
    assert reader.read().messages_visible == 0
    broker.send("q", outgoing("a", "b"))
    with worker(tmp_path, clock, enqueued_at=clock.now() - 40):
        clock.advance(20)
        # and not 60: the waiting messages were sent since
        assert reader.read().oldest_visible_message_age_seconds == 20.0
    app.close()


@contextmanager
def worker(state: Path, clock: FakeClock, *, enqueued_at: float) -> Iterator[None]:
    """Register a worker of this host that just received a message sent at that time."""
    processes = ProcessRegistry(state / PROCESSES_FOLDER)
    with processes.register("w1"):
        keeper = RecordWriter(processes.record("w1"), worker="w1", version="1", stop=StopSignal(), clock=clock)
        keeper(MessagesReceived(queue="q", message_ids=("m",), redelivered=0, first_enqueued_at=enqueued_at))
        keeper.start()
        yield
        keeper.end()


def test_without_permission_for_cloudwatch_there_is_no_age_and_one_notice(
    on_moto: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_moto.broker(QueueSettings(name="q"))
    events: list[Event] = []
    clock = FakeClock(start=datetime.now(UTC).timestamp())

    def refused(*_: object) -> None:
        raise ConfigurationError("CloudWatch refuses cloudwatch:GetMetricData")

    monkeypatch.setattr(CloudWatch, "oldest_ages", refused)
    app, monitor = monitored(on_moto.server, tmp_path, clock, events)
    for _ in range(5):
        sample = monitor.measure()
        clock.advance(20)
    assert sample.queues[0].oldest_message_age_seconds is None
    assert sample.queues[0].visible == 0
    assert sample.up == {"broker": True, "cloudwatch": False}
    (notice,) = events
    assert isinstance(notice, MonitorPollFailed)
    assert notice.source == "cloudwatch"
    app.close()


def test_a_worker_exports_its_own_estimate(on_moto: Scene) -> None:
    events: list[Event] = []
    seen = SeenAges(SystemClock())

    def listen(event: Event) -> None:
        events.append(event)
        seen(event)

    broker = on_moto.broker(QueueSettings(name="q"), emit=listen)
    assert not broker.receive("q", messages_max=1, lease_seconds=30, wait_seconds=1)
    assert events == [ReceiveEmpty(queue="q")]
    meters = Meters()
    with seen.exported(meters):
        assert meters.read().values["queue_oldest_visible_message_age_seconds"] == {("q", "estimated"): 0.0}
        broker.send("q", outgoing("a"))
        (delivery,) = broker.receive("q", messages_max=1, lease_seconds=30, wait_seconds=1)
        assert events[1:] == []
        seen(
            MessagesReceived(
                queue="q", message_ids=("a",), redelivered=0, first_enqueued_at=delivery.message.enqueued_at
            )
        )
        (age,) = meters.read().values["queue_oldest_visible_message_age_seconds"].values()
        assert 0 <= age < 60
        assert not broker.settle([(delivery, Release())])


def test_errors_of_cloudwatch_are_penstock_errors(moto: AwsServer) -> None:
    no_region = CloudWatch(Aws(endpoint_url=moto.aws.endpoint_url, profile="nobody's"), clock=FakeClock())
    with pytest.raises(PenstockError):
        no_region.oldest_ages(["q"])


def test_an_empty_poll_of_a_fifo_queue_emits_no_event(on_moto: Scene) -> None:
    events: list[Event] = []
    broker = on_moto.broker(QueueSettings(name="q.fifo"), emit=events.append)
    broker.send("q.fifo", outgoing("a", "b", group="g"))
    assert broker.receive("q.fifo", messages_max=1, lease_seconds=30, wait_seconds=1)
    assert not broker.receive("q.fifo", messages_max=1, lease_seconds=30, wait_seconds=1)  # b waits behind a
    assert events == []

"""The traps of SQS, as docs/run/sqs.md lists them: if a plain client can show one, it does so first."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.integration.sqs_scene import LEASE, Scene, bodies, numbered, outgoing, scene, take, take_all, take_later
from tests.services.aws_server import AwsServer, aws_at
from tests.services.fault_proxy import FaultProxy
from tests.services.plugin import StartAws

from penstock.brokers.sqs import SqsBroker
from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.errors import ConfigurationError, TemporaryError, UnknownOutcome
from penstock.messaging.broker import QueueSettings, ReceiveRequest
from penstock.messaging.death import DEATH_ATTRIBUTE, death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.storage.aws import Aws

__all__ = ["scene"]

DEADLINE_SECONDS = 180.0


# --- the connection breaks


@pytest.fixture
def proxy(scene: Scene) -> Iterator[FaultProxy]:
    opened = FaultProxy(("127.0.0.1", scene.server.port))
    yield opened
    opened.close()


def aws_through(proxy: FaultProxy) -> Aws:
    return aws_at(f"http://127.0.0.1:{proxy.port}")


def test_a_send_whose_response_is_lost_is_unknown_and_never_repeated(scene: Scene, proxy: FaultProxy) -> None:
    scene.broker()
    broker = scene.broker(aws=aws_through(proxy))
    broker.send("q", outgoing("before"))
    trap = proxy.swallow(b"SendMessageBatch")
    with pytest.raises(UnknownOutcome, match="whether it accepted the messages is unknown"):
        broker.send("q", outgoing("once"))
    trap.wait()
    assert sorted(bodies(take(broker))) == ["before", "once"]


def test_a_send_of_thirty_stops_at_the_first_lost_response(scene: Scene, proxy: FaultProxy) -> None:
    scene.broker()
    broker = scene.broker(aws=aws_through(proxy))
    proxy.swallow(b'"MessageBody": "15"')
    with pytest.raises(UnknownOutcome):
        broker.send("q", numbered(30))
    assert sorted(map(int, bodies(take_all(broker, 20)))) == list(range(20))


@pytest.mark.parametrize("operation", [b"DeleteMessageBatch", b"ChangeMessageVisibilityBatch"])
def test_idempotent_requests_are_retried(scene: Scene, proxy: FaultProxy, operation: bytes) -> None:
    scene.broker()
    broker = scene.broker(aws=aws_through(proxy))
    broker.send("q", numbered(3))
    deliveries = take(broker)
    trap = proxy.swallow(operation)
    if operation.startswith(b"Delete"):
        assert not broker.settle([(delivery, Ack()) for delivery in deliveries])
    else:
        assert not broker.extend(deliveries, lease_seconds=30)
    trap.wait()
    assert broker.stats("q").in_flight == (0 if operation.startswith(b"Delete") else 3)


def test_a_receive_whose_response_is_lost_is_not_retried_by_the_library(scene: Scene, proxy: FaultProxy) -> None:
    scene.broker()
    broker = scene.broker(aws=aws_through(proxy))
    broker.send("q", numbered(20))
    trap = proxy.swallow(b"ReceiveMessage")
    with pytest.raises(TemporaryError):
        take(broker)
    trap.wait()
    assert len(take(broker, 50)) == 10  # the ten of the lost response are redelivered when their lease has expired


def test_an_unavailable_server_is_a_temporary_error(start_moto: StartAws) -> None:
    server = start_moto()
    with closing(SqsBroker(server.aws, holder="w", queues=[QueueSettings(name="q")], poll_seconds=1)) as broker:
        broker.send("q", outgoing("a", "b"))
        (delivery, _) = take(broker)
        server.leave()
        turn = broker.turn([(delivery, Ack())], [ReceiveRequest(queue="q", messages_max=1)], lease_seconds=LEASE)
        assert isinstance(turn.settle_error, TemporaryError)
        assert turn.receive_error is not None
        assert isinstance(turn.receive_error[1], TemporaryError)
        with pytest.raises(TemporaryError) as refused:
            broker.send("q", outgoing("c"))
        assert not isinstance(refused.value, UnknownOutcome)  # the request never reached the server
        server.come_back()
        assert not broker.settle([(delivery, Ack())])
        broker.send("q", outgoing("c"))
        assert bodies(take_later(broker)) == ["c"]


# --- a receive is never aborted


def test_closing_the_broker_ends_a_poll_and_leaves_no_orphaned_lease(scene: Scene) -> None:
    sender, broker = scene.broker(), scene.broker()
    notified = threading.Event()
    listener = broker.listen(["q"], notified.set)
    listener.want({"q"})
    give_up, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not broker._polled._polls.get("q"):
        assert time.monotonic() < give_up
        tick.wait(0.005)
    listener.want(frozenset())
    sender.send("q", outgoing("a"))
    listener.close()
    (delivery,) = take_later(sender)
    assert bodies([delivery]) == ["a"]
    assert not notified.is_set()
    assert delivery.attempt <= 2  # SQS counts the receive of the broker that released it


# --- receive counts are carried over


def test_sqs_carries_the_receive_count_to_the_dlq(scene: Scene) -> None:
    scene.broker()
    broker = scene.broker(QueueSettings(name="q", receives_max=2))
    broker.send("q", outgoing("poison"))
    for _ in range(2):
        (delivery,) = take(broker)
        broker.settle([(delivery, Release())])
    assert take(broker) == []
    (dead,) = take(broker, queue="q-dlq")
    assert dead.attempt > 2
    assert death_of(dead.message.attributes) is None  # SQS records no death


def test_messages_that_penstock_dead_letters_start_with_a_new_age(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("poison"))
    (delivery,) = take(broker)
    broker.settle([(delivery, DeadLetter(reason="bad"))])
    (dead,) = take(broker, queue="q-dlq")
    assert dead.attempt == 1


def test_dead_letters_follow_the_redrive_policy_and_are_found_by_the_dlq_name(scene: Scene) -> None:
    broker = scene.broker(QueueSettings(name="q", dead_letter_queue="graves"))
    broker.send("q", outgoing("poison"))
    (delivery,) = take(broker)
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert broker.stats("graves").visible == 1
    assert broker.stats("q-dlq").visible == 1
    assert bodies(take(broker, queue="q-dlq")) == ["poison"]
    assert list(broker.queue_names()) == ["graves", "graves-dead", "q"]


def test_without_a_dead_letter_queue_the_message_stays(scene: Scene) -> None:
    scene.raw.create_queue(QueueName="bare")
    broker = scene.broker()
    broker.send("bare", outgoing("a", "b"))
    first, second = take(broker, queue="bare")
    (failure,) = broker.settle([(first, DeadLetter(reason="bad")), (second, Ack())])
    assert (failure.delivery, failure.lost) == (first, False)
    assert "no queue 'bare-dlq'" in failure.reason
    assert broker.stats("bare").in_flight == 1


# --- ten attributes


def test_row_83_ten_attributes_survive_dead_letter_and_replay(scene: Scene) -> None:
    broker = scene.broker()
    attributes: dict[str, str | bytes] = {f"a{n}": b"\x00\xff" if n % 2 else f"v{n}" for n in range(10)}
    broker.send("q", [Outgoing(body=b"x", attributes=attributes, group="tenant")])
    (delivery,) = take(broker)
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    (dead,) = take(broker, queue="q-dlq")
    assert dict(dead.message.attributes) == {**attributes, DEATH_ATTRIBUTE: dead.message.attributes[DEATH_ATTRIBUTE]}
    replayed = {name: value for name, value in dead.message.attributes.items() if name != DEATH_ATTRIBUTE}
    broker.send("q", [Outgoing(body=dead.message.body, attributes=replayed, group=dead.message.group)])
    (again,) = take(broker)
    assert (dict(again.message.attributes), again.message.group) == (attributes, "tenant")


def test_messages_of_other_senders_are_delivered_and_dead_lettered_unchanged(scene: Scene) -> None:
    broker = scene.broker()
    scene.raw.send_message(
        QueueUrl=scene.url("q"),
        MessageBody="plain é",
        MessageAttributes={
            "count": {"DataType": "Number", "StringValue": "12"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
        },
    )
    (delivery,) = take(broker)
    assert delivery.message.body == "plain é".encode()
    assert dict(delivery.message.attributes) == {"count": "12", "blob": b"\x00\x01"}
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    request = {"QueueUrl": scene.url("q-dlq"), "MessageAttributeNames": ["All"]}
    (dead,) = scene.raw.receive_message(**request)["Messages"]
    assert dead["Body"] == "plain é"
    assert dead["MessageAttributes"]["blob"]["BinaryValue"] == b"\x00\x01"


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff\xfe", b"a\x1b[31m", "\ufffe".encode(), b"\r\n\t "])
def test_bodies_that_sqs_would_refuse_are_delivered(scene: Scene, body: bytes) -> None:
    broker = scene.broker()
    broker.send("q", [Outgoing(body=body)])
    assert [delivery.message.body for delivery in take(broker)] == [body]


# --- groups


def test_a_standard_queue_gets_the_group_id(moto: AwsServer) -> None:
    with closing(Scene(moto)) as scene:
        broker = scene.broker()
        broker.send("q", outgoing("x", group="tenant-1"))
        request = {"QueueUrl": scene.url("q"), "MessageSystemAttributeNames": ["MessageGroupId"]}
        (message,) = scene.raw.receive_message(**request)["Messages"]
        assert message["Attributes"]["MessageGroupId"] == "tenant-1"


FIFO = QueueSettings(name="q.fifo")


def test_a_fifo_queue_keeps_the_order_of_each_group(scene: Scene) -> None:
    broker = scene.broker(FIFO)
    broker.send("q.fifo", [Outgoing(body=f"{group}{n}".encode(), group=group) for n in range(3) for group in "ab"])
    received: list[str] = []
    while deliveries := take(broker, queue="q.fifo"):
        received += bodies(deliveries)
        assert not broker.settle([(delivery, Ack()) for delivery in deliveries])
    for group in "ab":
        assert [body for body in received if body[0] == group] == [f"{group}{n}" for n in range(3)]


def test_no_worker_has_two_messages_of_a_fifo_group_at_a_time(scene: Scene) -> None:
    """Otherwise a worker would start both, and the second be done while the first waits for its retry."""
    broker = scene.broker(FIFO)
    broker.send("q.fifo", [Outgoing(body=f"{group}{n}".encode(), group=group) for n in range(3) for group in "ab"])
    seen: dict[str, list[str]] = {"a": [], "b": []}
    while deliveries := take(broker, queue="q.fifo"):
        groups = [each.message.group for each in deliveries]
        assert len(groups) == len(set(groups))
        for each in deliveries:
            seen[str(each.message.group)].append(each.message.body.decode())
        assert not broker.settle([(each, Ack()) for each in deliveries])
    assert seen == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


def test_a_released_message_of_a_fifo_queue_blocks_its_group_and_is_delivered_first(scene: Scene) -> None:
    broker = scene.broker(FIFO)
    for body in ("a0", "b0"):
        broker.send("q.fifo", [Outgoing(body=body.encode(), group=body[0])])
    (first,) = [each for each in take(broker, queue="q.fifo") if each.message.group == "a"]
    broker.send("q.fifo", [Outgoing(body=b"a1", group="a")])
    assert "a1" not in bodies(take(broker, queue="q.fifo"))
    turn = broker.turn([(first, Release())], [ReceiveRequest(queue="q.fifo", messages_max=1)], lease_seconds=LEASE)
    assert bodies(turn.deliveries) == ["a0"]
    turn = broker.turn(
        [(turn.deliveries[0], Ack())], [ReceiveRequest(queue="q.fifo", messages_max=1)], lease_seconds=LEASE
    )
    assert bodies(turn.deliveries) == ["a1"]


def test_a_fifo_queue_accepts_a_deduplication_id_once(scene: Scene) -> None:
    broker = scene.broker(FIFO)
    for _ in range(2):
        broker.send(
            "q.fifo", [Outgoing(body=b"x", deduplication_id="tick"), Outgoing(body=b"same"), Outgoing(body=b"same")]
        )
    received: list[str] = []
    while deliveries := take(broker, queue="q.fifo"):
        received += bodies(deliveries)
        assert all(delivery.message.group is None for delivery in deliveries)
        broker.settle([(delivery, Ack()) for delivery in deliveries])
    assert sorted(received) == ["same"] * 4 + ["x"]


def test_a_dead_letter_of_a_fifo_queue_is_moved_to_its_fifo_dlq(scene: Scene) -> None:
    broker = scene.broker(FIFO)
    broker.send("q.fifo", outgoing("x", group="a"))
    (delivery,) = take(broker, queue="q.fifo")
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    (dead,) = take(broker, queue="q.fifo-dlq")
    assert (dead.message.body, dead.message.group) == (b"x", "a")
    assert "q-dlq.fifo" in broker.queue_names()


# --- no fence


def end_lease(scene: Scene, delivery: Delivery) -> None:
    """Make the message visible at once, without the broker knowing, as if its lease had ended."""
    assert isinstance(delivery, SqsDelivery)
    scene.raw.change_message_visibility(
        QueueUrl=scene.url(delivery.queue), ReceiptHandle=delivery.receipt, VisibilityTimeout=0
    )


def test_row_84_a_late_extension_is_reported_as_lost(fauxqs: AwsServer) -> None:
    with closing(Scene(fauxqs)) as scene:
        one, two = scene.broker(), scene.broker()
        one.send("q", outgoing("a"))
        (stale,) = take(one)
        end_lease(scene, stale)
        (fresh,) = take_later(two)
        assert fresh.attempt == 2
        assert list(one.extend([stale], lease_seconds=30)) == [stale]
        for settlement in (Release(), DeadLetter(reason="late")):
            (failure,) = one.settle([(stale, settlement)])
            assert failure.lost
        assert one.stats("q-dlq").visible == 0
        assert not one.settle([(stale, Ack())])  # SQS accepts it and does nothing
        assert one.stats("q").in_flight == 1
        assert not two.settle([(fresh, Ack())])


def test_a_late_heartbeat_does_not_hide_a_released_message(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = take(broker)
    broker.settle([(delivery, Release(delay_seconds=1))])
    assert list(broker.extend([delivery], lease_seconds=600)) == [delivery]
    assert bodies(take_later(broker)) == ["a"]


# --- names and permissions


def test_a_queue_is_named_by_name_url_or_arn(scene: Scene) -> None:
    broker = scene.broker()
    for queue in ("q", scene.url("q"), scene.arn("q")):
        broker.send(queue, outgoing(queue))
        (delivery,) = take(broker, queue=queue)
        assert (delivery.queue, bodies([delivery])) == (queue, [queue])
        assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert broker.stats("q-dlq").visible == 3


def test_a_missing_queue_is_named_with_a_remedy_and_nothing_is_created(scene: Scene) -> None:
    broker = scene.broker()
    for queue in ("missing", f"arn:aws:sqs:us-east-1:{scene.server.account}:missing"):
        with pytest.raises(ConfigurationError, match=r"missing.*create it"):
            take(broker, queue=queue)
        with pytest.raises(ConfigurationError, match=r"missing.*create it"):
            broker.send(queue, outgoing("a"))
    turn = broker.turn([], [ReceiveRequest(queue="missing", messages_max=1)], lease_seconds=LEASE)
    assert turn.receive_error is not None
    assert isinstance(turn.receive_error[1], ConfigurationError)
    assert list(broker.queue_names()) == ["q", "q-dead", "q-dlq"]


def test_a_queue_that_is_deleted_and_recreated_is_found_again(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("a"))
    scene.raw.delete_queue(QueueUrl=scene.url("q"))
    with pytest.raises(TemporaryError, match="was deleted; create it again"):
        broker.send("q", outgoing("b"))
    scene.raw.create_queue(QueueName="q")
    broker.send("q", outgoing("c"))
    assert bodies(take(broker)) == ["c"]


def test_queues_are_created_with_their_settings(scene: Scene) -> None:
    scene.broker(QueueSettings(name="q", receives_max=7, retention_seconds=86_400))
    request = {"QueueUrl": scene.url("q"), "AttributeNames": ["All"]}
    attributes = scene.raw.get_queue_attributes(**request)["Attributes"]
    assert attributes["MessageRetentionPeriod"] == "86400"
    policy = json.loads(attributes["RedrivePolicy"])
    assert (policy["deadLetterTargetArn"], policy["maxReceiveCount"]) == (scene.arn("q-dlq"), 7)
    scene.broker(QueueSettings(name="q", receives_max=9))
    attributes = scene.raw.get_queue_attributes(**request)["Attributes"]
    assert json.loads(attributes["RedrivePolicy"])["maxReceiveCount"] == 9


def test_a_refused_connection_is_temporary_and_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        closing(SqsBroker(aws_at(f"http://127.0.0.1:{port}"), holder="w")) as broker,
        pytest.raises(TemporaryError, match=f"http://127.0.0.1:{port}"),
    ):
        take(broker)


def test_a_missing_region_is_reported_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with (
        closing(SqsBroker(Aws(), holder="w")) as broker,
        pytest.raises(ConfigurationError, match=r"Set aws\.region"),
    ):
        take(broker)


def test_missing_credentials_are_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch, moto: AwsServer) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    anonymous = Aws(region="us-east-2", endpoint_url=moto.url)  # sessions are cached by these values
    with (
        closing(SqsBroker(anonymous, holder="w")) as broker,
        pytest.raises(ConfigurationError, match="No credentials for AWS were found: set AWS_PROFILE"),
    ):
        take(broker)

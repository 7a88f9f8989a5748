"""Network faults between a client and an AWS server, injected by a proxy."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import BotoCoreError
from tests.services.aws_proxy import AwsProxy
from tests.services.aws_server import AwsServer, Kind
from tests.services.fault_proxy import Way
from tests.services.plugin import StartAwsProxy

PATIENCE_SECONDS = 60.0

both_kinds = pytest.mark.parametrize("kind", ["moto", "fauxqs"])


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: Kind) -> AwsServer:
    shared: AwsServer = request.getfixturevalue(kind)
    return shared


@pytest.fixture
def proxy(start_aws_proxy: StartAwsProxy, server: AwsServer) -> AwsProxy:
    return start_aws_proxy(server)


def a_queue(server: AwsServer) -> str:
    return str(server.client("sqs").create_queue(QueueName="q")["QueueUrl"])


def received(server: AwsServer | AwsProxy, url: str) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = server.client("sqs").receive_message(QueueUrl=url).get("Messages", [])
    return messages


@both_kinds
def test_a_queue_has_the_same_messages_directly_and_through_the_proxy(
    server: AwsServer, proxy: AwsProxy, kind: Kind
) -> None:
    direct = a_queue(server)
    through = proxy.client("sqs").get_queue_url(QueueName="q")["QueueUrl"]
    proxy.client("sqs").send_message(QueueUrl=direct, MessageBody="1")
    server.client("sqs").send_message(QueueUrl=through, MessageBody="2")
    assert [message["Body"] for _ in range(2) for message in received(proxy, direct)] == ["1", "2"]


@both_kinds
def test_a_delete_with_a_lost_response_is_applied(server: AwsServer, proxy: AwsProxy, kind: Kind) -> None:
    url = a_queue(server)
    server.client("sqs").send_message(QueueUrl=url, MessageBody="1")
    [message] = received(proxy, url)
    trap = proxy.swallow(b"AmazonSQS.DeleteMessage\r\n")
    with pytest.raises(BotoCoreError):
        proxy.client("sqs").delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    trap.wait()
    counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = server.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=counts)["Attributes"]
    assert set(attributes.values()) == {"0"}


@both_kinds
def test_a_held_send_arrives_late(server: AwsServer, proxy: AwsProxy, kind: Kind) -> None:
    url = a_queue(server)
    trap = proxy.hold(b"AmazonSQS.SendMessage\r\n")
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(proxy.client("sqs").send_message, QueueUrl=url, MessageBody="1")
        trap.wait()
        assert not received(server, url)
        proxy.heal()
        sending.result(PATIENCE_SECONDS)
    assert len(received(server, url)) == 1


@both_kinds
def test_half_a_request_delays_no_other_request(server: AwsServer, proxy: AwsProxy, kind: Kind) -> None:
    s3 = server.client("s3")
    s3.create_bucket(Bucket="bucket")
    proxy.client("s3").put_object(Bucket="bucket", Key="first", Body=b"x")
    trap = proxy.hold(b"the end")
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(
            proxy.client("s3").put_object, Bucket="bucket", Key="late", Body=b"x" * 1_000_000 + b"the end"
        )
        trap.wait()
        s3.put_object(Bucket="bucket", Key="meanwhile", Body=b"x")
        proxy.heal()
        putting.result(PATIENCE_SECONDS)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["first", "late", "meanwhile"]


@both_kinds
def test_stalled_responses_arrive_after_healing(server: AwsServer, proxy: AwsProxy, kind: Kind) -> None:
    url = a_queue(server)
    proxy.stall(Way.REPLIES)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(proxy.client("sqs").send_message, QueueUrl=url, MessageBody="1")
        with pytest.raises(TimeoutError):
            sending.result(0.5)
        assert len(received(server, url)) == 1
        proxy.heal()
        sending.result(PATIENCE_SECONDS)

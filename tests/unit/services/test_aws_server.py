"""The AWS servers of the tests behave as the tests assume."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from tests.services.aws_server import NO_ACCOUNT, AwsServer, Kind
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers, StartAws

pytestmark = pytest.mark.server  # its fixtures are requested by name, so that tests/conftest.py does not see them

PATIENCE_SECONDS = 60.0

both_kinds = pytest.mark.parametrize("kind", ["moto", "fauxqs"])


@pytest.fixture
def start(request: pytest.FixtureRequest, kind: Kind) -> StartAws:
    started: StartAws = request.getfixturevalue(f"start_{kind}")
    return started


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: Kind) -> AwsServer:
    shared: AwsServer = request.getfixturevalue(kind)
    return shared


def a_queue(server: AwsServer, name: str = "q") -> str:
    return str(server.client("sqs").create_queue(QueueName=name)["QueueUrl"])


def received(server: AwsServer, url: str, **options: int) -> list[str]:
    answer = server.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10, **options)
    return [message["Body"] for message in answer.get("Messages", [])]


@both_kinds
@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_server_is_clean_for_every_test(server: AwsServer, turn: int) -> None:
    assert not server.client("sqs").list_queues().get("QueueUrls")
    assert not server.client("s3").list_buckets()["Buckets"]
    assert not server.client("sns").list_topics()["Topics"]
    server.client("sqs").send_message(QueueUrl=a_queue(server), MessageBody=str(turn))
    server.client("s3").create_bucket(Bucket="bucket")
    server.client("sns").create_topic(Name="topic")


@both_kinds
def test_a_killed_server_restarts_empty_on_its_port(start: StartAws, kind: Kind) -> None:
    server = start()
    url, first = server.url, server.pid
    a_queue(server)
    server.kill()
    assert not server.running
    server.start()
    assert (server.url, server.pid == first) == (url, False)
    assert not server.client("sqs").list_queues().get("QueueUrls")


@both_kinds
def test_a_server_that_was_away_keeps_its_messages(start: StartAws, kind: Kind) -> None:
    server = start()
    url = a_queue(server)
    server.client("sqs").send_message(QueueUrl=url, MessageBody="kept")
    server.leave()
    for _ in range(2):  # on an open connection, and on a new one
        with pytest.raises(BotoCoreError):
            received(server, url)
    server.come_back()
    assert received(server, url) == ["kept"]


@both_kinds
def test_polls_fail_when_the_server_leaves(start: StartAws, kind: Kind) -> None:
    server = start()
    url = a_queue(server)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(received, server, url, WaitTimeSeconds=20) for _ in range(2)]
        until(lambda: established(server) == 2)
        server.leave()
        for poll in polls:
            with pytest.raises(BotoCoreError):
                poll.result(PATIENCE_SECONDS)
    server.come_back()
    server.client("sqs").send_message(QueueUrl=url, MessageBody="later")
    assert received(server, url) == ["later"]  # no poll of a gone client takes it


@both_kinds
def test_a_frozen_server_answers_when_thawed(start: StartAws, kind: Kind) -> None:
    server = start()
    url = a_queue(server)
    server.freeze()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(server.client("sqs").send_message, QueueUrl=url, MessageBody="late")
        with pytest.raises(TimeoutError):
            sending.result(0.5)
        server.thaw()
        sending.result(PATIENCE_SECONDS)
    assert received(server, url) == ["late"]
    server.freeze()
    server.stop()  # ends although it is frozen
    assert not server.running


@both_kinds
def test_a_server_listens_on_loopback_only(start: StartAws, kind: Kind) -> None:
    server = start()
    assert listening(server.pid) == [f"127.0.0.1:{server.port}"]


# fauxqs ends every poll when a message arrives, all but one of them empty; the contract of SQS allows that.
@pytest.mark.parametrize(("kind", "count"), [("moto", 4), ("fauxqs", 1)])
def test_long_polls_delay_no_other_request_and_end_with_a_message(server: AwsServer, count: int) -> None:
    url = a_queue(server)
    with ThreadPoolExecutor(count) as pool:
        polls = [pool.submit(received, server, url, WaitTimeSeconds=20) for _ in range(count)]
        for number in range(20):
            a_queue(server, f"q{number}")
        for number in range(count):
            assert sum(poll.done() for poll in polls) == number, "others were served while the polls waited"
            server.client("sqs").send_message(QueueUrl=url, MessageBody=str(number))
            until(lambda number=number: sum(poll.done() for poll in polls) > number)  # type: ignore[misc]
        assert sorted(body for poll in polls for body in poll.result()) == [str(number) for number in range(count)]


def test_a_blocked_message_group_makes_moto_wait_not_spin(moto: AwsServer) -> None:
    client = moto.client("sqs")
    url = client.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for body in ("first", "second"):
        client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=1)
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(received, moto, url, WaitTimeSeconds=3)
        for _ in range(10):
            client.list_queues()
        assert not poll.done()
        assert poll.result() == []


def test_one_of_eight_conditional_puts_of_an_object_succeeds(moto: AwsServer) -> None:
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="bucket")
    for number in range(10):
        together = threading.Barrier(8)

        def put(writer: int, key: str, together: threading.Barrier) -> str:
            together.wait(PATIENCE_SECONDS)
            try:
                s3.put_object(Bucket="bucket", Key=key, Body=str(writer).encode(), IfNoneMatch="*")
            except ClientError as error:
                return str(error.response["Error"]["Code"])
            return "won"

        key = f"key {number}"
        with ThreadPoolExecutor(8) as pool:
            ends = list(pool.map(put, range(8), [key] * 8, [together] * 8))
        assert sorted(ends) == ["PreconditionFailed"] * 7 + ["won"]
        body = s3.get_object(Bucket="bucket", Key=key)["Body"].read()
        assert body == str(ends.index("won")).encode()


@both_kinds
def test_a_frozen_clock_moves_the_visibility_of_messages(frozen_servers: Servers, kind: Kind) -> None:
    clock, server = ServerClock(frozen_servers.clock_file), frozen_servers.aws(kind)
    url, client = a_queue(server), server.client("sqs")
    client.send_message(QueueUrl=url, MessageBody="hidden")
    answer = client.receive_message(QueueUrl=url, VisibilityTimeout=600, AttributeNames=["All"])
    assert answer["Messages"][0]["Attributes"]["SentTimestamp"] == str(int(clock.now() * 1000))
    clock.advance(599.0)
    assert received(server, url) == []
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(received, server, url, WaitTimeSeconds=15)
        clock.advance(1.5)
        assert poll.result(PATIENCE_SECONDS) == ["hidden"]
    server.clean()


@both_kinds
def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed(
    server: AwsServer, kind: Kind, tmp_path: Path
) -> None:
    script = (
        "import os, pathlib; from tests.services.aws_server import AwsServer;"
        f"s = AwsServer(kind={kind!r}, folder=pathlib.Path({str(tmp_path)!r})).start(); print(s.pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    until(lambda: has_ended(int(ended.stdout)))


def test_tests_never_use_a_real_aws_account(tmp_path: Path) -> None:
    assert {name: value for name, value in os.environ.items() if name.startswith("AWS_")} == NO_ACCOUNT
    script = "import boto3; c = boto3.Session().get_credentials(); print(c.access_key, c.method)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["test", "env"]


def test_a_child_process_finds_the_server_by_its_environment(moto: AwsServer) -> None:
    script = "import boto3; print(boto3.client('sqs').create_queue(QueueName='q')['QueueUrl'])"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **moto.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith(moto.url)


def until(holds: Callable[[], bool]) -> None:
    give_up, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not holds():
        assert time.monotonic() < give_up, "it did not happen"
        tick.wait(0.01)


def has_ended(pid: int) -> bool:
    """Return True if the process ended, even if its exit code was not fetched yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def sockets(state: str) -> list[tuple[str, str, str]]:
    """Return (local address, remote address, inode) of this machine's TCP sockets in that state, for IPv4 and IPv6."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state:
                found.append((words[1], words[2], words[9]))
    return found


def listening(pid: int) -> list[str]:
    """Return the addresses that a process listens on."""
    mine = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    local = [local for local, _, inode in sockets("0A") if f"socket:[{inode}]" in mine]
    return [readable(address) for address in local]


def established(server: AwsServer) -> int:
    """Return the number of open connections of the server."""
    return sum(readable(local) == f"127.0.0.1:{server.port}" for local, _, _ in sockets("01"))


def readable(address: str) -> str:
    host, port = address.split(":")
    octets = [str(octet) for octet in reversed(bytes.fromhex(host))]
    return f"{'.'.join(octets)}:{int(port, 16)}"

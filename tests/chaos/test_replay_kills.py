"""Replayers killed at every step and at random: no dead letter is lost, and no replay is wasted.

If the broker deduplicates, a replay arrives once. On SQS it may arrive once more for each replayer that dies between
sending and marking it; idempotency keys make its effect happen once.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.replay_case import AT_RANDOM, DLQS, FINAL_DLQS, QUEUES, STEPS, ReplayCase, Result
from tests.services.aws_server import AwsServer, environment_for
from tests.services.plugin import Servers

from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import QueueSettings

BROKERS = ("sqlite", "redis", "sqs")
LONG_KILLS = 200
BODY = re.compile(rb'{"id": "[^"]+", "lives": [0-9]+}')

OpenCase = Callable[[str], ReplayCase]


@pytest.fixture
def open_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenCase]:
    """Return a function that opens a case at the named broker; its processes end with the test."""
    opened: list[ReplayCase] = []

    def open_one(broker: str) -> ReplayCase:
        opened.append(OPENERS[broker](request, tmp_path))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def on_sqlite(_: pytest.FixtureRequest, folder: Path) -> ReplayCase:
    statement = "SELECT body FROM messages JOIN queues ON queues.id = queue_id WHERE name = ?"

    def bodies(queue: str) -> Sequence[bytes]:
        with closing(sqlite3.connect(folder / "queue.db", timeout=60)) as connection:
            return [body for (body,) in connection.execute(statement, (queue,))]

    return ReplayCase(folder, bodies=bodies)


def on_redis(request: pytest.FixtureRequest, folder: Path) -> ReplayCase:
    servers: Servers = request.getfixturevalue("servers")
    server = servers.redis("7.0")
    request.addfinalizer(server.clean)

    def bodies(queue: str) -> Sequence[bytes]:
        """Return everything that matches a body in the strings, lists, sets and streams of the queue."""
        name, _, tier = queue.partition("-")
        base = f"penstock:{{{name}}}{f'-{tier}' if tier else ''}:"
        raw = server.client
        waiting = [raw.lrange(key, 0, -1) for key in raw.scan_iter(f"{base}ready*")]
        delayed, in_flight = raw.zrange(f"{base}delayed", 0, -1), raw.xrange(f"{base}stream")
        return BODY.findall(repr([*waiting, delayed, in_flight]).encode())

    return ReplayCase(folder, bodies=bodies, broker=server.url)


def on_sqs(request: pytest.FixtureRequest, folder: Path) -> ReplayCase:
    server: AwsServer = request.getfixturevalue("moto")
    raw = server.client("sqs")
    urls = {queue: raw.create_queue(QueueName=queue)["QueueUrl"] for queue in (*QUEUES, *DLQS, *FINAL_DLQS)}
    found: dict[str, list[bytes]] = {queue: [] for queue in FINAL_DLQS}

    def bodies(queue: str) -> Sequence[bytes]:
        """Receive from the final DLQ, which no other process reads, and from the others."""
        if queue not in found:
            counted = raw.get_queue_attributes(QueueUrl=urls[queue], AttributeNames=["All"])["Attributes"]
            return [b""] * sum(int(counted[f"ApproximateNumberOfMessages{of}"]) for of in ("", "NotVisible", "Delayed"))
        while batch := raw.receive_message(QueueUrl=urls[queue], MaxNumberOfMessages=10).get("Messages"):
            found[queue] += [message["Body"].encode() for message in batch]
            for message in batch:
                raw.delete_message(QueueUrl=urls[queue], ReceiptHandle=message["ReceiptHandle"])
        return found[queue]

    aside = SqsBroker(server.aws, holder="test", queues=[QueueSettings(name=queue) for queue in QUEUES], poll_seconds=1)
    added = environment_for(server.url)
    return ReplayCase(folder, bodies=bodies, broker="sqs://", aside=aside, added=added)


OPENERS = {"sqlite": on_sqlite, "redis": on_redis, "sqs": on_sqs}


@pytest.mark.parametrize("broker", BROKERS)
def test_a_replayer_killed_at_each_step_loses_nothing(open_case: OpenCase, broker: str) -> None:
    check(run(open_case(broker), [*STEPS, AT_RANDOM, AT_RANDOM]), broker)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("broker", BROKERS)
def test_a_replayer_killed_two_hundred_times_loses_nothing(open_case: OpenCase, broker: str) -> None:
    steps = [*STEPS, AT_RANDOM, AT_RANDOM]
    check(run(open_case(broker), [steps[number % len(steps)] for number in range(LONG_KILLS)]), broker)


def run(case: ReplayCase, steps: Sequence[str]) -> Result:
    case.begin()
    for step in steps:
        case.kill(step)
    return case.finish()


def check(result: Result, broker: str) -> None:
    """Check the duplicates; `finish` has checked for lost messages, repeated effects and repeated sends."""
    print(f"{broker}: {result}")  # noqa: T201 # the figures, shown with -s
    if broker != "sqs":
        assert (result.doubles, result.set_aside_again) == (0, 0), "a broker that deduplicates let a message in twice"

"""Threads at the brokers, and processes at a file and at a server: each message is delivered to one at a time, none is
lost.

The clock is the machine's; leases are long, so that none expires.
"""

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.services.aws_server import AwsServer
from tests.services.forked_process import ForkedPopen
from tests.services.plugin import Servers
from tests.services.redis_server import RedisServer

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, Release

DEADLINE_SECONDS = 180.0
LEASE = 600.0
MESSAGES = 2_000
SOURCE = Path(__file__).parents[2] / "src"


def memory_views(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    first = MemoryBroker()
    return [first.with_holder(f"w{n}") for n in range(count)]


def sqlite_shared(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    """Open one broker object for all threads: they share its lock."""
    return [SqliteBroker(request.getfixturevalue("tmp_path") / "queue.db", holder="w")] * count


def sqlite_separate(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    """Open a connection for each thread: they share the file's lock, as processes do."""
    return [SqliteBroker(request.getfixturevalue("tmp_path") / "queue.db", holder=f"w{n}") for n in range(count)]


def redis_shared(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    """Open one broker object for all threads: each uses a connection of its own."""
    return [RedisStreamsBroker(request.getfixturevalue("clean_redis").url, holder="w")] * count


def redis_separate(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    server: RedisServer = request.getfixturevalue("clean_redis")
    return [RedisStreamsBroker(server.url, holder=f"w{n}", sweep_seconds=0.0) for n in range(count)]


def sqs_shared(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    """Open one broker object for all threads: they share its clients."""
    return sqs_separate(request, 1) * count


def sqs_separate(request: pytest.FixtureRequest, count: int) -> list[Broker]:
    server: AwsServer = request.getfixturevalue("fauxqs")
    server.client("sqs").create_queue(QueueName="q")
    return [SqsBroker(server.aws, holder=f"w{n}", poll_seconds=1) for n in range(count)]


OPENERS = [memory_views, sqlite_shared, sqlite_separate, redis_shared, redis_separate, sqs_shared, sqs_separate]


@pytest.fixture
def clean_redis(servers: Servers) -> Iterator[RedisServer]:
    server = servers.redis("7.0")
    yield server
    server.clean()


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.__name__)
def brokers(request: pytest.FixtureRequest) -> Iterator[list[Broker]]:
    opener: Callable[[pytest.FixtureRequest, int], list[Broker]] = request.param
    opened = opener(request, 4)
    yield opened
    for broker in opened:
        broker.close()


def at_once(brokers: Sequence[Broker], work: Callable[[Broker], list[Delivery]]) -> list[Delivery]:
    """Run the work on every broker, all starting together; return all their deliveries."""
    start = threading.Barrier(len(brokers))

    def run(broker: Broker) -> list[Delivery]:
        start.wait(DEADLINE_SECONDS)
        return work(broker)

    with ThreadPoolExecutor(len(brokers)) as pool:
        return [delivery for deliveries in pool.map(run, brokers) for delivery in deliveries]


def drain(broker: Broker) -> list[Delivery]:
    taken: list[Delivery] = []
    while deliveries := broker.receive("q", messages_max=7, lease_seconds=LEASE):
        taken.extend(deliveries)
    return taken


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(body=str(n).encode(), group=str(n % 3)) for n in range(count)]


def test_concurrent_receivers_never_lease_the_same_message(brokers: list[Broker]) -> None:
    brokers[0].send("q", numbered(MESSAGES))
    taken = at_once(brokers, drain)
    assert collections.Counter(int(delivery.message.body) for delivery in taken) == dict.fromkeys(range(MESSAGES), 1)
    assert all(delivery.attempt == 1 for delivery in taken)


def test_concurrent_sends_receives_and_settlements_lose_and_double_nothing(brokers: list[Broker]) -> None:
    done: collections.Counter[bytes] = collections.Counter()
    lock = threading.Lock()

    def work(broker: Broker) -> list[Delivery]:
        mine = f"{threading.get_ident()}"
        for n in range(40):
            broker.send("q", [Outgoing(body=f"{mine} {n} {i}".encode(), group=mine) for i in range(5)])
            deliveries = broker.receive("q", messages_max=8, lease_seconds=LEASE)
            released, acked_now = deliveries[:2], deliveries[2:]
            assert not broker.extend(deliveries, lease_seconds=LEASE)
            assert not broker.settle([(d, Release(uncounted=True)) for d in released] + [(d, Ack()) for d in acked_now])
            with lock:
                done.update(delivery.message.body for delivery in acked_now)
        return []

    at_once(brokers, work)
    done.update(delivery.message.body for delivery in drain(brokers[0]))
    assert len(done) == 40 * 5 * len(brokers)
    assert set(done.values()) == {1}


def test_one_of_many_concurrent_settlements_of_a_delivery_wins(brokers: list[Broker]) -> None:
    if not brokers[0].capabilities.fenced:
        pytest.skip("not applicable: this broker accepts every settlement of a delivery")
    brokers[0].send("q", numbered(50))
    deliveries = brokers[0].receive("q", messages_max=50, lease_seconds=LEASE)

    def work(broker: Broker) -> list[Delivery]:
        return [d for d in deliveries if not broker.settle([(d, Ack())])]

    assert len(at_once(brokers, work)) == 50


def test_many_concurrent_sends_of_one_deduplication_id_deliver_one_message(brokers: list[Broker]) -> None:
    if not brokers[0].capabilities.deduplicates:
        pytest.skip("not applicable: this broker does not deduplicate")

    def work(broker: Broker) -> list[Delivery]:
        for n in range(50):
            broker.send("q", [Outgoing(body=b"tick", deduplication_id=str(n))])
        return []

    at_once(brokers, work)
    assert brokers[0].stats("q").visible == 50


def test_a_waiting_receiver_is_woken_by_a_sender_in_its_process(brokers: list[Broker]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(brokers[1].receive, "q", messages_max=1, lease_seconds=LEASE, wait_seconds=60)
        brokers[0].send("q", numbered(1))
        assert len(waiting.result(timeout=DEADLINE_SECONDS)) == 1


# --- processes

OPEN = """
import sys
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release
def open_broker(place, holder):
    if place.startswith("unix:"):
        from penstock.brokers.redis import RedisStreamsBroker
        return RedisStreamsBroker(place, holder=holder)
    from penstock.brokers.sqlite.broker import SqliteBroker
    return SqliteBroker(place, holder=holder)
broker = open_broker(*sys.argv[1:])
"""

SENDER = """
n = 0
while True:
    names = [f"{sys.argv[2]} {n} {i}" for i in range(7)]
    broker.send("q", [Outgoing(body=name.encode()) for name in names])
    print("\\n".join(names), flush=True)  # printed only after send has returned: accepted
    n += 1
"""

RECEIVER = """
while True:
    deliveries = broker.receive("q", messages_max=9, lease_seconds=600, wait_seconds=1)
    half = len(deliveries) // 2
    for delivery in deliveries[:half]:
        print(delivery.message.body.decode(), flush=True)  # printed before it is acked: it may be deleted
    broker.settle([(delivery, Ack()) for delivery in deliveries[:half]])
    broker.settle([(d, DeadLetter(reason="x") if n % 2 else Release()) for n, d in enumerate(deliveries[half:])])
"""


def start(script: str, place: str, name: str, output: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with output.open("wb") as sink:
        return ForkedPopen([sys.executable, "-c", OPEN + script, place, name], stdout=sink, env=environment)


def wait_for_lines(output: Path, count: int) -> None:
    give_up = time.monotonic() + 60
    waiting = threading.Event()
    while output.read_bytes().count(b"\n") < count:
        assert time.monotonic() < give_up, f"fewer than {count} lines in {output.name}"
        waiting.wait(0.01)


def whole_lines(output: Path) -> set[str]:
    text = output.read_text()
    return set(text[: text.rfind("\n") + 1].splitlines())


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where processes find a broker."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("clean_redis")
        return server.url
    return str(tmp_path / "queue.db")


def opened(place: str) -> SqliteBroker | RedisStreamsBroker:
    if place.startswith("unix:"):
        return RedisStreamsBroker(place, holder="after")
    return SqliteBroker(place, holder="after")


@pytest.mark.parametrize("round", range(3))
def test_killing_senders_and_receivers_loses_nothing_accepted(tmp_path: Path, place: str, round: int) -> None:
    outputs = {name: tmp_path / f"{name}.out" for name in ("s1", "s2", "r1", "r2")}
    processes = {
        name: start(SENDER if name[0] == "s" else RECEIVER, place, name, output) for name, output in outputs.items()
    }
    try:
        for output in outputs.values():
            wait_for_lines(output, 60 + 37 * round)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGKILL)
        for process in processes.values():
            process.wait(DEADLINE_SECONDS)
    broker = opened(place)
    in_flight = broker.stats("q").in_flight
    assert sum(broker.release_holder(name) for name in processes) == in_flight
    left = {d.message.body.decode() for d in drain(broker)}
    left |= {message.body.decode() for message in broker.browse("q-dlq", messages_max=1_000_000)}
    broker.close()
    accepted = whole_lines(outputs["s1"]) | whole_lines(outputs["s2"])
    acked = whole_lines(outputs["r1"]) | whole_lines(outputs["r2"])
    assert accepted - left - acked == set()
    assert acked
    for name in ("s1", "s2"):  # a send is complete or absent
        sends = collections.Counter(body.split()[1] for body in left | acked if body.startswith(name))
        assert set(sends.values()) == {7}


def test_processes_that_create_a_file_concurrently_share_it(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    outputs = [tmp_path / f"{n}.out" for n in range(4)]
    processes = [start(SENDER, str(path), f"s{n}", output) for n, output in enumerate(outputs)]
    try:
        for output in outputs:
            wait_for_lines(output, 7)
        assert [process.poll() for process in processes] == [None] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait(DEADLINE_SECONDS)
    broker = SqliteBroker(path, holder="after")
    bodies = [message.body.decode() for message in broker.browse("q", messages_max=1_000_000)]
    broker.close()
    assert len(bodies) == len(set(bodies))
    assert set().union(*map(whole_lines, outputs)) <= set(bodies)

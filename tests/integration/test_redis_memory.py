"""Redis keeps nothing after the work is done. Also counts its commands; -s shows the figures."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.integration.fleet import wait_for
from tests.integration.redis_scene import LEASE, STREAM, outgoing, take
from tests.integration.redis_worker import working
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers, StartRedis
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.server import Server, script
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Settlement

BODY = b"x" * 100
PAGE = 1_000
GROWTH_MAX = 1.1
COUNTS = [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, start_redis: StartRedis) -> RedisServer:
    """Start a server for this test and use a broker once: memory kept from then on is no growth."""
    started: RedisServer = start_redis(request.param)
    with closing(open_broker(started)) as broker:
        process(broker, [Outgoing(body=BODY)] * PAGE)
        broker.send("q", [Outgoing(body=BODY)])
        broker.settle([(each, DeadLetter(reason="x")) for each in take(broker)])
        broker.purge("q-dlq")
    return started


def open_broker(server: RedisServer, holder: str = "w1") -> RedisStreamsBroker:
    return RedisStreamsBroker(server.url, holder=holder, sweep_seconds=3600.0)


def process(broker: RedisStreamsBroker, messages: list[Outgoing], settlement: Settlement | None = None) -> None:
    """Send all messages, then settle them page by page."""
    for at in range(0, len(messages), PAGE * 10):
        broker.send("q", messages[at : at + PAGE * 10])
    done = 0
    settlements: list[tuple[Delivery, Settlement]] = []
    while done < len(messages):
        turn = broker.turn(settlements, [ReceiveRequest(queue="q", messages_max=PAGE)], lease_seconds=LEASE)
        assert (turn.failures, turn.settle_error, turn.receive_error) == ([], None, None)
        settlements = [(each, settlement or Ack()) for each in turn.deliveries]
        done += len(settlements)
    assert not broker.settle(settlements)


def used(server: RedisServer) -> int:
    server.cli("SLOWLOG RESET")  # the slow log holds the text of slow scripts
    server.cli("MEMORY PURGE")
    return int(server.client.info("memory")["used_memory"])


class MemoryMeasurement:
    """The server's memory: when the block began, and once it is stable after the end."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._start = self._settled(0.0)

    def _settled(self, bound: float) -> int:
        """Wait until memory is stable: buffers of closed clients, and of this one, take some seconds to shrink."""
        before, now = 0, used(self._server)
        give_up, tick = time.monotonic() + 60.0, threading.Event()
        while time.monotonic() < give_up and not (now <= bound or (not bound and now == before)):
            tick.wait(0.2)
            before, now = now, used(self._server)
        return now

    def check(self, description: str) -> None:
        peak, bound = used(self._server), self._start * GROWTH_MAX
        end = self._settled(bound)
        print(f"{description}: {self._start} bytes before, {peak} after, {end} settled")  # noqa: T201  # shown with -s
        assert end <= bound


@pytest.mark.parametrize("count", COUNTS)
def test_processed_messages_leave_no_memory(server: RedisServer, count: int) -> None:
    measured = MemoryMeasurement(server)
    began = time.monotonic()
    with closing(open_broker(server)) as broker:
        process(broker, [Outgoing(body=BODY)] * count)
    print(f"{count} messages in {time.monotonic() - began:.1f} s")  # noqa: T201  # shown with -s
    measured.check(f"{count} messages")


def test_groups_and_delays_leave_no_memory(server: RedisServer) -> None:
    measured = MemoryMeasurement(server)
    with closing(open_broker(server)) as broker:
        process(broker, [Outgoing(body=BODY, group=f"tenant {n}") for n in range(10_000)])
        process(broker, [Outgoing(body=BODY, delay_seconds=0.001, group=f"tenant {n}") for n in range(2_000)])
    measured.check("groups and delays")
    assert {key.decode().rpartition(":")[2] for key in server.cli("KEYS", "penstock:{q}:*")} == {"queue", "stream"}


def test_purged_dead_letters_leave_no_memory(server: RedisServer) -> None:
    measured = MemoryMeasurement(server)
    with closing(open_broker(server)) as broker:
        process(broker, [Outgoing(body=BODY, group=str(n % 100)) for n in range(5_000)], DeadLetter(reason="bad"))
        assert used(server) > measured._start * GROWTH_MAX
        assert broker.purge("q-dlq") == 5_000
    measured.check("dead letters")


def test_dead_workers_leave_no_memory(server: RedisServer) -> None:
    measured = MemoryMeasurement(server)
    with closing(open_broker(server)) as broker:
        broker.send("q", [Outgoing(body=BODY)] * 200)
    for n in range(200):
        with closing(open_broker(server, f"dead {n}")) as dead:
            dead.settle([(each, Ack()) for each in take(dead, 1)])
    consumers = len(server.client.xinfo_consumers(STREAM, "penstock"))
    assert consumers >= 200
    with closing(Server(server.url)) as client:
        assert client.call(*script("tidy", [STREAM], 0)) == consumers
    measured.check("dead workers")


@pytest.fixture
def frozen_server(frozen_servers: Servers) -> Iterator[RedisServer]:
    server = frozen_servers.redis("7.0")
    yield server
    server.clean()


def test_deduplication_ids_leave_no_memory_after_their_window(
    frozen_servers: Servers, frozen_server: RedisServer
) -> None:
    server, clock = frozen_server, ServerClock(frozen_servers.clock_file)
    with closing(RedisStreamsBroker(server.url, holder="w1", clock=clock)) as broker:
        process(broker, [Outgoing(body=BODY)] * PAGE)
        measured = MemoryMeasurement(server)
        process(broker, [Outgoing(body=BODY, deduplication_id=f"id {n}") for n in range(10_000)])
        assert len(server.cli("KEYS", "*:once:*")) == 10_000
        clock.advance(301.0)
        wait_for(lambda: server.cli("DBSIZE") < 10, "they expire")
    measured.check("deduplication ids")


# --- number of commands


def commands_of(server: RedisServer) -> int:
    """Return the commands by clients: scripts' commands are counted under names that these clients never send."""
    names = ("evalsha", "blpop", "multi", "exec", "smembers", "sadd", "ping", "script|load")
    stats = server.client.info("commandstats")
    return sum(int(stats[f"cmdstat_{name}"]["calls"]) for name in names if f"cmdstat_{name}" in stats)


def test_full_batches_of_fifty_cost_at_most_a_tenth_of_a_command_per_message(redis_server: RedisServer) -> None:
    count = 5_000
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        broker.queue_names()
        before = commands_of(redis_server)
        for _ in range(count // 50):
            broker.send("q", [Outgoing(body=BODY)] * 50)
        received = 0
        settlements: list[tuple[Delivery, Settlement]] = []
        while received < count:
            turn = broker.turn(settlements, [ReceiveRequest(queue="q", messages_max=50)], lease_seconds=LEASE)
            settlements = [(each, Ack()) for each in turn.deliveries]
            received += len(settlements)
        broker.settle(settlements)
        commands = (commands_of(redis_server) - before) / count
    print(f"{commands:.3f} commands a message")  # noqa: T201  # shown with -s
    assert 0.05 < commands <= 0.1


def test_an_idle_worker_sends_few_commands(redis_server: RedisServer) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        broker.send("q", outgoing(*range(10)))
        with working(broker, {"q": 1, "other": 1}, lambda _: None):
            wait_for(lambda: broker.stats("q").in_flight == broker.stats("q").visible == 0, "the worker is idle")
            before, began = commands_of(redis_server), time.monotonic()
            wait_for(lambda: commands_of(redis_server) >= before + 6, "the idle worker polls")
            rate = (commands_of(redis_server) - before) / (time.monotonic() - began)
    print(f"{rate:.1f} commands a second of an idle worker")  # noqa: T201  # shown with -s
    assert rate < 20

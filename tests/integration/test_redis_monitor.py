"""The monitor with a Redis that is unavailable for a while, and the commands that its polls cost."""

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.process import DEADLINE_SECONDS, Process
from tests.services.fault_proxy import FaultProxy
from tests.services.plugin import StartRedis
from tests.services.redis_server import RedisServer

from penstock.app.app import App
from penstock.app.jobs.monitor.monitor import Monitor, monitor_targets
from penstock.brokers.redis import RedisStreamsBroker
from penstock.config import Settings
from penstock.events import ignore
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack
from penstock.testing import FakeClock

APP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def take(message):
    pass
"""
COMMANDS_MAX = 20  # per minute and queue


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.fixture
def monitors() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_SECONDS) as response:
        return str(response.read().decode())


def awaited(address: str, line: str, *, present: bool = True) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (line in (text := metrics(address))) is not present:
        assert time.monotonic() < deadline, text
        time.sleep(0.1)  # between two requests to another process
    return text


def test_gauges_of_an_unavailable_redis_disappear_and_return(
    here: Path, start_redis: StartRedis, monitors: list[Process]
) -> None:
    server = start_redis()
    broker = RedisStreamsBroker(server.url, holder="test")
    broker.send("orders", [Outgoing(body=b"1")])
    (here / "penstock.toml").write_text(
        f'broker = {json.dumps(server.url)}\n[metrics]\nmonitor_address = "127.0.0.1:0"\nmonitor_every = 1\n'
    )
    monitors.append(monitor := Process(here, "admin", "monitor", "shop:app"))
    address = monitor.expect("monitor.started")["address"]
    visible = 'penstock_queue_messages{queue="orders",state="visible"} 1.0'
    awaited(address, visible)
    server.kill()
    text = awaited(address, visible, present=False)
    assert "penstock_queue_messages{" not in text
    assert "penstock_queue_oldest_message_age_seconds{" not in text
    assert "penstock_dead_letters{" not in text
    assert 'penstock_monitor_up{source="broker"} 0.0' in text
    assert monitor.expect("monitor_poll.failed")["source"] == "broker"
    server.start()
    awaited(address, 'penstock_monitor_up{source="broker"} 1.0')
    assert monitor.expect("monitor_poll.recovered")["duration_s"] > 0
    monitor.signal(signal.SIGTERM)
    assert monitor.exit_code() == 0
    assert sum('"monitor_poll.failed"' in line for line in monitor.log_lines) == 1
    broker.close()


def test_a_stop_does_not_wait_for_a_hanging_redis(here: Path, proxy: FaultProxy, monitors: list[Process]) -> None:
    (here / "penstock.toml").write_text(
        f'broker = {json.dumps(proxy.url)}\n[metrics]\nmonitor_address = "127.0.0.1:0"\nmonitor_every = 1\n'
    )
    monitors.append(monitor := Process(here, "admin", "monitor", "shop:app"))
    address = monitor.expect("monitor.started")["address"]
    awaited(address, 'penstock_monitor_up{source="broker"} 1.0')
    proxy.hold(b"EVALSHA").wait()  # a poll is running, and hangs
    monitor.signal(signal.SIGTERM)
    assert monitor.exit_code() == 0
    assert not any('"monitor_poll.failed"' in line for line in monitor.log_lines), (
        "the stop did not wait for the poll to end"
    )


def test_an_idle_queue_costs_few_commands(redis_server: RedisServer, tmp_path: Path) -> None:
    queues = ["orders", "mails", "bills"]
    broker = RedisStreamsBroker(redis_server.url, holder="test")
    for queue in queues:
        broker.send(queue, [Outgoing(body=b"1")])
    app = App(settings=Settings.model_construct(broker=redis_server.url, data_dir=str(tmp_path)))
    for queue in queues:
        app.handler(queue, name=f"take {queue}")(print)
    clock = FakeClock()
    monitor = Monitor(monitor_targets(app, clock=clock), clock=clock, emit=ignore)
    monitor.measure()
    before = scripts_called(redis_server)
    minutes = 5
    for _ in range(minutes * 3):
        clock.advance(20)
        assert monitor.measure().up == {"broker": True}
    cost = (scripts_called(redis_server) - before) / minutes / len(queues)
    assert 3 <= cost <= COMMANDS_MAX
    app.close()
    broker.close()


def scripts_called(server: RedisServer) -> int:
    """Return the number of scripts called: all commands of the monitor, but for a few in five minutes."""
    stats = server.client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name in ("cmdstat_evalsha", "cmdstat_hmget"))


def test_whether_a_queue_is_empty_is_one_script_that_reads_no_messages(redis_server: RedisServer) -> None:
    broker = RedisStreamsBroker(redis_server.url, holder="test")
    broker.send("q", [Outgoing(body=b"1"), Outgoing(body=b"2"), Outgoing(body=b"3", delay_seconds=60.0)])
    (delivery,) = broker.receive("q", messages_max=1, lease_seconds=60.0)
    broker.stats("q")  # sweeps, which is due at the first call
    before, reads = scripts_called(redis_server), message_reads(redis_server)
    assert not broker.is_empty("q")
    assert (scripts_called(redis_server) - before, message_reads(redis_server) - reads) == (1, 0)
    broker.settle([(delivery, Ack())])
    broker.close()


def message_reads(server: RedisServer) -> int:
    """Return the number of commands that read waiting, delivered or delayed messages."""
    stats = server.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("lindex", "lrange", "xrange", "zrange"))

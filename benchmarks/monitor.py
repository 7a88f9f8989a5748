"""Measure the cost of monitoring while nothing happens: broker commands, and CPU time.

    python -m benchmarks.monitor [--seconds 60] [--queues 5] [--only redis|sqlite|sqs]

Runs the real process with its default settings on queues that hold one message each, with its own server. Redis counts
the commands itself: those that the monitor sends, and all that they execute, scripts included. CPU time is that of the
process, from /proc, over the wall time. On SQS (a server in this process, by moto), requests are counted for five
minutes of a simulated clock. A queue with its DLQ and final DLQ counts as one queue.
"""

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing

SETTLE_SECONDS = 5.0  # the cost of the start does not count
APP = """
from penstock import App

app = App.from_config()

def take(message):
    pass

for n in range({queues}):
    app.handler(f"queue-{{n}}", name=f"take-{{n}}")(take)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--queues", type=int, default=5)
    parser.add_argument("--only", choices=("redis", "sqlite", "sqs"))
    asked = parser.parse_args()
    for name, measure in (("sqlite", on_sqlite), ("redis", on_redis), ("sqs", on_sqs)):
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder), asked.queues, asked.seconds)


def on_sqlite(folder: Path, queues: int, seconds: float) -> None:
    broker = SqliteBroker(folder / "queue.db", holder="bench")
    fill(broker, queues)
    broker.close()
    with monitor(folder, f"sqlite:///{folder / 'queue.db'}", queues) as pid:
        share = processor_share(pid, lambda: time.sleep(seconds))
    print(f"sqlite: {queues} queues, {share:.2%} of a core")


def on_redis(folder: Path, queues: int, seconds: float) -> None:
    import redis

    program = shutil.which("redis-server")
    if program is None:
        print("redis: left out, there is no redis-server here")
        return
    socket = folder / "redis.sock"
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        client: Any = redis.Redis(unix_socket_path=str(socket))
        until_there(client)
        address = f"unix://{socket}"
        broker = RedisStreamsBroker(address, holder="bench")
        fill(broker, queues)
        broker.close()
        with monitor(folder, address, queues) as pid:
            before = commands(client)
            share = processor_share(pid, lambda: time.sleep(seconds))
            sent, done = (
                (now - then) * 60 / seconds / queues for now, then in zip(commands(client), before, strict=True)
            )
        print(
            f"redis: {queues} queues, {sent:.1f} commands a minute and queue ({done:.0f} with what scripts do inside), "
            f"{share:.2%} of a core"
        )
    finally:
        server.terminate()
        server.wait(10)


def on_sqs(folder: Path, queues: int, seconds: float) -> None:  # noqa: ARG001 - its clock is moved, so it takes no time
    from penstock.app.app import App
    from penstock.app.jobs.monitor.monitor import Monitor, monitor_targets
    from penstock.brokers.sqs import SqsBroker
    from penstock.config import Settings
    from penstock.events import ignore
    from penstock.messaging.broker import QueueSettings
    from penstock.testing import FakeClock

    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        print("sqs: left out, moto is not installed here")
        return
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}
    server = ThreadedMotoServer(port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = Settings.model_construct(
            broker="sqs://eu-west-1", aws_endpoint_url=f"http://{host}:{port}", data_dir=str(folder)
        )
        names = [f"queue-{n}" for n in range(queues)]
        aws = settings.aws.__class__(region="eu-west-1", endpoint_url=settings.aws_endpoint_url)
        broker = SqsBroker(aws, holder="bench", queues=[QueueSettings(name=name) for name in names])
        fill(broker, queues)
        app = App(settings=settings)
        for name in names:
            app.handler(name, name=f"take-{name}")(print)
        clock = FakeClock()
        asked: list[str] = []

        def note(event_name: str, **_: object) -> None:
            asked.append(event_name)

        aws.session().events.register("before-send", note)
        monitor = Monitor(monitor_targets(app, clock=clock), clock=clock, emit=ignore)
        monitor.measure()
        asked.clear()
        for n in range(15):
            clock.advance(settings.metrics_monitor_every)
            sample = monitor.measure()
            assert sample.up == {"broker": True, "cloudwatch": True}, (n, sample.errors)
        cloudwatch = sum(".cloudwatch." in name for name in asked)
        print(
            f"sqs: {queues} queues, {(len(asked) - cloudwatch) / 5 / queues:.1f} requests a minute and queue, and "
            f"{cloudwatch / 5:g} a minute to CloudWatch for all"
        )
        app.close()
        broker.close()
    finally:
        server.stop()


def fill(broker: Broker, queues: int) -> None:
    for n in range(queues):
        broker.send(f"queue-{n}", [Outgoing(body=b"1")])


@contextmanager
def monitor(folder: Path, address: str, queues: int) -> Iterator[int]:
    """Start the monitor, wait for its first measurement, and return its process id."""
    (folder / "bench.py").write_text(APP.format(queues=queues))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        "PENSTOCK_BROKER": address,
        "PENSTOCK_METRICS_MONITOR_ADDRESS": "127.0.0.1:0",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "admin", "monitor", "bench:app"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    assert b"monitor.started" in child.stderr.readline(), "it did not start"
    try:
        time.sleep(SETTLE_SECONDS)
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(10)
        child.stderr.close()


def processor_share(pid: int, wait: Callable[[], None]) -> float:
    began_at, before = time.monotonic(), processor_seconds(pid)
    wait()
    return (processor_seconds(pid) - before) / (time.monotonic() - began_at)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def commands(client: Any) -> tuple[int, int]:
    """Return the number of commands from clients and of all commands, scripts included, without our own INFO calls."""
    stats = client.info("commandstats")
    total = sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info",))
    inside = sum(one["calls"] for name, one in stats.items() if name not in SENT and name != "cmdstat_info")
    return total - inside, total


SENT = frozenset({"cmdstat_evalsha", "cmdstat_eval", "cmdstat_script|load", "cmdstat_hmget", "cmdstat_ping"})


def until_there(client: Any) -> None:
    for _ in range(100):
        with suppress(Exception):
            client.ping()
            return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()

"""Queues: the cost of calls by the number of waiting messages, and by the number of groups that these belong to.

A round sends 100 messages, to each group in turn, and receives and acks as many, so the number of waiting messages
stays the same. CPU time is that of the client, and on Redis also that of the server.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.services.redis_server import RedisServer, redis_program

from benchmarks.broker import BODY
from benchmarks.growth.curves import Curve, Series
from penstock.brokers.redis.broker import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack

_AT_ONCE = 100
_FILL_AT_ONCE = 5_000
_ROUNDS = 100
_QUEUE = "growth"
_GROUPED = 100_000  # waiting messages of the curves by groups, at least as many as groups
_UNITS = {"send": "message", "receive": "message", "ack": "message", "empty?": "call", "stats": "call"}

_Cpu = Callable[[], float]  # returns the CPU seconds of a broker's server
_Opened = AbstractContextManager[tuple[Broker, _Cpu]]


def measure_queue(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    """Measure by the number of waiting messages, all without a group."""
    series = _series("queue")
    for size in sizes:
        for name, broker, cpu in _brokers(folder / f"queue-{size}"):
            _fill(broker, size, groups=0)
            _rounds(series, name, broker, cpu, groups=0)
        series.done(size)
    return series.curves()


def measure_groups(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    """Measure by the number of groups with waiting messages, of which there are always 100,000."""
    series = _series("groups")
    for size in sizes:
        for name, broker, cpu in _brokers(folder / f"groups-{size}"):
            _fill(broker, max(size, _GROUPED), groups=size)
            _rounds(series, name, broker, cpu, groups=size)
        series.done(size)
    return series.curves()


def _series(part: str) -> Series:
    return Series(part, {f"{call}, {name}": unit for name in _BROKERS for call, unit in _UNITS.items()})


def _fill(broker: Broker, count: int, *, groups: int) -> None:
    numbers = iter(range(count))
    while some := list(itertools.islice(numbers, _FILL_AT_ONCE)):
        broker.send(_QUEUE, [_message(number, groups) for number in some])


def _rounds(series: Series, name: str, broker: Broker, cpu: _Cpu, *, groups: int) -> None:
    """Send before receiving, so that a receive finds messages in an empty queue, too."""
    measured = partial(series.of, more=cpu)
    numbers = itertools.count()
    for _ in range(_ROUNDS):
        messages = [_message(number, groups) for number in itertools.islice(numbers, _AT_ONCE)]
        with measured(f"send, {name}", _AT_ONCE):
            broker.send(_QUEUE, messages)
        with measured(f"receive, {name}", _AT_ONCE):
            deliveries = broker.receive(_QUEUE, messages_max=_AT_ONCE, lease_seconds=600)
        assert len(deliveries) == _AT_ONCE
        with measured(f"stats, {name}"):
            broker.stats(_QUEUE)
        with measured(f"empty?, {name}"):
            assert not broker.is_empty(_QUEUE)
        with measured(f"ack, {name}", _AT_ONCE):
            assert not broker.settle([(delivery, Ack()) for delivery in deliveries])


def _message(number: int, groups: int) -> Outgoing:
    return Outgoing(body=BODY, group=f"tenant-{number % groups}" if groups else None)


def _brokers(folder: Path) -> Iterator[tuple[str, Broker, _Cpu]]:
    """Yield each broker with an empty queue, one after another."""
    folder.mkdir()
    for name, opened in _BROKERS.items():
        with opened(folder / name) as (broker, cpu):
            yield name, broker, cpu


@contextmanager
def _sqlite(file: Path) -> Iterator[tuple[Broker, _Cpu]]:
    broker = SqliteBroker(file, holder="growth")
    yield broker, float
    broker.close()


@contextmanager
def _redis(folder: Path) -> Iterator[tuple[Broker, _Cpu]]:
    server = RedisServer(folder=folder).start()
    broker = RedisStreamsBroker(server.url, holder="growth")

    def cpu_seconds() -> float:
        found = server.client.info("cpu")
        return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])

    try:
        yield broker, cpu_seconds
        broker.close()
    finally:
        server.close()


_BROKERS: Mapping[str, Callable[[Path], _Opened]] = {
    "SQLite": _sqlite,
    **({"Redis": _redis} if redis_program("7.0") is not None else {}),
}

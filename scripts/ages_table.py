"""Write the series of ages into docs/why/ages.md: three experiments with a message that always fails.

Usage: python -m scripts.ages_table, which `make docs` does.

The conformance suite runs the same experiments on every broker, with clocks that the tests move.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from scripts.made_tables import DOCS, rewritten

from penstock.brokers.memory.broker import MemoryBroker
from penstock.messaging.broker import Broker, QueueSettings, QueueStats
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack
from penstock.testing import FakeClock

PAGE = DOCS / "why" / "ages.md"
QUEUE, LETTERS = "q", "q-dlq"
LEASE_SECONDS, MINUTE = 120.0, 60.0
POISON, HEALTHY = b"poison", b"healthy"
MINUTES = 20  # of the table
TITLES = ("(a) poison alone", "(b) beside healthy ones", "(c) the same, no redrive")  # of the experiments


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One receive at a time, with a lease of 120 s. The poison message is never acked; a healthy one, if there are any,
    is sent each minute and takes a minute."""

    healthy: bool
    receives_max: int | None

    @property
    def queue(self) -> QueueSettings:
        return QueueSettings(name=QUEUE, receives_max=self.receives_max)


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "a": Experiment(healthy=False, receives_max=6),
        "b": Experiment(healthy=True, receives_max=6),
        "c": Experiment(healthy=True, receives_max=None),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The ages after that many minutes, when the minute's healthy message is acked."""

    minute: int
    begun: int  # deliveries of the poison message so far
    queue: QueueStats
    dlq: QueueStats


def run(experiment: Experiment, broker: Broker, advance: Callable[[float], None]) -> Iterator[Minute]:
    """Yield the ages minute by minute, endlessly."""
    broker.send(QUEUE, [Outgoing(body=POISON)])
    minute, begun = 0, 0
    while True:
        if experiment.healthy:
            broker.send(QUEUE, [Outgoing(body=HEALTHY)])
        held = broker.receive(QUEUE, messages_max=1, lease_seconds=LEASE_SECONDS)
        while held and held[0].message.body == POISON:  # it fails at once, and the next is received
            begun += 1
            held = broker.receive(QUEUE, messages_max=1, lease_seconds=LEASE_SECONDS)
        advance(MINUTE)
        minute += 1
        if failures := broker.settle([(delivery, Ack()) for delivery in held]):
            raise RuntimeError(f"an ack failed: {failures}")
        yield Minute(minute=minute, begun=begun, queue=broker.stats(QUEUE), dlq=broker.stats(LETTERS))


def series() -> Mapping[str, Sequence[Minute]]:
    """Return the ages of each experiment, on a queue in memory."""
    found = {}
    for name, experiment in EXPERIMENTS.items():
        clock = FakeClock()
        broker = MemoryBroker(clock=clock, queues=[experiment.queue])
        found[name] = list(islice(run(experiment, broker, clock.advance), MINUTES))
        broker.close()
    return found


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), series()), encoding="utf-8")


def written(page: str, found: Mapping[str, Sequence[Minute]]) -> str:
    """Return the page with a new table."""
    return rewritten(page, script="ages_table", table=table(found))


def table(found: Mapping[str, Sequence[Minute]]) -> str:
    titles = ("minute", "failed deliveries, in (c)", *TITLES)
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for at in range(MINUTES):
        minutes = [found[name][at] for name in EXPERIMENTS]
        failed = minutes[-1].minute // int(LEASE_SECONDS / MINUTE)  # each ends with its lease
        lines.append(f"| {minutes[0].minute} | {failed} | {' | '.join(map(_cell, minutes))} |")
    return "".join(f"{line}\n" for line in lines)


def _cell(minute: Minute) -> str:
    stats = minute.queue
    where = "in flight" if stats.in_flight else "visible" if stats.visible else "gone to the dead letters"
    return f"{stats.oldest_message_age_seconds:g} s, {where}"


if __name__ == "__main__":
    main()

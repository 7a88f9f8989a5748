"""Write the table of what brokers can do into docs/run/brokers.md, from what each says of itself.

Usage: python -m scripts.broker_table, which `make docs` does.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.made_tables import DOCS, rewritten

from penstock.brokers.memory import MemoryBroker
from penstock.brokers.redis_streams import RedisStreamsBroker
from penstock.brokers.sqlite import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker, Capabilities
from penstock.storage.aws import Aws

PAGE = DOCS / "run" / "brokers.md"
ROWS = {
    "delay_seconds_max": "the longest delay of a message",
    "hold_seconds_max": "the longest delay of a message that is released",
    "lease_seconds_max": "the longest lease of one call; extending has no end but on SQS",
    "body_bytes_max": "the largest body",
    "receive_max": "messages in one call, at most",
    "fenced": "a worker that lost its lease can neither settle nor extend",
    "refunds": "work that is given back costs no attempt",
    "deduplicates": "a second message of a deduplication id is dropped",
    "browsable": "messages can be looked at where they wait",
    "remembers_attempts": "a function is told of the attempt before",
    "pausable": "queues can be paused",
    "creates_queues": "a queue is there once it is named",
    "ordered": "the older message comes first, and groups take turns",
    "exact_stats": "counts are right at any moment, and ages are told",
    "explains_deaths": "what the broker itself gives up on says why",
    "looks_cost": "asking an empty queue has its price",
    "settle_batch": "acks worth waiting for, to end them in one request",
    "settle_linger_seconds": "how long an ack may wait for others",
    "system": "what traces call it",
}


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), capabilities()), encoding="utf-8")


def capabilities() -> Mapping[str, Capabilities]:
    """Of every broker, by the form of its address. None of them is connected to."""
    with TemporaryDirectory() as folder:
        brokers: dict[str, Broker] = {
            "`sqlite:///`": SqliteBroker(Path(folder) / "queue.db", holder="docs"),
            "`redis://`": RedisStreamsBroker("redis://localhost", holder="docs"),
            "`sqs://`": SqsBroker(Aws(region="eu-west-1"), holder="docs"),
            "`memory://`": MemoryBroker(),
        }
        found = {name: broker.capabilities for name, broker in brokers.items()}
        for broker in brokers.values():
            broker.close()
    return found


def written(page: str, found: Mapping[str, Capabilities]) -> str:
    """The page with its table made anew."""
    return rewritten(page, script="broker_table", table=table(found))


def table(found: Mapping[str, Capabilities]) -> str:
    lines = [f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for field in dataclasses.fields(Capabilities):
        cells = [_cell(field.name, getattr(one, field.name)) for one in found.values()]
        lines.append(f"| {ROWS[field.name]} (`{field.name}`) | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"`{value}`"
    assert isinstance(value, int | float)
    if name == "settle_linger_seconds":
        return f"{value:g} s"
    if name.endswith("_seconds_max"):
        size, unit = next(
            (size, unit) for size, unit in ((86_400, "days"), (3_600, "hours"), (1, "s")) if value >= size
        )
        return f"{value / size:,.4g} {unit}"
    if name.endswith("_bytes_max"):
        return f"{value / 1024**2:,.4g} MiB" if value >= 1024**2 else f"{value / 1024:,.4g} KiB"
    return f"{value:,}"


if __name__ == "__main__":
    main()

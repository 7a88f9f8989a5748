"""Write the table of the brokers' capabilities into docs/run/brokers.md.

Usage: python -m scripts.broker_table, which `make docs` does.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.made_tables import DOCS, rewritten

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker, BrokerCapabilities
from penstock.storage.aws import Aws

PAGE = DOCS / "run" / "brokers.md"
ROWS = {
    "delay_seconds_max": "the longest delay of a message",
    "release_delay_seconds_max": "the longest delay of a message that is released",
    "lease_seconds_max": "the longest lease of one call; extensions are unlimited except on SQS",
    "body_bytes_max": "the largest body",
    "receive_max": "messages per receive call, at most",
    "fenced": "a worker that lost its lease can neither settle nor extend",
    "releases_uncounted": "released work is not counted as an attempt",
    "deduplicates": "a second message with the same deduplication id is dropped",
    "browsable": "messages can be listed without receiving them",
    "remembers_attempts": "a handler sees the previous attempt",
    "pausable": "queues can be paused",
    "creates_queues": "queues are created on first use",
    "ordered": "the older message comes first, and groups take turns",
    "exact_stats": "counts are exact, and ages are known",
    "explains_deaths": "messages that the broker itself dead-letters have a reason",
    "polls_are_billed": "polling an empty queue costs money",
    "stats_are_billed": "reading the counts of a queue costs money",
    "settle_batch": "acks that are collected for one request",
    "settle_linger_seconds": "how long an ack may wait for others",
    "system": "its name in traces",
    "is_local": "only this host can use it",
    "in_process": "only this process can use it",
}

_UNITS: Mapping[str, Mapping[int, str]] = {  # by the last word of a name: sizes, the largest first
    "seconds": {86_400: "days", 3_600: "hours", 1: "s"},
    "bytes": {1024**2: "MiB", 1024: "KiB", 1: "bytes"},
    "days": {1: "days"},
}


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), capabilities()), encoding="utf-8")


def capabilities() -> Mapping[str, BrokerCapabilities]:
    """Return the capabilities of every broker, by the form of its address, without connecting."""
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


def written(page: str, found: Mapping[str, BrokerCapabilities]) -> str:
    """Return the page with a new table."""
    return rewritten(page, script="broker_table", table=table(found))


def table(found: Mapping[str, BrokerCapabilities]) -> str:
    lines = [f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for field in dataclasses.fields(BrokerCapabilities):
        cells = [_cell(field.name, getattr(one, field.name)) for one in found.values()]
        lines.append(f"| {ROWS[field.name]} (`{field.name}`) | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def _cell(name: str, value: object) -> str:
    """Return a value with the unit that the capability's name ends with; without one, it is a plain count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"`{value}`"
    assert isinstance(value, int | float)
    unit = name.removesuffix("_max").rpartition("_")[2]
    sizes = _UNITS.get(unit, {1: ""})
    size = next((size for size in sizes if value >= size), 1)
    return f"{value / size:,.10g} {sizes[size]}".rstrip()


if __name__ == "__main__":
    main()

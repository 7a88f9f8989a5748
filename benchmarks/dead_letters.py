"""Measure the dead-letter commands on many dead letters, on the embedded queue and Redis.

    python -m benchmarks.dead_letters [--letters 100000] [--only sqlite|redis]

Writes dead letters of three errors, each with a traceback and four attempts. Then measures time and peak memory, each
in a separate process: the first page of the list, groups (until the first counts are available, and until all are
exact), a filter over all of them, and the replay of 1,000 that a filter selects, with record and audit. The time begins
when the process has opened broker and ledger.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from penstock.app.scope import Scope
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import load_settings
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.messaging.broker import Broker
from penstock.messaging.death import AttemptRecord, Death, with_death
from penstock.messaging.message import Outgoing
from penstock.operations.dead_letters.actions import ReplayOperation, ReplayOptions
from penstock.operations.dead_letters.selection import (
    DeadLetterSelection,
    grouped,
    opened_ledger,
    select_dead_letters,
    select_in_queue,
)
from penstock.operations.inspection import ScopeView, view

QUEUE, DEAD = "orders", "orders-dlq"
ERRORS, REPLAYED, PAGE_SHOWN, AT_ONCE = 3, 1_000, 100, 5_000
BODY = b'{"id": 1, "items": [{"sku": "a-1", "count": 2}], "note": "' + b"x" * 150 + b'"}'
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/orders/step{n}.py", line {n}, in step{n}\n    return following(order)\n' for n in range(12)
)
MEASURED = ("list", "groups", "filter", "replay")


def death(number: int) -> Death:
    """Return a dead letter as a worker writes it, of about two kilobytes."""
    attempt = AttemptRecord(
        started_at=1.7e9, ended_at=1.7e9 + 1, worker="host-12-01ABC", end="failed", reason="KeyError: 7"
    )
    return Death(
        reason=f"KeyError: 'order {number}'",
        exception=f"KeyError: 'order {number}'",
        traceback=TRACEBACK,
        attempts=4,
        last_failed_at=1.7e9,
        worker="host-12-01ABC",
        queue=QUEUE,
        message_id=f"q-{number}",
        enqueued_at=1.7e9,
        fingerprint=f"bill|KeyError|orders/step.py:step{number % ERRORS}",
        handler="bill",
        tries=(attempt,) * 4,
    )


def add_dead_letters(broker: Broker, count: int) -> None:
    broker.send(QUEUE, [Outgoing(body=b"0")])  # creates the queue
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        broker.send(DEAD, [Outgoing(body=BODY, attributes=with_death({"trace": "t"}, death(n))) for n in numbers])


def measured(name: str) -> dict[str, float]:
    """Measure in this process, with the broker of its environment."""
    with view(Scope(settings=load_settings())) as seen:
        seen.broker.stats(DEAD)
        found = {"list": _list, "groups": _groups, "filter": _filter, "replay": _replay}[name](seen)
    return {**found, "peak MB": _peak_mb()}


def _list(seen: ScopeView) -> dict[str, float]:
    def first_page() -> None:
        with closing(select_in_queue(seen.broker, DEAD, DeadLetterFilter())) as found:
            assert len([dead_letter.death for dead_letter in islice(found, PAGE_SHOWN)]) == PAGE_SHOWN

    return {"first page": _seconds(first_page)}


def _groups(seen: ScopeView) -> dict[str, float]:
    began_at = time.perf_counter()
    first: list[float] = []
    grouping = grouped(seen, DeadLetterSelection(), first=lambda _: first.append(time.perf_counter() - began_at))
    assert len(grouping.groups()) == ERRORS
    exact = time.perf_counter() - began_at
    return {"first page": min([*first, exact]), "exact": exact, "letters": grouping.dead_letters}


def _filter(seen: ScopeView) -> dict[str, float]:
    def look() -> None:
        with closing(
            select_dead_letters(seen, DeadLetterSelection(wanted=DeadLetterFilter(error="nothing of the kind")))
        ) as found:
            assert next(found, None) is None

    return {"all letters": _seconds(look)}


def _replay(seen: ScopeView) -> dict[str, float]:
    asked = DeadLetterSelection(wanted=DeadLetterFilter(error=f"step{ERRORS - 1}"), limit=REPLAYED)

    def replay() -> None:
        with closing(opened_ledger(seen)) as ledger:
            doing = ReplayOperation(
                seen, asked, ReplayOptions(), ledger=ledger, stopped=lambda: False, on_progress=lambda _: None
            )
            assert doing.run(say=print).sent == REPLAYED

    return {f"{REPLAYED:,} sent": _seconds(replay)}


def _peak_mb() -> float:
    """Return this process's peak memory; on Linux `getrusage` would report the parent's if that is higher."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (peak,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak) / 1024


def _seconds(doing: Callable[[], None]) -> float:
    began_at = time.perf_counter()
    doing()
    return time.perf_counter() - began_at


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    socket = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", "", "--appendonly", "no")
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 20
        while not socket.exists():
            assert time.monotonic() < give_up, "redis-server did not start"
            time.sleep(0.05)
        yield f"unix://{socket}"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def brokers(kind: str, folder: Path) -> Iterator[tuple[Broker, str]]:
    if kind == "sqlite":
        with closing(SqliteBroker(folder / "queue.db", holder="bench")) as broker:
            yield broker, f"sqlite:///{folder / 'queue.db'}"
        return
    with redis_server(folder) as url, closing(RedisStreamsBroker(url, holder="bench")) as broker:
        yield broker, url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--only", choices=("sqlite", "redis"))
    parser.add_argument("--measure", choices=MEASURED, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure)))
        return
    for kind in ("sqlite", "redis") if given.only is None else (given.only,):
        with tempfile.TemporaryDirectory() as folder, brokers(kind, Path(folder)) as (broker, url):
            add_dead_letters(broker, given.letters)
            print(f"{kind}: {given.letters:,} dead letters")
            environment = {
                **os.environ,
                "PENSTOCK_BROKER": url,
                "PENSTOCK_LEDGER": f"sqlite:///{Path(folder) / 'ledger.db'}",
                "PENSTOCK_DATA_DIR": folder,
            }
            for name in MEASURED:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.dead_letters", "--measure", name],
                    env=environment,
                    capture_output=True,
                    check=True,
                    text=True,
                )
                figures = ", ".join(f"{name} {value:,.2f}" for name, value in json.loads(done.stdout).items())
                print(f"  {name:<8} {figures}")


if __name__ == "__main__":
    main()

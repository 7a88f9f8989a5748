"""Measure the history of the dashboard's charts: its size after two weeks, and the time of a write and of a read.

    python -m benchmarks.history [--queues 1000] [--busy 0.2] [--busy 1]

Fills a history with the samples that two weeks leave behind: ten minutes apart, then a minute for the last day, then
ten seconds for the last hour. A share ``--busy`` of the queues has random values, which compress worst; the others are
idle.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.app.history.history import HistoryReader, HistoryWriter
from penstock.app.history.points import HistorySample, QueuePoint, SeriesKind
from penstock.app.history.ring import RINGS, HistoryRange
from penstock.events import Event

START = 1_700_000_400.0
END = START + RINGS[-1].kept_seconds
IDLE = QueuePoint(
    visible=0,
    in_flight=0,
    delayed=0,
    oldest_visible_age_seconds=0,
    dead_letters=3,
    settled_per_second=0,
    arrived_per_second=0,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--busy", type=float, action="append", help="share of the queues; may be repeated")
    asked = parser.parse_args()
    for busy in asked.busy or [0.2, 1.0]:
        with tempfile.TemporaryDirectory() as folder:
            measure(folder, asked.queues, busy)


def measure(folder: str, queues: int, busy: float) -> None:
    names, rolled = [f"queue-{number}" for number in range(queues)], random.Random(1)
    is_busy = [rolled.random() < busy for _ in names]
    writer, took_seconds = HistoryWriter(folder, emit=refuse), list[float]()
    for at in times():
        sample = HistorySample(
            at=at,
            queues={name: point(rolled) if moves else IDLE for name, moves in zip(names, is_busy, strict=True)},
        )
        began = time.perf_counter()
        writer.write(sample)
        took_seconds.append(time.perf_counter() - began)
    last = took_seconds[-300:]  # in slots of ten seconds, as a monitor writes them
    megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
    print(f"{queues:,} queues, {busy:.0%} of them busy: {megabytes:.0f} MB, {shown(last)} for a write")
    reader = HistoryReader(folder, measured_every_seconds=20)
    for range_ in HistoryRange:
        print(f"  a chart of {range_}: {shown([read(reader, name, range_) for name in names[:20]])}")


def times() -> Iterator[float]:
    at = START
    while at < END:
        yield at
        at += next(ring.slot_seconds for ring in RINGS if END - at <= ring.kept_seconds)


def point(rolled: random.Random) -> QueuePoint:
    return QueuePoint(
        visible=rolled.randrange(100_000),
        in_flight=rolled.randrange(100),
        delayed=rolled.randrange(50),
        oldest_visible_age_seconds=rolled.random() * 300,
        dead_letters=rolled.randrange(20),
        settled_per_second=rolled.random() * 50,
        arrived_per_second=rolled.random() * 50,
    )


def read(reader: HistoryReader, name: str, range_: HistoryRange) -> float:
    began = time.perf_counter()
    assert reader.chart(SeriesKind.QUEUE, name, range_, at=END).times
    return time.perf_counter() - began


def shown(took_seconds: Sequence[float]) -> str:
    return f"{statistics.median(took_seconds) * 1e3:.1f} ms"


def refuse(event: Event) -> None:
    raise RuntimeError(str(event))


if __name__ == "__main__":
    main()

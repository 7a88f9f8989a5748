"""Meters written by several threads at once lose no count."""

import threading
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.monitoring.metrics.meters import NOTHING_READ, THREADS_CHECK, Meters, Reading, changes

DEADLINE_SECONDS = 60.0
SERIES_MAX = 3
WRITES = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 3)), min_size=1, max_size=60)


@given(st.lists(WRITES, min_size=2, max_size=4))
@settings(max_examples=30, deadline=None)
def test_changes_between_readings_include_each_count_once(
    plans: Sequence[Sequence[tuple[str, int]]],
) -> None:
    meters = Meters(series_max=SERIES_MAX)
    start, written = threading.Barrier(len(plans) + 1), threading.Event()
    readings: list[Reading] = []

    def write(plan: Sequence[tuple[str, int]]) -> None:
        start.wait(DEADLINE_SECONDS)
        for queue, amount in plan:
            meters.count("messages_received_total", (queue,), amount)
            meters.observe("handler_duration_seconds", (queue, "h", "finished"), float(amount))

    def read() -> None:
        start.wait(DEADLINE_SECONDS)
        while not written.is_set():
            readings.append(meters.read())

    writers = [threading.Thread(target=write, args=(plan,)) for plan in plans]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join(DEADLINE_SECONDS)
    written.set()
    reader.join(DEADLINE_SECONDS)
    readings.append(meters.read())

    total = sum(amount for plan in plans for _, amount in plan)
    counted, summed, seen = 0.0, 0.0, 0
    for before, now in zip((NOTHING_READ, *readings), readings, strict=False):
        changed = changes(before, now, meters.catalogue)
        assert all(amount > 0 for amount in changed.values["messages_received_total"].values())
        counted += sum(changed.values["messages_received_total"].values())
        summed += sum(each.sum for each in changed.distributions["handler_duration_seconds"].values())
        seen += sum(each.count for each in changed.distributions["handler_duration_seconds"].values())
    assert (counted, summed, seen) == (total, total, sum(map(len, plans)))
    series = meters.read().values["messages_received_total"]
    assert len(series) <= SERIES_MAX + 1
    expected = Counter[str]()
    for plan in plans:
        for queue, amount in plan:
            expected[queue] += amount
    assert {queue: amount for (queue,), amount in series.items() if queue != "other"}.items() <= expected.items()


def test_counts_of_ended_threads_are_kept_and_their_meters_merged() -> None:
    meters = Meters()
    for number in range(THREADS_CHECK * 3):
        thread = threading.Thread(target=meters.count, args=("messages_received_total", (f"q{number % 2}",)))
        thread.start()
        thread.join(DEADLINE_SECONDS)
    assert len(meters._threads) <= THREADS_CHECK, "the counts of ended threads are merged"
    assert meters.read().values["messages_received_total"] == {("q0",): 150.0, ("q1",): 150.0}
    assert len(meters._threads) <= 1, "the last thread may still be ending"

"""Meters under threads: whatever is written at the same time, every count is there in the end."""

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
def test_no_count_is_lost_and_none_is_told_twice(
    plans: Sequence[Sequence[tuple[str, int]]],
) -> None:
    meters = Meters(series_max=SERIES_MAX)
    began, over = threading.Barrier(len(plans) + 1), threading.Event()
    looks: list[Reading] = []

    def write(plan: Sequence[tuple[str, int]]) -> None:
        began.wait(DEADLINE_SECONDS)
        for queue, amount in plan:
            meters.count("messages_received_total", (queue,), amount)
            meters.observe("handler_duration_seconds", (queue, "h", "finished"), float(amount))

    def look() -> None:
        began.wait(DEADLINE_SECONDS)
        while not over.is_set():
            looks.append(meters.read())

    writers = [threading.Thread(target=write, args=(plan,)) for plan in plans]
    reader = threading.Thread(target=look)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join(DEADLINE_SECONDS)
    over.set()
    reader.join(DEADLINE_SECONDS)
    looks.append(meters.read())

    total = sum(amount for plan in plans for _, amount in plan)
    counted, summed, seen = 0.0, 0.0, 0
    for before, now in zip((NOTHING_READ, *looks), looks, strict=False):
        fresh = changes(before, now, meters.catalogue)
        assert all(amount > 0 for amount in fresh.values["messages_received_total"].values())
        counted += sum(fresh.values["messages_received_total"].values())
        summed += sum(each.sum for each in fresh.distributions["handler_duration_seconds"].values())
        seen += sum(each.count for each in fresh.distributions["handler_duration_seconds"].values())
    assert (counted, summed, seen) == (total, total, sum(map(len, plans)))
    series = meters.read().values["messages_received_total"]
    assert len(series) <= SERIES_MAX + 1
    wanted = Counter[str]()
    for plan in plans:
        for queue, amount in plan:
            wanted[queue] += amount
    assert {queue: amount for (queue,), amount in series.items() if queue != "other"}.items() <= wanted.items()


def test_what_threads_counted_outlasts_them_and_they_leave_nothing_else() -> None:
    meters = Meters()
    for number in range(THREADS_CHECK * 3):
        thread = threading.Thread(target=meters.count, args=("messages_received_total", (f"q{number % 2}",)))
        thread.start()
        thread.join(DEADLINE_SECONDS)
    assert len(meters._threads) <= THREADS_CHECK, "the counts of ended threads are merged"
    assert meters.read().values["messages_received_total"] == {("q0",): 150.0, ("q1",): 150.0}
    assert len(meters._threads) <= 1, "the last thread may be just ending"

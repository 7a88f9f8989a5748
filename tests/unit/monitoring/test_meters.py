"""Meters lose no count, and their series are bounded."""

import threading

import pytest

from penstock.monitoring.metrics.meters import Meters

DEADLINE_SECONDS = 60.0


def test_counts_are_kept_by_their_labels() -> None:
    meters = Meters()
    meters.count("messages_received_total", ("orders",))
    meters.count("messages_received_total", ("orders",), 4.0)
    meters.count("messages_received_total", ("mail",))
    assert meters.read().values["messages_received_total"] == {("orders",): 5.0, ("mail",): 1.0}


def test_a_value_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    meters = Meters()
    bounds = meters.catalogue["loop_lag_seconds"].bounds
    for value in (0.0, bounds[0], bounds[-1], bounds[-1] + 1.0):
        meters.observe("loop_lag_seconds", ("w1",), value)
    seen = meters.read().distributions["loop_lag_seconds"][("w1",)]
    assert (seen.counts[0], seen.counts[-2], seen.counts[-1]) == (2, 1, 1)
    assert seen.count == 4
    assert seen.sum == pytest.approx(bounds[0] + 2 * bounds[-1] + 1.0)


def test_a_gauge_has_only_the_series_of_its_last_replacement() -> None:
    meters = Meters()
    meters.replace("dead_letters", {("orders", "dlq"): 2.0, ("mail", "dlq"): 1.0})
    meters.replace("dead_letters", {("orders", "dead"): 3.0})
    assert meters.read().values["dead_letters"] == {("orders", "dead"): 3.0}


def test_series_beyond_the_maximum_are_counted_as_other() -> None:
    meters = Meters(series_max=2)
    for queue in ("a", "b", "c", "d", "a"):
        meters.count("settlement_failures_total", (queue, "ack"))
    assert meters.read().values["settlement_failures_total"] == {
        ("a", "ack"): 2.0,
        ("b", "ack"): 1.0,
        ("other", "ack"): 2.0,
    }


def test_labels_that_were_replaced_keep_their_series_after_the_maximum_is_reached() -> None:
    meters = Meters(series_max=2)
    odd = [("a\udc80", "ack"), ("b", "sent twice")]  # a lone surrogate, and an unlisted value
    for labels in (*odd, ("c", "ack"), *odd):
        meters.count("settlement_failures_total", labels)
    meters.replace("queue_messages", dict.fromkeys([*odd, ("c", "visible"), ("b", "unlisted")], 1.0))
    values = meters.read().values
    assert values["settlement_failures_total"] == {(r"a\udc80", "ack"): 2.0, ("b", "other"): 2.0, ("other", "ack"): 1.0}
    assert values["queue_messages"][("b", "other")] == 2.0


def test_a_reading_is_not_changed_by_later_counts() -> None:
    meters = Meters()
    meters.count("messages_received_total", ("orders",))
    reading = meters.read()
    meters.count("messages_received_total", ("orders",))
    assert reading.values["messages_received_total"] == {("orders",): 1.0}


@pytest.mark.parametrize("name", ["nothing_total", "dead_letters"])
def test_counting_an_unknown_name_or_a_gauge_raises(name: str) -> None:
    with pytest.raises(KeyError):
        Meters().count(name, ("orders",))


def test_threads_lose_no_count() -> None:
    meters, start = Meters(), threading.Barrier(4)

    def write() -> None:
        start.wait(DEADLINE_SECONDS)
        for _ in range(2_000):
            meters.count("messages_received_total", ("orders",))
            meters.observe("loop_lag_seconds", ("w1",), 0.5)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    reading = meters.read()
    assert reading.values["messages_received_total"] == {("orders",): 8_000.0}
    assert reading.distributions["loop_lag_seconds"][("w1",)].count == 8_000


def test_labels_counted_as_other_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    meters = Meters()
    meters.count("shutdowns_total", ("unlisted",))
    monkeypatch.setattr(meters, "_admitted", None)  # the method that takes the lock
    meters.count("shutdowns_total", ("unlisted",))
    assert meters.read().values["shutdowns_total"] == {("other",): 2.0}

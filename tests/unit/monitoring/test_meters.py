"""The meters: nothing is lost, and nothing grows without bound."""

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


def test_a_gauge_has_the_series_that_it_was_given_last_and_no_others() -> None:
    meters = Meters()
    meters.replace("dead_letters", {("orders", "dlq"): 2.0, ("mail", "dlq"): 1.0})
    meters.replace("dead_letters", {("orders", "dead"): 3.0})
    assert meters.read().values["dead_letters"] == {("orders", "dead"): 3.0}


def test_what_exceeds_the_bound_is_counted_where_everybody_sees_it() -> None:
    meters = Meters(series_max=2)
    for queue in ("a", "b", "c", "d", "a"):
        meters.count("settlement_failures_total", (queue, "ack"))
    assert meters.read().values["settlement_failures_total"] == {
        ("a", "ack"): 2.0,
        ("b", "ack"): 1.0,
        ("other", "ack"): 2.0,
    }


def test_what_is_counted_in_a_series_under_another_word_stays_there_when_the_bound_is_reached() -> None:
    meters = Meters(series_max=2)
    odd = [("a\udc80", "ack"), ("b", "sent twice")]  # half a character, and a word that is not on its label's list
    for labels in (*odd, ("c", "ack"), *odd):
        meters.count("settlement_failures_total", labels)
    meters.replace("queue_messages", dict.fromkeys([*odd, ("c", "visible"), ("b", "unheard of")], 1.0))
    values = meters.read().values
    assert values["settlement_failures_total"] == {(r"a\udc80", "ack"): 2.0, ("b", "other"): 2.0, ("other", "ack"): 1.0}
    assert values["queue_messages"][("b", "other")] == 2.0


def test_a_reading_is_not_changed_by_what_comes_after_it() -> None:
    meters = Meters()
    meters.count("messages_received_total", ("orders",))
    reading = meters.read()
    meters.count("messages_received_total", ("orders",))
    assert reading.values["messages_received_total"] == {("orders",): 1.0}


@pytest.mark.parametrize("name", ["nothing_total", "dead_letters"])
def test_a_name_that_is_no_counter_is_a_defect(name: str) -> None:
    with pytest.raises(KeyError):
        Meters().count(name, ("orders",))


def test_threads_lose_no_count() -> None:
    meters, began = Meters(), threading.Barrier(4)

    def write() -> None:
        began.wait(DEADLINE_SECONDS)
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


def test_labels_counted_as_other_are_found_once_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    meters = Meters()
    meters.count("shutdowns_total", ("unheard of",))
    monkeypatch.setattr(meters, "_admitted", None)  # what takes the lock
    meters.count("shutdowns_total", ("unheard of",))
    assert meters.read().values["shutdowns_total"] == {("other",): 2.0}

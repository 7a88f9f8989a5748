"""The contract of all brokers, run with each (`tests.conformance.broker_harnesses`)."""

from functools import partial
from typing import Any

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, bodies, outgoing, receive, waiting

from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement


def ordered(harness: BrokerHarness) -> Broker:
    """Return a broker whose groups take turns; skip the test for other brokers."""
    broker = harness.broker()
    if not broker.capabilities.ordered:
        pytest.skip("not applicable: this broker shares between groups as it likes")
    return broker


# --- sending and receiving


def test_a_message_is_delivered_unchanged(harness: BrokerHarness) -> None:
    broker = harness.broker()
    attributes: dict[str, str | bytes] = {
        "text": "héllo \U0001f600",
        "binary": b"\x00\xff",
        "empty": "",
        "['YQ==']": "['YQ==']",
    }
    (id,) = broker.send("q", [Outgoing(body=b"\x00\xffbody", attributes=attributes, group="tenant 1")])
    (delivery,) = receive(broker)
    assert delivery.message.id == id
    assert delivery.message.body == b"\x00\xffbody"
    assert dict(delivery.message.attributes) == attributes
    assert delivery.message.group == "tenant 1"
    assert delivery.message.enqueued_at == harness.clock.now() == delivery.received_at
    assert (delivery.queue, delivery.attempt) == ("q", 1)


def test_no_group_and_the_empty_group_are_different(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", [Outgoing(body=b"a"), Outgoing(body=b"b", group="")])
    assert [delivery.message.group for delivery in receive(broker)] == [None, ""]


def test_ids_are_returned_in_order_and_unique(harness: BrokerHarness) -> None:
    broker = harness.broker()
    ids = broker.send("q", outgoing("a", "b", "c"))
    assert [delivery.message.id for delivery in receive(broker)] == list(ids)
    assert len(set(ids)) == 3


def test_messages_are_received_oldest_first_up_to_the_requested_number(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a", "b", "c"))
    broker.send("q", outgoing("d"))
    assert bodies(receive(broker, 2)) == ["a", "b"]
    assert receive(broker, 0) == []
    assert bodies(receive(broker, 10)) == ["c", "d"]
    assert receive(broker) == []


def test_one_call_returns_at_most_the_capabilitys_maximum(harness: BrokerHarness) -> None:
    broker = harness.broker()
    most = broker.capabilities.receive_max
    broker.send("q", outgoing(*map(str, range(most + 1))))
    assert len(receive(broker, most + 1)) == most
    assert len(receive(broker, most + 1)) == 1


def test_queues_are_separate(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("mine"))
    broker.send("other", outgoing("theirs"))
    assert bodies(receive(broker)) == ["mine"]
    assert bodies(receive(broker, queue="other")) == ["theirs"]
    if broker.capabilities.creates_queues:
        assert receive(broker, queue="never heard of") == []
        return
    for step in (partial(receive, queue="never-heard-of"), lambda broker: broker.send("never-heard-of", outgoing("a"))):
        with pytest.raises(ConfigurationError, match="never-heard-of"):
            step(broker)
    assert broker.stats("never-heard-of").visible == broker.purge("never-heard-of") == 0


def test_a_delay_is_honoured(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("later", delay_seconds=100.0))
    broker.send("q", outgoing("now"))
    (delivery,) = receive(broker)
    assert bodies([delivery]) == ["now"]
    broker.settle([(delivery, Ack())])
    harness.advance(99.0)
    assert receive(broker) == []
    assert broker.stats("q").delayed == 1
    harness.advance(1.0)
    assert bodies(receive(broker)) == ["later"]


def test_row_79_a_delay_of_5000_seconds_is_honoured(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if broker.capabilities.delay_seconds_max < 5_000:
        pytest.skip("not applicable: this broker cannot delay that long; the replayer holds such messages")
    broker.send("q", outgoing("a", delay_seconds=5_000.0))
    harness.advance(4_999.0)
    assert receive(broker) == []
    harness.advance(1.0)
    assert bodies(receive(broker)) == ["a"]


@pytest.mark.parametrize(
    "bad",
    [{"delay_seconds": -1.0}, {"delay_seconds": float("nan")}, {"delay_seconds": 1e12}, {"group": "\ud800"}],
    ids=str,
)
def test_an_invalid_message_refuses_the_whole_call(harness: BrokerHarness, bad: dict[str, Any]) -> None:
    broker = harness.broker()
    with pytest.raises(ConfigurationError):
        broker.send("q", [Outgoing(body=b"good"), Outgoing(body=b"bad", **bad)])
    assert receive(broker) == []


def test_row_25_a_body_over_the_limit_is_refused(harness: BrokerHarness) -> None:
    broker = harness.broker()
    most = broker.capabilities.body_bytes_max
    broker.send("q", [Outgoing(body=b"x" * most)])
    with pytest.raises(ConfigurationError, match=str(most)):
        broker.send("q", [Outgoing(body=b"x" * (most + 1))])
    assert broker.stats("q").visible == 1


def test_a_duplicate_within_the_window_is_dropped_even_when_the_first_is_done(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if not broker.capabilities.deduplicates:
        pytest.skip("not applicable: this broker does not deduplicate")
    (first,) = broker.send("q", outgoing("a", deduplication_id="tick"))
    assert broker.send("q", outgoing("b", "c", deduplication_id="tick")) == [first, first]
    broker.send("other", outgoing("another queue's", deduplication_id="tick"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, Ack())])
    harness.advance(299.0)
    broker.send("q", outgoing("d", deduplication_id="tick"))
    assert receive(broker) == []
    harness.advance(1.001)  # the last millisecond may belong to the window
    (second,) = broker.send("q", outgoing("e", deduplication_id="tick"))
    assert second != first
    assert bodies(receive(broker)) == ["e"]
    assert bodies(receive(broker, queue="other")) == ["another queue's"]


# --- leases


def test_a_leased_message_is_hidden_until_its_lease_ends(harness: BrokerHarness) -> None:
    one, two = harness.broker("w1"), harness.broker("w2")
    one.send("q", outgoing("a"))
    (first,) = receive(one)
    assert receive(two) == []
    harness.advance(LEASE - 1)
    assert receive(two) == []
    harness.advance(1)
    (second,) = receive(two)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.message == second.message
    assert first.receipt != second.receipt


def test_an_extended_lease_holds_from_now_on(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    for _ in range(5):
        harness.advance(LEASE - 1)
        assert not broker.extend([delivery], lease_seconds=LEASE)
        assert receive(broker) == []
    assert not broker.settle([(delivery, Ack())])
    harness.advance(LEASE + 1)
    assert receive(broker) == []


def test_row_84_a_stale_receipt_settles_and_extends_nothing(harness: BrokerHarness) -> None:
    one, two = harness.broker("w1"), harness.broker("w2")
    if not one.capabilities.fenced:
        pytest.skip("not applicable: this broker cannot tell a stale receipt")
    one.send("q", outgoing("a"))
    (stale,) = receive(one)
    harness.advance(LEASE)
    (fresh,) = receive(two)
    assert list(one.extend([stale], lease_seconds=LEASE)) == [stale]
    settlements: list[Settlement] = [Ack(), Release(), Release(uncounted=True), DeadLetter(reason="stale")]
    for settlement in settlements:
        (failure,) = one.settle([(stale, settlement)])
        assert failure.delivery == stale
        assert failure.lost
        assert failure.reason
    assert one.stats("q").in_flight == 1
    assert one.stats("q-dlq").visible == 0
    assert not two.extend([fresh], lease_seconds=LEASE)
    assert not two.settle([(fresh, Ack())])


def test_an_expired_lease_can_neither_be_extended_nor_settled(harness: BrokerHarness) -> None:
    if not harness.leases_end_by_time:
        pytest.skip("not applicable: here a lease lasts until another worker has the message")
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    harness.advance(LEASE)
    assert list(broker.extend([delivery], lease_seconds=LEASE)) == [delivery]
    (failure,) = broker.settle([(delivery, Ack())])
    assert failure.lost
    assert bodies(receive(broker)) == ["a"]


def test_a_stale_receipt_stays_stale_after_an_uncounted_release(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if not (broker.capabilities.fenced and broker.capabilities.releases_uncounted):
        pytest.skip("not applicable: this broker has no fence, or counts every release as an attempt")
    broker.send("q", outgoing("a"))
    (first,) = receive(broker)
    broker.settle([(first, Release(uncounted=True))])
    (second,) = receive(broker)
    assert second.attempt == first.attempt == 1
    assert second.receipt != first.receipt
    (failure,) = broker.settle([(first, Ack())])
    assert failure.lost
    assert not broker.settle([(second, Ack())])


def test_a_released_delivery_cannot_be_extended_while_its_delay_runs(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, Release(delay_seconds=100))])
    assert list(broker.extend([delivery], lease_seconds=500)) == [delivery]
    harness.advance(100)
    assert bodies(receive(broker)) == ["a"]


def test_receipts_never_repeat(harness: BrokerHarness) -> None:
    each_others = [("q", "other"), ("other", "q")]
    broker = harness.broker(queues=[QueueSettings(name=name, dead_letter_queue=dead) for name, dead in each_others])
    broker.send("q", outgoing("a"))
    settlements: list[Settlement] = [Release(), Release(uncounted=True), Release(), DeadLetter(reason="x")]
    receipts = []
    queue = "q"
    for settlement in settlements * 10:
        (delivery,) = receive(broker, queue=queue)
        receipts.append(delivery.receipt)
        assert not broker.settle([(delivery, settlement)])
        if isinstance(settlement, DeadLetter):
            queue = "other" if queue == "q" else "q"
    assert len(set(receipts)) == 40


@pytest.mark.parametrize(
    "receipt", ["", "x", "-1-1", "{store}-x-1", "{store}-1-2", "{store}-2-1", "{store}-1-\u0661", "\ud800"], ids=ascii
)
def test_a_forged_receipt_is_reported_as_lost(harness: BrokerHarness, receipt: str) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (real,) = receive(broker)
    forged = Delivery(
        message=real.message,
        queue="q",
        receipt=receipt.replace("{store}", real.receipt.rsplit("-", 2)[0]),
        attempt=1,
        received_at=real.received_at,
    )
    failures = broker.settle([(forged, Ack())])
    assert [failure.lost for failure in failures] == [True] or not broker.capabilities.fenced
    assert list(broker.extend([forged], lease_seconds=1)) == [forged]
    assert not broker.settle([(real, Ack())])


# --- settling


def test_an_acked_message_is_deleted_and_acking_again_changes_nothing(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a", "b"))
    first, second = receive(broker)
    assert not broker.settle([(first, Ack())])
    again = broker.settle([(first, Ack())])
    assert all(failure.lost for failure in again)
    harness.advance(LEASE)
    assert bodies(receive(broker)) == ["b"]
    assert second.message.id != first.message.id


def test_the_first_of_two_settlements_of_one_delivery_counts(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    (failure,) = broker.settle([(delivery, Release()), (delivery, Ack())])
    assert failure.lost
    assert bodies(receive(broker)) == ["a"]


def test_a_released_message_is_visible_after_its_delay_with_a_higher_attempt(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    assert not broker.settle([(delivery, Release(delay_seconds=60))])
    harness.advance(59)
    assert receive(broker) == []
    harness.advance(1)
    (again,) = receive(broker)
    assert again.attempt == 2


def test_row_75_a_release_without_delay_is_receivable_by_another_at_once(harness: BrokerHarness) -> None:
    one, two = harness.broker("w1"), harness.broker("w2")
    one.send("q", outgoing("a", "b", "c", "d"))
    deliveries = receive(one, 3)
    one.settle([(delivery, Release(uncounted=True)) for delivery in deliveries])
    again = {delivery.message.body.decode(): delivery.attempt for delivery in receive(two)}
    assert list(again) == ["a", "b", "c", "d"] or not one.capabilities.ordered
    expected = 1 if one.capabilities.releases_uncounted else 2
    assert again == {"a": expected, "b": expected, "c": expected, "d": 1}


def test_only_uncounted_releases_do_not_count_as_attempts(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if not broker.capabilities.releases_uncounted:
        pytest.skip("not applicable: every release of this broker counts as an attempt")
    broker.send("q", outgoing("a"))
    attempts = []
    for uncounted in (False, True, True, False, True):
        (delivery,) = receive(broker)
        attempts.append(delivery.attempt)
        broker.settle([(delivery, Release(uncounted=uncounted))])
    assert attempts == [1, 2, 2, 2, 3]


def test_a_group_of_settlements_reports_exactly_those_that_failed(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a", "b", "c", "d"))
    a, b, c, d = receive(broker)
    broker.settle([(b, Ack())])
    failures = broker.settle(
        [(a, Ack()), (b, DeadLetter(reason="late")), (c, Release(delay_seconds=5)), (d, DeadLetter(reason="bad"))]
    )
    assert [failure.delivery for failure in failures] == [b]
    stats = broker.stats("q")
    if broker.capabilities.exact_stats:
        assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 1)
    assert (stats.visible, stats.in_flight + stats.delayed) == (0, 1)
    assert broker.stats("q-dlq").visible == 1


# --- dead letters


def test_a_dead_letter_keeps_the_message_and_records_its_failure(harness: BrokerHarness) -> None:
    broker = harness.broker("worker-7")
    attributes: dict[str, str | bytes] = {f"a{n}": b"\x00\xff" if n % 2 else "text" for n in range(10)}
    (id,) = broker.send("q", [Outgoing(body=b"\xfe", attributes=attributes, group="g")])
    sent_at = failed_at = harness.clock.now()
    (delivery,) = receive(broker)
    harness.advance(5)
    broker.settle([(delivery, Release())])
    if broker.capabilities.remembers_attempts:  # other brokers report the first delivery as the first failure
        failed_at = harness.clock.now()
    harness.advance(5)
    (delivery,) = receive(broker)
    settlement = DeadLetter(reason="not an image", exception="ValueError: x", traceback="Traceback ...")
    assert not broker.settle([(delivery, settlement)])
    assert receive(broker) == []
    (dead,) = receive(broker, queue="q-dlq")
    assert (dead.message.body, dead.message.group, dead.attempt) == (b"\xfe", "g", 1)
    assert attributes.items() <= dict(dead.message.attributes).items()
    assert dead.message.enqueued_at == harness.clock.now()
    death = death_of(dead.message.attributes)
    assert death is not None
    assert (death.reason, death.exception, death.traceback) == ("not an image", "ValueError: x", "Traceback ...")
    assert (death.attempts, death.worker, death.queue, death.message_id) == (2, "worker-7", "q", id)
    assert (death.enqueued_at, death.first_failed_at, death.last_failed_at) == (sent_at, failed_at, harness.clock.now())


def test_a_queue_may_name_its_dead_letter_queue(harness: BrokerHarness) -> None:
    custom_dlq = QueueSettings(name="graves", dead_letter_queue="dust")
    broker = harness.broker(queues=[QueueSettings(name="q", dead_letter_queue="graves"), custom_dlq])
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="one"))])
    (delivery,) = receive(broker, queue="graves")
    broker.settle([(delivery, DeadLetter(reason="two"))])
    (delivery,) = receive(broker, queue="dust")
    death = death_of(delivery.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("two", "graves")


def test_a_message_delivered_too_often_is_dead_lettered_by_the_broker(harness: BrokerHarness) -> None:
    broker = harness.broker("w1", queues=[QueueSettings(name="q", receives_max=3)])
    broker.send("q", outgoing("poison"))
    (first,) = receive(broker)
    if broker.capabilities.releases_uncounted:
        broker.settle([(first, Release(uncounted=True))])
        (first,) = receive(broker)
    first_failed_at = harness.clock.now() + LEASE
    harness.advance(LEASE)
    (second,) = receive(broker)
    broker.settle([(second, Release())])
    (third,) = receive(broker)
    assert third.attempt == 3
    assert broker.stats("q-dlq").visible == 0
    harness.advance(LEASE + 7)
    assert receive(broker) == []
    (dead,) = receive(broker, queue="q-dlq")
    death = death_of(dead.message.attributes)
    if not broker.capabilities.explains_deaths:
        assert death is None
        assert bodies([dead]) == ["poison"]
        return
    assert death is not None
    assert (death.attempts, death.worker, death.message_id) == (3, "w1", third.message.id)
    assert "3 times" in death.reason
    assert (death.first_failed_at, death.last_failed_at) == (first_failed_at, first_failed_at + LEASE)
    (failure,) = broker.settle([(third, Ack())])
    assert failure.lost


# --- retention


def test_past_its_retention_a_message_is_dead_lettered_instead_of_delivered(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", retention_seconds=1_000)])
    if not broker.capabilities.explains_deaths:
        pytest.skip("not applicable: this broker deletes what is past its retention")
    broker.send("q", outgoing("leased", "ready", group="g"))
    broker.send("q", outgoing("delayed", delay_seconds=5_000))
    (leased,) = receive(broker, 1, lease=2_000)
    harness.advance(999)
    assert broker.stats("q").visible == 1
    harness.advance(1)
    assert receive(broker) == []
    assert not broker.extend([leased], lease_seconds=100)  # it is in progress, so it stays
    dead = receive(broker, queue="q-dlq")
    assert sorted(bodies(dead)) == ["delayed", "ready"]
    deaths = [death_of(delivery.message.attributes) for delivery in dead]
    assert all(death is not None and "retention" in death.reason for death in deaths)
    broker.settle([(delivery, Ack()) for delivery in dead])
    harness.advance(100)
    assert receive(broker) == []
    assert bodies(receive(broker, queue="q-dlq")) == ["leased"]


def test_a_dead_letter_past_its_retention_is_deleted_and_counted(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q"), QueueSettings(name="q-dlq", retention_seconds=1_000)])
    if not broker.capabilities.explains_deaths:
        pytest.skip("not applicable: this broker does not report messages that it deletes at expiry")
    broker.send("q", outgoing("a", "b"))
    for delivery in receive(broker):
        broker.settle([(delivery, DeadLetter(reason="bad"))])
        harness.advance(10)
    harness.advance(980)
    assert broker.stats("q-dlq").visible == 1
    harness.advance(10)
    assert receive(broker, queue="q-dlq") == []
    assert broker.dropped("q-dlq") == 2  # type: ignore[attr-defined]  # of these brokers, not of the Protocol
    assert receive(broker, queue="q-dlq-dlq") == []


def test_past_its_retention_a_message_is_not_delivered(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", retention_seconds=1_000)])
    broker.send("q", outgoing("a"))
    harness.advance(1_001)
    assert receive(broker) == []


# --- groups


def test_every_message_of_every_group_is_delivered_once(harness: BrokerHarness) -> None:
    broker = harness.broker()
    sent = {f"{group} {n}": group for group in ("a", "b", "with a space", "", None) for n in range(7)}
    for body, group in sent.items():
        broker.send("q", outgoing(body, group=group))
    deliveries = [delivery for _ in range(len(sent)) for delivery in receive(broker, 4)]
    assert {delivery.message.body.decode(): delivery.message.group for delivery in deliveries} == sent
    assert len(deliveries) == len(sent)


def test_groups_take_turns_and_each_is_served_oldest_first(harness: BrokerHarness) -> None:
    broker = ordered(harness)
    broker.send("q", outgoing("a1", "a2", "a3", "a4", group="a"))
    broker.send("q", outgoing("b1", group="b"))
    broker.send("q", outgoing("n1", "n2"))
    assert bodies(receive(broker, 5)) == ["a1", "b1", "n1", "a2", "n2"]
    broker.send("q", outgoing("c1", group="c"))
    assert bodies(receive(broker, 5)) == ["a3", "c1", "a4"]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_row_86_a_noisy_tenant_delays_a_quiet_one_by_one_round_at_most(harness: BrokerHarness, size: int) -> None:
    broker = ordered(harness)
    noisy = ["n0", "n1", "n2"]
    for tenant in noisy:
        broker.send("q", outgoing(*[f"{tenant} {n}" for n in range(60)], group=tenant))
    order: list[str] = []
    for n in range(10):
        order += bodies(receive(broker, size))
        broker.send("q", outgoing(f"quiet {n}", group="quiet"))
        sent_after = len(order)
        order += bodies(receive(broker, len(noisy) + 1))
        assert f"quiet {n}" in order[sent_after:]


def test_a_tenant_whose_failures_return_all_at_once_delays_no_other(harness: BrokerHarness) -> None:
    broker = ordered(harness)
    broker.send("q", outgoing(*map(str, range(100)), group="noisy"))
    broker.settle([(delivery, Release(delay_seconds=10)) for delivery in receive(broker, 100)])
    broker.send("q", outgoing(*map(str, range(100, 110)), group="noisy", delay_seconds=10))
    harness.advance(10)
    broker.send("q", outgoing("quiet", group="quiet"))
    assert "quiet" in bodies(receive(broker, 2))
    assert bodies(receive(broker, 2)) == ["1", "2"]  # released messages are older than those sent after them


def test_more_groups_than_fit_in_one_call_are_all_served_in_a_round(harness: BrokerHarness) -> None:
    broker = ordered(harness)
    for n in range(25):
        broker.send("q", outgoing("x", "y", group=str(n)))
    groups = [delivery.message.group for _ in range(5) for delivery in receive(broker, 5)]
    assert sorted(map(str, groups)) == sorted(map(str, range(25)))


def test_a_receive_is_filled_from_the_groups_that_have_messages(harness: BrokerHarness) -> None:
    broker = harness.broker()
    for n in range(9):
        broker.send("q", outgoing(f"{n}", group=f"small {n}"))
    broker.send("q", outgoing(*map(str, range(100)), group="large"))
    assert len(receive(broker, 50)) == 50
    assert len(receive(broker, 50)) + len(receive(broker, 50)) == 59


# --- reading


def test_stats_count_every_state_and_the_oldest_visible_age(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if not broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker counts approximately, and reports no ages")
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)
    assert stats.oldest_visible_message_age_seconds is None
    assert stats.oldest_message_age_seconds is None
    broker.send("q", outgoing("a"))
    harness.advance(10)
    broker.send("q", outgoing("b", "c"))
    broker.send("q", outgoing("d", delay_seconds=60))
    harness.advance(5)
    assert broker.stats("q").oldest_visible_message_age_seconds == 15
    receive(broker, 1)
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (2, 1, 1)
    assert stats.oldest_visible_message_age_seconds == 5
    receive(broker)
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (0, 3, 1)
    assert stats.oldest_visible_message_age_seconds is None
    harness.advance(LEASE)
    assert broker.stats("q").visible == 3


def test_stats_count_every_state_approximately(harness: BrokerHarness) -> None:
    broker = harness.broker()
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)
    broker.send("q", outgoing("a", "b", "c"))
    broker.send("q", outgoing("d", delay_seconds=60))
    assert len(receive(broker, 1)) == 1
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (2, 1, 1)
    assert (stats.oldest_visible_message_age_seconds is None) is not broker.capabilities.exact_stats
    assert (stats.oldest_message_age_seconds is None) is not broker.capabilities.exact_stats


def test_a_queue_is_empty_without_messages_in_any_state(harness: BrokerHarness) -> None:
    broker = harness.broker()
    assert broker.is_empty("never-heard-of")
    broker.send("q", outgoing("a"))
    assert not broker.is_empty("q")
    assert broker.is_empty("q-dlq")
    (delivery,) = receive(broker, 1)
    assert not broker.is_empty("q")
    broker.settle([(delivery, Ack())])
    assert broker.is_empty("q")
    broker.send("q", outgoing("b", delay_seconds=60))
    assert not broker.is_empty("q")


def test_browsing_leases_nothing_and_continues_after_a_deleted_id(harness: BrokerHarness) -> None:
    broker = harness.broker()
    if not broker.capabilities.browsable:
        pytest.skip("not applicable: this broker cannot be browsed")
    ids = list(broker.send("q", outgoing("a", "b", "c", "d", "e")))
    (first,) = receive(broker, 1)
    page = broker.browse("q", messages_max=2)
    assert [message.id for message in page] == ids[:2]
    assert broker.stats("q").visible == 4
    (second,) = receive(broker, 1)
    broker.settle([(first, Ack()), (second, Ack())])
    assert [message.id for message in broker.browse("q", messages_max=2, after_id=ids[1])] == ids[2:4]
    assert [message.id for message in broker.browse("q", messages_max=9, after_id=ids[4])] == []
    assert list(broker.browse("q", messages_max=0)) == []
    assert list(broker.browse("q", messages_max=9, after_id="an unknown id")) == []


# --- waiting and closing


def test_a_wait_ends_with_the_first_message(harness: BrokerHarness) -> None:
    receiver, sender = harness.broker("w1"), harness.broker("w2")
    receiving = waiting(harness, receiver, wait_seconds=3_600)
    sender.send("q", outgoing("a"))
    assert bodies(receiving.over(within_seconds=600)) == ["a"]


def test_a_wait_ends_at_its_timeout(harness: BrokerHarness) -> None:
    broker = harness.broker()
    receiving = waiting(harness, broker, wait_seconds=20)
    harness.advance(19)
    assert receiving.still_waits()
    assert receiving.over(within_seconds=60) == []


def test_a_wait_ends_when_a_lease_ends(harness: BrokerHarness) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    receive(broker)
    receiving = waiting(harness, broker, wait_seconds=3_600)
    harness.advance(LEASE - 1)
    assert receiving.still_waits()
    (again,) = receiving.over(within_seconds=60)
    assert again.attempt == 2


def test_closing_ends_a_wait_and_keeps_the_leases(harness: BrokerHarness) -> None:
    one, two = harness.broker("w1"), harness.broker("w2")
    one.send("q", outgoing("a"))
    receive(one)
    receiving = waiting(harness, one, wait_seconds=3_600)
    one.close()
    assert receiving.over(within_seconds=9) == []
    with pytest.raises(TemporaryError):
        one.send("q", outgoing("b"))
    assert receive(two) == []
    harness.advance(LEASE)
    assert bodies(receive(two)) == ["a"]


@pytest.mark.parametrize("lease", [-1.0, float("nan"), float("inf")])
def test_an_invalid_lease_is_refused(harness: BrokerHarness, lease: float) -> None:
    broker = harness.broker()
    broker.send("q", outgoing("a"))
    with pytest.raises(ConfigurationError):
        receive(broker, lease=lease)
    (delivery,) = receive(broker)
    with pytest.raises(ConfigurationError):
        broker.extend([delivery], lease_seconds=lease)
    with pytest.raises(ConfigurationError):
        broker.settle([(delivery, Release(delay_seconds=lease))])
    assert not broker.settle([(delivery, Ack())])

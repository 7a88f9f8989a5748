"""The DLQ and the final DLQ: where dead letters go, what they carry, and that none leaves the final DLQ."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, bodies, outgoing, receive

from penstock.errors import ConfigurationError
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.death import (
    DIED,
    EARLIER_DEATHS_ATTRIBUTE,
    SET_ASIDE_ATTRIBUTE,
    TRIES_MAX,
    death_of,
    earlier_deaths_of,
    set_aside_reason,
)
from penstock.messaging.delivery import AttemptEnd, Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

BAD = DeadLetter(reason="bad", exception="ValueError: x", poison=True, fingerprint="f" * 12, handler="resize")
SET_ASIDE = DeadLetter(reason="nothing helps", set_aside=True)
TEN: Mapping[str, str | bytes] = {f"a{n}": bytes([n, 255]) if n % 2 else f"téxt {n}" for n in range(10)}


def dead_lettered(harness: BrokerHarness, broker: Broker, **fields: Any) -> Delivery:
    """Return one delivered message of the DLQ."""
    broker.send("q", outgoing("a", **fields))
    (delivery,) = receive(broker)
    harness.advance(1)
    assert not broker.settle([(delivery, BAD)])
    (dead_letter,) = receive(broker, queue="q-dlq")
    return dead_letter


def moved_to_final_dlq(harness: BrokerHarness, broker: Broker, **fields: Any) -> Delivery:
    """Return one delivered message of the final DLQ."""
    dead_letter = dead_lettered(harness, broker, **fields)
    harness.advance(1)
    assert not broker.settle([(dead_letter, SET_ASIDE)])
    (dead_letter,) = receive(broker, queue="q-dead")
    return dead_letter


@pytest.mark.parametrize(
    ("queue", "dead_letters"), [("q", "q-dlq"), ("q-dlq", "q-dead"), ("q-dead", "q-dead"), ("new", "new-dlq")]
)
def test_without_settings_the_dlq_and_final_dlq_are_derived_from_the_queue_name(
    harness: BrokerHarness, queue: str, dead_letters: str
) -> None:
    assert harness.broker().dead_letter_queue(queue) == dead_letters


def test_a_queues_settings_take_precedence_over_its_name(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", dead_letter_queue="graves")])
    assert broker.dead_letter_queue("q") == "graves"
    assert broker.dead_letter_queue("graves") == "graves-dead"
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, BAD)])
    (dead_letter,) = receive(broker, queue="graves")
    assert not broker.settle([(dead_letter, SET_ASIDE)])
    assert bodies(receive(broker, queue="graves-dead")) == ["a"]


def test_the_retention_of_a_queue_is_reported(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", retention_seconds=3_600)])
    assert harness.broker().retention_seconds("q") == 3_600
    default = broker.retention_seconds("nobody sent to it".replace(" ", "-"))
    assert default == (14 * 86_400.0 if broker.capabilities.creates_queues else None)


@pytest.mark.parametrize("group", [None, "tenant é"])
def test_a_dead_letter_moved_to_the_final_dlq_only_gains_a_reason(harness: BrokerHarness, group: str | None) -> None:
    broker = harness.broker("w1")
    dead_letter = dead_lettered(harness, broker, attributes=TEN, group=group)
    broker.settle([(dead_letter, SET_ASIDE)])
    assert receive(broker, queue="q-dlq") == []
    (moved,) = receive(harness.broker("w2"), queue="q-dead")
    assert (moved.message.body, moved.message.group, moved.attempt) == (b"a", group, 1)
    assert moved.message.attributes == {**dead_letter.message.attributes, SET_ASIDE_ATTRIBUTE: "nothing helps"}
    assert {name: moved.message.attributes[name] for name in TEN} == TEN
    death = death_of(moved.message.attributes)
    assert death is not None
    assert (death.reason, death.queue, death.poison, death.handler) == ("bad", "q", True, "resize")
    assert set_aside_reason(moved.message.attributes) == "nothing helps"
    assert set_aside_reason(dead_letter.message.attributes) is None


def test_a_dead_letter_with_a_new_error_keeps_its_first_death_in_its_history(harness: BrokerHarness) -> None:
    broker = harness.broker()
    dead_letter = dead_lettered(harness, broker, attributes=TEN)
    broker.settle([(dead_letter, DeadLetter(reason="unreadable"))])
    (again,) = receive(broker, queue="q-dead")
    death = death_of(again.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("unreadable", "q-dlq")
    assert [each.reason for each in earlier_deaths_of(again.message.attributes)] == ["bad"]
    rest = {name: again.message.attributes[name] for name in TEN}
    assert rest == TEN
    assert set(again.message.attributes) - set(TEN) == {"penstock-death", EARLIER_DEATHS_ATTRIBUTE}


@pytest.mark.parametrize("settlement", [SET_ASIDE, BAD])
def test_a_message_that_fails_in_the_final_dlq_waits_there_unchanged(
    harness: BrokerHarness, settlement: DeadLetter
) -> None:
    broker = harness.broker()
    dead_letter = moved_to_final_dlq(harness, broker)
    assert not broker.settle([(dead_letter, settlement)])
    assert receive(broker, queue="q-dead") == []
    harness.advance(900)
    (again,) = receive(broker, queue="q-dead")
    assert (again.message, again.attempt) == (dead_letter.message, 2)
    broker.settle([(again, Ack())])
    assert receive(broker, queue="q-dead") == receive(broker, queue="q-dlq") == []


def test_the_final_dlq_accepts_no_limit_of_attempts(harness: BrokerHarness) -> None:
    with pytest.raises(ConfigurationError, match="go nowhere else"):
        harness.broker(queues=[QueueSettings(name="q-dead", receives_max=3)])


@pytest.mark.parametrize("dlq", ["q-dlq", "q-dead"])
@pytest.mark.parametrize("released", [False, True])
def test_expired_dead_letters_of_both_dlqs_are_deleted_and_counted(
    harness: BrokerHarness, dlq: str, released: bool
) -> None:
    broker = harness.broker(queues=[QueueSettings(name=dlq, retention_seconds=1_000)])
    if not broker.capabilities.explains_deaths:
        pytest.skip("not applicable: this broker does not report messages that it deletes at expiry")
    broker.send(dlq, outgoing("grouped", "too", group="g"))  # as messages of another broker arrive, moved by hand
    broker.send(dlq, outgoing("plain"))
    if released:
        broker.settle([(delivery, Release(delay_seconds=500)) for delivery in receive(broker, queue=dlq)])
    harness.advance(999)
    assert broker.stats(dlq).visible == 3
    harness.advance(1)
    assert receive(broker, queue=dlq) == []
    assert broker.dropped(dlq) == 3  # type: ignore[attr-defined]  # of these brokers, not of the Protocol
    for other in ("q-dead", "q-dlq", "q-dlq-dlq", "q-dead-dlq", "q"):
        assert receive(broker, queue=other) == []


def test_a_released_dead_letter_may_be_hidden_for_hours(harness: BrokerHarness) -> None:
    broker = harness.broker()
    dead_letter = dead_lettered(harness, broker)
    harness.advance(10)
    assert not broker.settle([(dead_letter, Release(delay_seconds=6 * 3_600))])
    harness.advance(6 * 3_600 - 5)
    assert receive(broker, queue="q-dlq") == []
    harness.advance(10)
    assert bodies(receive(broker, queue="q-dlq")) == ["a"]


def test_a_release_beyond_the_limit_of_the_broker_is_refused(harness: BrokerHarness) -> None:
    broker = harness.broker()
    dead_letter = dead_lettered(harness, broker)
    with pytest.raises(ConfigurationError, match="delay_seconds"):
        broker.settle([(dead_letter, Release(delay_seconds=broker.capabilities.release_delay_seconds_max + 1))])


# --- the attempts of a message, recorded in its death


def test_a_death_lists_every_attempt(harness: BrokerHarness) -> None:
    broker, other = harness.broker("w1"), harness.broker("w2")
    if not broker.capabilities.remembers_attempts:
        pytest.skip("not applicable: this broker does not remember attempts")
    broker.send("q", outgoing("a"))
    began = harness.clock.now()
    (first,) = receive(broker)
    harness.advance(2)
    broker.settle([(first, Release(delay_seconds=8, reason="no lock é"))])
    harness.advance(8)
    (second,) = receive(other)
    harness.advance(3)
    other.settle([(second, Release(uncounted=True))])
    receive(broker)
    harness.advance(LEASE)
    (fourth,) = receive(other)
    harness.advance(1)
    other.settle([(fourth, BAD)])
    (dead_letter,) = receive(broker, queue="q-dlq")
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    recorded = [(t.started_at - began, t.ended_at - began, t.worker, t.end, t.reason) for t in death.tries]
    assert recorded == [
        (*_near(recorded[0], 0, 2), "w1", AttemptEnd.FAILED, "no lock é"),
        (*_near(recorded[1], 10, 13), "w2", AttemptEnd.RELEASED, None),
        (*_near(recorded[2], 13, 13 + LEASE), "w1", AttemptEnd.EXPIRED, None),
        (*_near(recorded[3], 13 + LEASE, 14 + LEASE), "w2", DIED, "bad"),
    ]


def test_a_death_lists_the_last_of_many_attempts(harness: BrokerHarness) -> None:
    broker = harness.broker("w1")
    broker.send("q", outgoing("a"))
    for n in range(TRIES_MAX + 3):
        (delivery,) = receive(broker)
        broker.settle([(delivery, Release(reason=f"{n}" + "x" * 1_000))])
    (delivery,) = receive(broker)
    broker.settle([(delivery, BAD)])
    (dead_letter,) = receive(broker, queue="q-dlq")
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    assert (death.tries[-1].end, death.tries[-1].worker, death.tries[-1].reason) == (DIED, "w1", "bad")
    if not broker.capabilities.remembers_attempts:
        assert len(death.tries) == 1
        return
    assert [each.reason and each.reason.rstrip("x") for each in death.tries[:-1]] == [f"{n}" for n in range(4, 13)]
    assert all(each.reason is None or len(each.reason) <= 200 for each in death.tries)


def test_a_message_dead_lettered_by_its_broker_lists_its_attempts_too(harness: BrokerHarness) -> None:
    broker = harness.broker("w1", queues=[QueueSettings(name="q", receives_max=2)])
    if not broker.capabilities.explains_deaths:
        pytest.skip("not applicable: this broker records no death")
    broker.send("q", outgoing("released", "held"))
    for delivery in receive(broker):
        broker.settle([(delivery, Release(reason="once"))])
    second = {delivery.message.body: delivery for delivery in receive(broker)}
    broker.settle([(second[b"released"], Release(reason="twice"))])
    harness.advance(LEASE)
    assert receive(broker) == []
    deaths = {
        dead_letter.message.body: death_of(dead_letter.message.attributes)
        for dead_letter in receive(broker, queue="q-dlq")
    }
    ends = {body: [(each.end, each.reason) for each in death.tries] for body, death in deaths.items() if death}
    assert ends == {
        b"released": [(AttemptEnd.FAILED, "once"), (AttemptEnd.FAILED, "twice")],
        b"held": [(AttemptEnd.FAILED, "once"), (AttemptEnd.EXPIRED, None)],
    }


def test_attempts_of_a_dead_letter_do_not_include_those_before_its_death(harness: BrokerHarness) -> None:
    broker = harness.broker()
    dead_letter = dead_lettered(harness, broker)
    broker.settle([(dead_letter, Release(reason="held"))])
    (dead_letter,) = receive(broker, queue="q-dlq")
    broker.settle([(dead_letter, DeadLetter(reason="unreadable"))])
    (dead_letter,) = receive(broker, queue="q-dead")
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    held = ["held"] if broker.capabilities.remembers_attempts else []
    assert [each.reason for each in death.tries] == [*held, "unreadable"]


# --- messages that are deleted by their ids


def discarding(harness: BrokerHarness) -> Broker:
    broker = harness.broker()
    if not broker.capabilities.browsable:
        with pytest.raises(ConfigurationError):
            broker.discard("q", ["m"])
        pytest.skip("not applicable: this broker deletes nothing that was not received")
    return broker


def test_messages_are_discarded_in_every_state(harness: BrokerHarness) -> None:
    broker = discarding(harness)
    (leased_id,) = broker.send("q", outgoing("leased"))
    (leased,) = receive(broker)
    ids = {"leased": leased_id}
    for name, fields in {
        "plain": {},
        "group": {"group": "g"},
        "group 2": {"group": "g"},
        "alone": {"group": "h"},
    }.items():
        (ids[name],) = broker.send("q", outgoing(name, **fields))
    (ids["delayed"],) = broker.send("q", outgoing("delayed", delay_seconds=50))
    broker.send("q", outgoing("left", "also left"))
    broker.send("q", outgoing("grouped", group="g"))
    broker.send("q", outgoing("later", delay_seconds=50))
    assert broker.discard("q", list(ids.values())) == 6
    assert broker.discard("q", list(ids.values())) == 0
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (3, 0, 1)
    (failure,) = broker.settle([(leased, Ack())])
    assert failure.lost
    assert list(broker.extend([leased], lease_seconds=LEASE)) == [leased]
    assert [each.body for each in broker.browse("q", messages_max=9)] == [b"left", b"also left", b"grouped", b"later"]
    harness.advance(LEASE + 50)
    assert sorted(bodies(receive(broker))) == ["also left", "grouped", "later", "left"]
    assert broker.send("q", [Outgoing(body=b"new", group="h")])
    assert bodies(receive(broker)) == ["new"]


def test_messages_released_to_the_front_are_browsed_and_discarded_in_order(harness: BrokerHarness) -> None:
    broker = discarding(harness)
    sent = [
        ("old", 0.0),
        *((f"late {n}", 20.0) for n in range(4)),
        ("young", 0.0),
        *((f"last {n}", 10.0) for n in range(3)),
    ]
    ids = [id for name, delay in sent for id in broker.send("q", outgoing(name, delay_seconds=delay))]
    for passes_seconds in (0, 10, 10):  # the ones with less delay became ready first, and have the higher numbers
        harness.advance(passes_seconds)
        assert [message.id for message in broker.browse("q", messages_max=99)] == ids
        for count in (1, 2, 3):
            found: list[str] = []
            while page := broker.browse("q", messages_max=count, after_id=found[-1] if found else None):
                found += [message.id for message in page]
            assert found == ids
    broker.send("q", outgoing("newest"))
    assert broker.discard("q", [ids[1], ids[5], ids[8]]) == 3
    (young,) = broker.send("q", outgoing("newer still"))
    assert broker.discard("q", [young, ids[0]]) == 2
    left = [message.body.decode() for message in broker.browse("q", messages_max=99)]
    assert left == ["late 1", "late 2", "late 3", "last 0", "last 1", "newest"]


def test_a_body_like_the_placeholder_is_not_discarded(harness: BrokerHarness) -> None:
    """Redis puts a placeholder in place of a discarded message, for a moment: a sender must not be able to write the
    same.
    """
    broker = discarding(harness)
    ids = [id for name in ("\0gone", "a", "b", "c") for id in broker.send("q", outgoing(name))]
    assert broker.discard("q", [ids[2]]) == 1
    assert [(message.id, message.body) for message in broker.browse("q", messages_max=9)] == [
        (ids[0], b"\0gone"),
        (ids[1], b"a"),
        (ids[3], b"c"),
    ]
    assert bodies(receive(broker)) == ["\0gone", "a", "c"]


def test_unknown_ids_discard_nothing(harness: BrokerHarness) -> None:
    broker = discarding(harness)
    (elsewhere,) = broker.send("other", outgoing("a"))
    assert broker.discard("q", [elsewhere]) == 0  # a queue that nothing was sent to
    (here,) = broker.send("q", outgoing("b"))
    assert broker.discard("q", []) == 0
    strange = ["", "x", "-1", here.rpartition("-")[0], f"{here}0", f"{here[:-1]}\u0661", "\ud800"]
    assert broker.discard("q", [*strange, elsewhere if elsewhere != here else ""]) == 0
    assert broker.discard("q", [here, here, *strange]) == 1
    assert broker.stats("other").visible == 1


def test_many_dead_letters_are_discarded_in_one_call_with_their_ages(harness: BrokerHarness) -> None:
    broker = discarding(harness)
    ids = list(broker.send("q-dlq", [Outgoing(body=b"%d" % n, group=f"g{n % 7}") for n in range(2_500)]))
    harness.advance(100)
    (young,) = broker.send("q-dlq", outgoing("young"))
    assert broker.discard("q-dlq", [*ids[:1_000], *ids[1_100:]]) == 2_400
    left = broker.browse("q-dlq", messages_max=1_000)
    assert [message.id for message in left] == [*ids[1_000:1_100], young]
    assert broker.discard("q-dlq", ids) == 100
    stats = broker.stats("q-dlq")
    assert (stats.visible, stats.oldest_message_age_seconds) == (1, 0.0)
    dead_letters: list[Message] = list(broker.browse("q-dlq", messages_max=1_000))
    assert [message.body for message in dead_letters] == [b"young"]


def _near(recorded: tuple[float, float, str, str, str | None], started: float, ended: float) -> tuple[float, float]:
    """Return the recorded times if they equal these to the hundredth: some brokers round them."""
    assert recorded[:2] == pytest.approx((started, ended), abs=0.01)
    return recorded[:2]

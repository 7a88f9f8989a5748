"""The automatic replayer on every broker. Rows are those of INPUTS."""

from dataclasses import replace

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness
from tests.conformance.replay.scene import DIED, DLQ, FINAL_DLQ, QUEUE, TIERS, Crash, Scene, crash_at

from penstock.dead_letters.policy import ReplayPolicy
from penstock.messaging.death import DEATH_ATTRIBUTE, death_of, earlier_deaths_of, set_aside_reason
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE, NoLog
from penstock.messaging.settlement import DeadLetter
from penstock.messaging.steps import Step

STEPS = (Step.REPLAY_INTENDED, Step.REPLAY_SENT, Step.REPLAY_MARKED)


def test_a_replayed_dead_letter_is_an_ordinary_message(scene: Scene) -> None:
    scene.die(b"a body", attributes={"traceparent": "00-ab-cd-01"}, group="tenant 1")
    scene.run_once(scene.handler())
    scene.harness.advance(1)
    (again,) = scene.take(QUEUE)
    assert (again.message.body, again.message.group) == (b"a body", "tenant 1")
    assert again.message.attributes["traceparent"] == "00-ab-cd-01"
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"
    assert REPLAY_ID_ATTRIBUTE in again.message.attributes
    assert DEATH_ATTRIBUTE not in again.message.attributes
    assert [death.reason for death in earlier_deaths_of(again.message.attributes)] == [DIED.reason]
    scene.harness.advance(LEASE)
    assert not scene.receive(DLQ)
    assert not scene.receive(FINAL_DLQ)
    assert scene.results() == ["sent"]


def test_poison_is_moved_to_the_final_dlq_without_a_replay(scene: Scene) -> None:
    scene.die(b"bad", death=DeadLetter(reason="no JSON", poison=True))
    scene.run_once(scene.handler())
    scene.harness.advance(1)
    assert not scene.receive(QUEUE)
    (dead_letter,) = scene.take(FINAL_DLQ)
    assert set_aside_reason(dead_letter.message.attributes) == "another attempt cannot help: no JSON"
    assert scene.results() == ["set_aside"]


def test_dead_letters_of_a_shared_dlq_return_to_their_own_queue(scene: Scene) -> None:
    scene.die(b"mine")
    scene.run_once(scene.handler(sources=("other", QUEUE)))
    scene.harness.advance(1)
    assert [again.message.body for again in scene.take(QUEUE)] == [b"mine"]
    assert not scene.receive("other")


def test_a_message_dead_lettered_by_the_broker_is_replayed(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[replace(TIERS[0], receives_max=1), TIERS[1]])
    scene = Scene(harness=harness, broker=broker, log=NoLog())
    broker.send(QUEUE, [Outgoing(body=b"deadly")])
    for _ in range(3):  # SQS moves a message when it is received again
        scene.receive(QUEUE)
        harness.advance(LEASE + 1)
    scene.run_once(scene.handler())
    harness.advance(1)
    assert scene.results() == ["sent"]
    (again,) = scene.take(QUEUE)
    assert (again.message.body, again.message.attributes[COUNTER_ATTRIBUTE]) == (b"deadly", "1")


def test_a_dead_letter_of_an_unknown_source_is_moved_to_the_final_dlq(scene: Scene) -> None:
    scene.die(b"theirs")
    scene.run_once(scene.handler(sources=("other", "another")))
    (dead_letter,) = scene.take(FINAL_DLQ)
    assert "it failed in the queue q," in str(set_aside_reason(dead_letter.message.attributes))
    assert not scene.receive(QUEUE)


def test_a_message_that_always_fails_ends_in_the_final_dlq_once(scene: Scene) -> None:
    handler = scene.handler(ReplayPolicy(replays_max=3, base_seconds=0.5))
    scene.die(b"hopeless")
    for _ in range(3):
        scene.run_once(handler)
        scene.harness.advance(5)
        scene.fail()
    scene.run_once(handler)
    scene.harness.advance(LEASE)
    assert (len(scene.receive(QUEUE)), len(scene.receive(DLQ))) == (0, 0)
    (dead_letter,) = scene.take(FINAL_DLQ)
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == (DIED.reason, QUEUE)
    assert len(earlier_deaths_of(dead_letter.message.attributes)) == 3
    assert set_aside_reason(dead_letter.message.attributes) == "replayed 3 times, and failed again"
    assert scene.results() == ["sent"] * 3 + ["set_aside"]


@pytest.mark.parametrize("forged", ["-1", "many", "99999999999", "1e3", "", b"\x00", "1001"])
def test_row_62_a_forged_counter_is_ignored_and_reset(scene: Scene, forged: str | bytes) -> None:
    scene.die(b"forged", attributes={COUNTER_ATTRIBUTE: forged})
    scene.run_once(scene.handler())
    scene.harness.advance(1)
    (again,) = scene.take(QUEUE)
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"


def test_row_79_a_wait_of_5000_seconds_is_honoured(scene: Scene) -> None:
    scene.die(b"later")
    scene.make_due_in(5_000)
    handler = scene.handler()
    began_at, step_seconds = scene.harness.clock.now(), 100.0
    while not (again := scene.take(QUEUE)):
        scene.run_once(handler)
        waited_seconds = scene.harness.clock.now() - began_at
        assert waited_seconds <= 5_000 + 2 * step_seconds, "it was not replayed"
        scene.harness.advance(step_seconds)
    assert scene.harness.clock.now() - began_at >= 5_000
    assert [each.message.body for each in again] == [b"later"]
    assert not scene.receive(DLQ)


@pytest.mark.parametrize("step", STEPS)
def test_row_81_a_crash_doubles_at_most_once_and_loses_nothing(scene: Scene, step: Step) -> None:
    scene.die(b"one", b"two", b"three")
    dead_letters = scene.receive(DLQ)
    with pytest.raises(Crash):
        scene.handler(probe=crash_at(step)).begin(dead_letters).run()
    scene.harness.advance(LEASE + 1)
    successor = scene.harness.broker("w2", queues=TIERS)
    scene.run_once(scene.handler(broker=successor), broker=successor)
    scene.harness.advance(LEASE + 1)
    assert not scene.receive(DLQ)
    bodies = sorted(delivery.message.body for delivery in _all(scene))
    again = step is Step.REPLAY_SENT and not scene.broker.capabilities.deduplicates
    assert bodies == sorted([b"one", b"two", b"three"] * (2 if again else 1))


def test_row_82_over_the_limit_a_dead_letter_is_moved_to_the_final_dlq_unchanged(scene: Scene) -> None:
    attributes: dict[str, str | bytes] = {"text": "héllo", "binary": b"\x00\xff", COUNTER_ATTRIBUTE: "3"}
    scene.die(b"\x00\xffbody", attributes=attributes, group="g")
    (before,) = scene.receive(DLQ)
    scene.harness.advance(LEASE + 1)
    scene.run_once(scene.handler())
    (after,) = scene.take(FINAL_DLQ)
    assert (after.message.body, after.message.group) == (b"\x00\xffbody", "g")
    added = {name: value for name, value in after.message.attributes.items() if name in before.message.attributes}
    assert added == dict(before.message.attributes)
    assert {name: after.message.attributes[name] for name in attributes} == attributes
    assert death_of(after.message.attributes) == death_of(before.message.attributes)
    assert not scene.receive(QUEUE)
    assert not scene.receive(DLQ)


def test_row_83_ten_attributes_and_a_replay_lose_nothing(scene: Scene) -> None:
    attributes: dict[str, str | bytes] = {f"a{n}": f"value {n}" if n % 2 else b"\x00\xff%d" % n for n in range(10)}
    scene.die(b"full", attributes=attributes)
    scene.run_once(scene.handler())
    scene.harness.advance(1)
    (again,) = scene.take(QUEUE)
    assert {name: again.message.attributes[name] for name in attributes} == attributes
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"


def _all(scene: Scene) -> list[Delivery]:
    found: list[Delivery] = []
    while some := scene.take(QUEUE):
        found += some
    return found

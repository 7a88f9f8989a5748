"""Batches of dead letters with a fault of the broker, the record or a message."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.claims import extended
from tests.conformance.broker_stands import LEASE, MemoryStand
from tests.conformance.replay.scene import DIED, FIRST, QUEUE, SECOND, TIERS, Crash, Scene, crash_at

from penstock.dead_letters.policy import ReplayPolicy
from penstock.dead_letters.replayer import ReplayExecution
from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UnknownOutcome
from penstock.events import DeadLetterReplayed, ReplaysUnrecorded
from penstock.messaging.broker import Broker, BrokerCapabilities, send_each
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, NoLog, Replay, dead_letter_replay_id
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.messaging.steps import Step

AWAY = TemporaryError("it is away")


@dataclass
class ToldLog:
    """A record in memory that can be away."""

    replays: dict[str, Replay] = field(default_factory=dict)
    open_fails: bool = False
    sent_fails: bool = False

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        if self.open_fails:
            raise AWAY
        for replay in replays:
            self.replays.setdefault(replay.replay_id, replay)
        return self.find([replay.replay_id for replay in replays])

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        return {id: self.replays[id] for id in replay_ids if id in self.replays}

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        if self.sent_fails:
            raise AWAY
        for id in replay_ids:
            self.replays[id] = replace(self.replays[id], sent=True)


class Sending:
    """A broker of which each send goes as the test says; everything else is the broker's own."""

    def __init__(self, broker: Broker, *, fails: Mapping[bytes, PenstockError]) -> None:
        self._broker = broker
        self._fails = fails
        self.sends: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        self.sends.append(len(messages))
        for message in messages:
            if message.body in self._fails:
                raise self._fails[message.body]
        return self._broker.send(queue, messages)


class Particular(Sending):
    """One that says of each message what became of it."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        if (of_all := self._fails.get(b"*")) is not None:
            raise of_all
        return [self._fails.get(message.body) or self._broker.send(queue, [message])[0] for message in messages]


@pytest.fixture
def log() -> ToldLog:
    return ToldLog()


@pytest.fixture
def scene(log: ToldLog) -> Iterator[Scene]:
    stand = MemoryStand()
    yield Scene(stand=stand, broker=stand.broker(queues=TIERS), log=log)
    stand.close()


def run(scene: Scene, broker: object = None, **options: object) -> list[object]:
    """What becomes of the letters, in order."""
    handler = scene.handler(broker=broker, **options)  # type: ignore[arg-type]  # a broker in all that is asked of it
    return list(scene.look(handler).values())


def arrived(scene: Scene) -> list[bytes]:
    scene.stand.advance(1)
    return [delivery.message.body for delivery in scene.take(QUEUE)]


def test_a_record_that_is_away_lets_dead_letters_wait_ever_longer_and_sends_nothing(scene: Scene, log: ToldLog) -> None:
    log.open_fails = True
    scene.die(b"a", b"b")
    handler = scene.handler()
    waits = []
    for _ in range(8):
        answers = list(scene.look(handler).values())
        assert answers == [answers[0]] * 2
        (settlement, _) = answers
        assert isinstance(settlement, Release)
        assert (settlement.uncounted, settlement.reason) == (True, "it is away")
        waits.append(settlement.delay_seconds)
        scene.stand.advance(settlement.delay_seconds)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]  # at one half of what is drawn from
    assert arrived(scene) == []
    assert scene.results() == ["released"] * 16
    log.open_fails = False
    scene.stand.advance(60)
    assert [type(each) for each in scene.look(handler).values()] == [Ack, Ack]
    assert arrived(scene) == [b"a", b"b"]
    log.open_fails = True
    scene.die(b"c")
    (settlement,) = scene.look(handler).values()
    assert settlement == Release(delay_seconds=0.5, uncounted=True, reason="it is away")  # from the beginning


def test_what_is_sent_is_acked_though_the_record_cannot_be_told(scene: Scene, log: ToldLog) -> None:
    log.sent_fails = True
    scene.die(b"a")
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]
    (unmarked,) = [event for event in scene.events if isinstance(event, ReplaysUnrecorded)]
    assert unmarked.error == "TemporaryError: it is away"


@pytest.mark.parametrize("error", [AWAY, UnknownOutcome("perhaps")])
def test_a_broker_that_is_away_lets_all_of_them_wait(scene: Scene, log: ToldLog, error: PenstockError) -> None:
    scene.die(b"a", b"b")
    answers = run(scene, Sending(scene.broker, fails={b"b": error}))
    assert answers == [Release(delay_seconds=0.5, uncounted=True, reason=str(error))] * 2
    assert not any(replay.sent for replay in log.replays.values())
    assert arrived(scene) == []


def test_what_was_taken_of_a_batch_is_marked_and_the_rest_comes_again_under_its_id(scene: Scene, log: ToldLog) -> None:
    scene.die(b"a", b"b", b"c")
    answers = run(scene, Particular(scene.broker, fails={b"b": UnknownOutcome("perhaps")}))
    assert [type(each) for each in answers] == [Ack, Release, Ack]
    assert sorted(replay.sent for replay in log.replays.values()) == [False, True, True]
    assert arrived(scene) == [b"a", b"c"]
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"b"]
    assert len(log.replays) == 3


def test_a_broker_that_is_away_as_a_whole_lets_all_of_them_wait(scene: Scene) -> None:
    scene.die(b"a", b"b")
    assert [type(each) for each in run(scene, Particular(scene.broker, fails={b"*": AWAY}))] == [Release, Release]


def test_a_queue_that_a_person_has_to_mend_is_no_fault_of_its_dead_letters(scene: Scene) -> None:
    scene.die(b"a")
    missing = ConfigurationError("There is no queue 'q'.")
    with pytest.raises(ConfigurationError, match="There is no queue"):
        run(scene, Particular(scene.broker, fails={b"*": missing}))
    scene.stand.advance(LEASE + 1)
    assert len(scene.receive(FIRST)) == 1


@pytest.mark.parametrize("kind", [Sending, Particular])
def test_a_dead_letter_that_its_queue_never_takes_is_set_aside_and_the_others_go_on(
    scene: Scene, kind: type[Sending]
) -> None:
    scene.die(b"a", b"huge", b"c")
    answers = run(scene, kind(scene.broker, fails={b"huge": ConfigurationError("it has too many bytes")}))
    assert [type(each) for each in answers] == [Ack, DeadLetter, Ack]
    assert answers[1] == DeadLetter(reason="its queue q does not accept it: it has too many bytes", set_aside=True)
    assert arrived(scene) == [b"a", b"c"]
    assert len(scene.receive(SECOND)) == 1


def test_what_a_server_holds_against_a_queue_is_no_fault_of_its_dead_letters(scene: Scene) -> None:
    """A foreign key in Redis where the queue's should be: letters that would do are not for people."""
    scene.die(b"a", b"b")
    refused = ConfigurationError("it holds something else under a key of ours")
    refused.__cause__ = OSError("WRONGTYPE")
    with pytest.raises(ConfigurationError, match="something else"):
        run(scene, Sending(scene.broker, fails={b"a": refused, b"b": refused}))
    scene.stand.advance(LEASE + 1)
    assert len(scene.receive(FIRST)) == 2


def test_a_send_is_one_call_as_long_as_nothing_is_refused(scene: Scene) -> None:
    broker = Sending(scene.broker, fails={})
    scene.die(*(b"%d" % n for n in range(20)))
    run(scene, broker)
    assert broker.sends == [20]


def test_a_dead_letter_that_is_marked_is_only_deleted(scene: Scene, log: ToldLog) -> None:
    scene.die(b"a")
    dead_letters = scene.receive(FIRST)
    with pytest.raises(Crash):
        scene.handler(probe=crash_at(Step.REPLAY_MARKED)).begin(dead_letters).run()
    assert arrived(scene) == [b"a"]
    scene.stand.advance(LEASE)
    scene.stand.advance(300)  # past what a broker deduplicates
    assert run(scene) == [Ack()]
    assert arrived(scene) == []
    assert scene.results()[-1] == "already_sent"


def test_what_a_person_sent_is_not_set_aside_besides(scene: Scene, log: ToldLog) -> None:
    scene.die(b"a", attributes={COUNTER_ATTRIBUTE: "3"})
    (dead_letter,) = scene.broker.browse(FIRST, messages_max=1)
    by_hand = Replay(
        replay_id=dead_letter_replay_id(FIRST, dead_letter),
        dead_letter_queue=FIRST,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=0,
        due_at=0.0,
        sent=True,
    )
    log.replays[by_hand.replay_id] = by_hand
    assert run(scene) == [Ack()]
    assert len(scene.receive(SECOND)) == 0


def test_what_a_person_meant_to_send_is_sent_and_not_set_aside(scene: Scene, log: ToldLog) -> None:
    """They may have died behind the send: a letter in the second tier would be one too many."""
    scene.die(b"a", attributes={COUNTER_ATTRIBUTE: "3"})
    (dead_letter,) = scene.broker.browse(FIRST, messages_max=1)
    by_hand = Replay(
        replay_id=dead_letter_replay_id(FIRST, dead_letter),
        dead_letter_queue=FIRST,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=0,
        due_at=0.0,
    )
    log.replays[by_hand.replay_id] = by_hand
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]
    assert log.replays[by_hand.replay_id].sent
    assert len(scene.receive(SECOND)) == 0


def test_the_record_of_another_dead_letter_with_the_same_id_does_not_count(scene: Scene, log: ToldLog) -> None:
    """A broker that lost its last moments gives the ids of then once more. The record did not lose them."""
    scene.die(b"a")
    (dead_letter,) = scene.broker.browse(FIRST, messages_max=1)
    lost = replace(dead_letter, enqueued_at=dead_letter.enqueued_at - 1.0)
    replay_id = dead_letter_replay_id(FIRST, lost)
    log.replays[replay_id] = Replay(
        replay_id=replay_id,
        dead_letter_queue=FIRST,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=1,
        due_at=0.0,
        sent=True,
    )
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]


def test_without_a_record_a_crash_sends_once_more_at_most(scene: Scene) -> None:
    scene.log = NoLog()
    scene.die(b"a")
    with pytest.raises(Crash):
        scene.handler(probe=crash_at(Step.REPLAY_SENT)).begin(scene.receive(FIRST)).run()
    scene.stand.advance(LEASE + 300)
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a", b"a"]
    assert run(scene) == []


def test_after_an_interrupt_nothing_is_sent(scene: Scene) -> None:
    scene.die(b"a")
    execution = scene.handler().begin(scene.receive(FIRST))
    execution.interrupt()
    assert list(execution.run().values()) == [Release(uncounted=True)]
    assert arrived(scene) == []


def test_the_wait_that_was_chosen_first_holds_whatever_the_settings_say_later(scene: Scene, log: ToldLog) -> None:
    scene.die(b"a")
    slow = scene.handler(ReplayPolicy(base_seconds=1_000_000), probe=crash_at(Step.REPLAY_INTENDED))
    dead_letters = scene.receive(FIRST)
    with pytest.raises(Crash):
        slow.begin(dead_letters).run()
    (due_at,) = [replay.due_at for replay in log.replays.values()]
    scene.stand.advance(LEASE + 1)
    scene.look(scene.handler())
    told = [event for event in scene.events if isinstance(event, DeadLetterReplayed)][-1]
    assert told.due_at == due_at


class OnSqs:
    """A broker in memory with the bounds of SQS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(self._broker.capabilities, delay_seconds_max=900.0, release_delay_seconds_max=43_200.0)


def test_a_wait_beyond_what_the_queue_can_delay_is_held_and_never_longer_than_a_hold_can_be(scene: Scene) -> None:
    scene.die(b"a")
    scene.is_due_in(86_400)
    handler = scene.handler(broker=OnSqs(scene.broker))  # type: ignore[arg-type]  # as above
    delays = []
    for _ in range(3):
        (settlement,) = scene.look(handler).values()
        delays.append(settlement.delay_seconds if isinstance(settlement, Release) else None)
        scene.stand.advance(delays[-1] or 0)
    assert delays == [43_140.0, pytest.approx(86_400 - 43_140 - 900), None]
    assert scene.results() == ["waiting", "waiting", "sent"]
    assert arrived(scene) == []
    scene.stand.advance(900)
    assert arrived(scene) == [b"a"]


def test_a_message_is_not_delayed_past_half_of_its_retention(log: ToldLog) -> None:
    stand = MemoryStand()
    brief = replace(TIERS[0], retention_seconds=1_000.0)
    scene = Scene(stand=stand, broker=stand.broker(queues=[brief, TIERS[1]]), log=log)
    scene.die(b"a")
    scene.is_due_in(5_000)
    handler = scene.handler()
    assert list(scene.look(handler).values()) == [Release(delay_seconds=4_500.0, uncounted=True)]
    stand.advance(4_500)
    assert list(scene.look(handler).values()) == [Ack()]
    assert arrived(scene) == []
    stand.advance(500)
    assert arrived(scene) == [b"a"]


def test_a_fifo_queue_delays_nothing(scene: Scene) -> None:
    queue, dead_letters = "orders.fifo", "orders.fifo-dlq"
    scene.broker.send(queue, [Outgoing(body=b"a")])
    (delivery,) = scene.receive(queue)
    scene.settle({delivery.receipt: DIED}, [delivery])
    (dead_letter,) = scene.receive(dead_letters)
    handler = scene.handler(ReplayPolicy(base_seconds=600), sources=(queue,))
    (settlement,) = handler.begin([dead_letter]).run().values()
    assert isinstance(settlement, Release)
    scene.settle({dead_letter.receipt: settlement}, [dead_letter])
    scene.stand.advance(settlement.delay_seconds)
    (dead_letter,) = scene.receive(dead_letters)
    assert list(handler.begin([dead_letter]).run().values()) == [Ack()]
    assert [each.message.body for each in scene.receive(queue)] == [b"a"]


def test_an_execution_holds_nothing_of_its_own(scene: Scene) -> None:
    scene.die(b"a")
    execution: ReplayExecution = scene.handler().begin(scene.receive(FIRST))
    assert extended(execution)
    execution.drain()
    execution.release()
    assert [type(each) for each in execution.run().values()] == [Ack]


def test_one_message_that_is_refused_alone_is_told_of(scene: Scene) -> None:
    refused = ConfigurationError("never")
    broker = Sending(scene.broker, fails={b"a": refused})
    assert send_each(broker, QUEUE, [Outgoing(body=b"a")]) == [refused]  # type: ignore[arg-type]  # as above

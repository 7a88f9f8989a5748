"""Batches of the replayer in which the broker, the log or a message fails."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.claims import extended
from tests.conformance.broker_harnesses import LEASE, MemoryHarness
from tests.conformance.replay.scene import DIED, DLQ, FINAL_DLQ, QUEUE, TIERS, Crash, Scene, crash_at

from penstock.dead_letters.policy import ReplayPolicy
from penstock.dead_letters.replayer import ReplayExecution
from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UnknownOutcome
from penstock.events import DeadLetterReplayed, ReplaysUnrecorded
from penstock.messaging.broker import Broker, BrokerCapabilities, send_each
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, NoLog, Replay, dead_letter_replay_id
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.messaging.steps import Step

UNAVAILABLE = TemporaryError("it is away")


@dataclass
class MemoryReplayLog:
    """A `ReplayLog` in memory that can be unavailable."""

    replays: dict[str, Replay] = field(default_factory=dict)
    open_fails: bool = False
    sent_fails: bool = False

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        if self.open_fails:
            raise UNAVAILABLE
        for replay in replays:
            self.replays.setdefault(replay.replay_id, replay)
        return self.find([replay.replay_id for replay in replays])

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        return {id: self.replays[id] for id in replay_ids if id in self.replays}

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        if self.sent_fails:
            raise UNAVAILABLE
        for id in replay_ids:
            self.replays[id] = replace(self.replays[id], sent=True)


class FailingBroker:
    """Forwards to a broker, but raises the error in ``fails`` for a send with a message of that body."""

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


class PerMessageBroker(FailingBroker):
    """One with a result for each message. The error for the body `*` is raised for the whole send."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        if (of_all := self._fails.get(b"*")) is not None:
            raise of_all
        return [self._fails.get(message.body) or self._broker.send(queue, [message])[0] for message in messages]


@pytest.fixture
def log() -> MemoryReplayLog:
    return MemoryReplayLog()


@pytest.fixture
def scene(log: MemoryReplayLog) -> Iterator[Scene]:
    stand = MemoryHarness()
    yield Scene(harness=stand, broker=stand.broker(queues=TIERS), log=log)
    stand.close()


def run(scene: Scene, broker: object = None, **options: object) -> list[object]:
    """Run one batch and return its settlements, in order."""
    handler = scene.handler(broker=broker, **options)  # type: ignore[arg-type]  # it has the methods that are used
    return list(scene.run_once(handler).values())


def arrived(scene: Scene) -> list[bytes]:
    scene.harness.advance(1)
    return [delivery.message.body for delivery in scene.take(QUEUE)]


def test_an_unavailable_log_makes_messages_wait_with_backoff_and_sends_nothing(
    scene: Scene, log: MemoryReplayLog
) -> None:
    log.open_fails = True
    scene.die(b"a", b"b")
    handler = scene.handler()
    waits = []
    for _ in range(8):
        answers = list(scene.run_once(handler).values())
        assert answers == [answers[0]] * 2
        (settlement, _) = answers
        assert isinstance(settlement, Release)
        assert (settlement.uncounted, settlement.reason) == (True, "it is away")
        waits.append(settlement.delay_seconds)
        scene.harness.advance(settlement.delay_seconds)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]  # the random number is one half
    assert arrived(scene) == []
    assert scene.results() == ["released"] * 16
    log.open_fails = False
    scene.harness.advance(60)
    assert [type(each) for each in scene.run_once(handler).values()] == [Ack, Ack]
    assert arrived(scene) == [b"a", b"b"]
    log.open_fails = True
    scene.die(b"c")
    (settlement,) = scene.run_once(handler).values()
    assert settlement == Release(delay_seconds=0.5, uncounted=True, reason="it is away")  # the backoff starts again


def test_a_sent_message_is_acked_even_if_the_log_cannot_record_it(scene: Scene, log: MemoryReplayLog) -> None:
    log.sent_fails = True
    scene.die(b"a")
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]
    (unmarked,) = [event for event in scene.events if isinstance(event, ReplaysUnrecorded)]
    assert unmarked.error == "TemporaryError: it is away"


@pytest.mark.parametrize("error", [UNAVAILABLE, UnknownOutcome("perhaps")])
def test_a_failed_send_makes_the_whole_batch_wait(scene: Scene, log: MemoryReplayLog, error: PenstockError) -> None:
    scene.die(b"a", b"b")
    answers = run(scene, FailingBroker(scene.broker, fails={b"b": error}))
    assert answers == [Release(delay_seconds=0.5, uncounted=True, reason=str(error))] * 2
    assert not any(replay.sent for replay in log.replays.values())
    assert arrived(scene) == []


def test_accepted_messages_of_a_batch_are_marked_and_the_rest_is_retried_under_the_same_id(
    scene: Scene, log: MemoryReplayLog
) -> None:
    scene.die(b"a", b"b", b"c")
    answers = run(scene, PerMessageBroker(scene.broker, fails={b"b": UnknownOutcome("perhaps")}))
    assert [type(each) for each in answers] == [Ack, Release, Ack]
    assert sorted(replay.sent for replay in log.replays.values()) == [False, True, True]
    assert arrived(scene) == [b"a", b"c"]
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"b"]
    assert len(log.replays) == 3


def test_a_failed_try_send_makes_the_whole_batch_wait(scene: Scene) -> None:
    scene.die(b"a", b"b")
    assert [type(each) for each in run(scene, PerMessageBroker(scene.broker, fails={b"*": UNAVAILABLE}))] == [
        Release,
        Release,
    ]


def test_an_error_of_the_queue_is_raised_and_its_messages_stay(scene: Scene) -> None:
    scene.die(b"a")
    missing = ConfigurationError("There is no queue 'q'.")
    with pytest.raises(ConfigurationError, match="There is no queue"):
        run(scene, PerMessageBroker(scene.broker, fails={b"*": missing}))
    scene.harness.advance(LEASE + 1)
    assert len(scene.receive(DLQ)) == 1


@pytest.mark.parametrize("kind", [FailingBroker, PerMessageBroker])
def test_a_message_that_its_queue_never_accepts_is_set_aside_and_the_others_are_sent(
    scene: Scene, kind: type[FailingBroker]
) -> None:
    scene.die(b"a", b"huge", b"c")
    answers = run(scene, kind(scene.broker, fails={b"huge": ConfigurationError("it has too many bytes")}))
    assert [type(each) for each in answers] == [Ack, DeadLetter, Ack]
    assert answers[1] == DeadLetter(reason="its queue q does not accept it: it has too many bytes", set_aside=True)
    assert arrived(scene) == [b"a", b"c"]
    assert len(scene.receive(FINAL_DLQ)) == 1


def test_a_server_error_about_the_queue_sets_no_message_aside(scene: Scene) -> None:
    """A foreign value in Redis occupies the key of the queue. The messages are fine and stay out of the final DLQ."""
    scene.die(b"a", b"b")
    refused = ConfigurationError("it holds something else under a key of ours")
    refused.__cause__ = OSError("WRONGTYPE")
    with pytest.raises(ConfigurationError, match="something else"):
        run(scene, FailingBroker(scene.broker, fails={b"a": refused, b"b": refused}))
    scene.harness.advance(LEASE + 1)
    assert len(scene.receive(DLQ)) == 2


def test_a_batch_is_sent_in_one_call_if_nothing_is_rejected(scene: Scene) -> None:
    broker = FailingBroker(scene.broker, fails={})
    scene.die(*(b"%d" % n for n in range(20)))
    run(scene, broker)
    assert broker.sends == [20]


def test_a_message_marked_as_sent_is_only_deleted(scene: Scene, log: MemoryReplayLog) -> None:
    scene.die(b"a")
    dead_letters = scene.receive(DLQ)
    with pytest.raises(Crash):
        scene.handler(probe=crash_at(Step.REPLAY_MARKED)).begin(dead_letters).run()
    assert arrived(scene) == [b"a"]
    scene.harness.advance(LEASE)
    scene.harness.advance(300)  # past the broker's deduplication window
    assert run(scene) == [Ack()]
    assert arrived(scene) == []
    assert scene.results()[-1] == "already_sent"


def test_a_message_that_a_person_replayed_is_not_set_aside(scene: Scene, log: MemoryReplayLog) -> None:
    scene.die(b"a", attributes={COUNTER_ATTRIBUTE: "3"})
    (dead_letter,) = scene.broker.browse(DLQ, messages_max=1)
    by_hand = Replay(
        replay_id=dead_letter_replay_id(DLQ, dead_letter),
        dead_letter_queue=DLQ,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=0,
        due_at=0.0,
        sent=True,
    )
    log.replays[by_hand.replay_id] = by_hand
    assert run(scene) == [Ack()]
    assert len(scene.receive(FINAL_DLQ)) == 0


def test_an_unfinished_replay_of_a_person_is_completed_and_not_set_aside(scene: Scene, log: MemoryReplayLog) -> None:
    """The command may have died after its send: setting the message aside would duplicate it."""
    scene.die(b"a", attributes={COUNTER_ATTRIBUTE: "3"})
    (dead_letter,) = scene.broker.browse(DLQ, messages_max=1)
    by_hand = Replay(
        replay_id=dead_letter_replay_id(DLQ, dead_letter),
        dead_letter_queue=DLQ,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=0,
        due_at=0.0,
    )
    log.replays[by_hand.replay_id] = by_hand
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]
    assert log.replays[by_hand.replay_id].sent
    assert len(scene.receive(FINAL_DLQ)) == 0


def test_the_record_of_another_message_with_the_same_id_is_ignored(scene: Scene, log: MemoryReplayLog) -> None:
    """A broker that lost its latest writes assigns the same ids again, while the log still has the old records."""
    scene.die(b"a")
    (dead_letter,) = scene.broker.browse(DLQ, messages_max=1)
    lost = replace(dead_letter, enqueued_at=dead_letter.enqueued_at - 1.0)
    replay_id = dead_letter_replay_id(DLQ, lost)
    log.replays[replay_id] = Replay(
        replay_id=replay_id,
        dead_letter_queue=DLQ,
        dead_letter_id=dead_letter.id,
        queue=QUEUE,
        count=1,
        due_at=0.0,
        sent=True,
    )
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a"]


def test_without_a_log_a_crash_sends_a_message_at_most_once_more(scene: Scene) -> None:
    scene.log = NoLog()
    scene.die(b"a")
    with pytest.raises(Crash):
        scene.handler(probe=crash_at(Step.REPLAY_SENT)).begin(scene.receive(DLQ)).run()
    scene.harness.advance(LEASE + 300)
    assert run(scene) == [Ack()]
    assert arrived(scene) == [b"a", b"a"]
    assert run(scene) == []


def test_after_an_interrupt_nothing_is_sent(scene: Scene) -> None:
    scene.die(b"a")
    execution = scene.handler().begin(scene.receive(DLQ))
    execution.interrupt()
    assert list(execution.run().values()) == [Release(uncounted=True)]
    assert arrived(scene) == []


def test_a_recorded_due_time_is_kept_when_the_settings_change(scene: Scene, log: MemoryReplayLog) -> None:
    scene.die(b"a")
    slow = scene.handler(ReplayPolicy(base_seconds=1_000_000), probe=crash_at(Step.REPLAY_INTENDED))
    dead_letters = scene.receive(DLQ)
    with pytest.raises(Crash):
        slow.begin(dead_letters).run()
    (due_at,) = [replay.due_at for replay in log.replays.values()]
    scene.harness.advance(LEASE + 1)
    scene.run_once(scene.handler())
    last = [event for event in scene.events if isinstance(event, DeadLetterReplayed)][-1]
    assert last.due_at == due_at


class SqsLimitsBroker:
    """A broker in memory with the delay limits of SQS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(self._broker.capabilities, delay_seconds_max=900.0, release_delay_seconds_max=43_200.0)


def test_a_wait_beyond_the_delay_limit_is_split_into_releases_within_their_limit(scene: Scene) -> None:
    scene.die(b"a")
    scene.make_due_in(86_400)
    handler = scene.handler(broker=SqsLimitsBroker(scene.broker))  # type: ignore[arg-type]  # as above
    delays = []
    for _ in range(3):
        (settlement,) = scene.run_once(handler).values()
        delays.append(settlement.delay_seconds if isinstance(settlement, Release) else None)
        scene.harness.advance(delays[-1] or 0)
    assert delays == [43_140.0, pytest.approx(86_400 - 43_140 - 900), None]
    assert scene.results() == ["waiting", "waiting", "sent"]
    assert arrived(scene) == []
    scene.harness.advance(900)
    assert arrived(scene) == [b"a"]


def test_a_message_is_not_delayed_past_half_of_its_retention(log: MemoryReplayLog) -> None:
    stand = MemoryHarness()
    short_lived = replace(TIERS[0], retention_seconds=1_000.0)
    scene = Scene(harness=stand, broker=stand.broker(queues=[short_lived, TIERS[1]]), log=log)
    scene.die(b"a")
    scene.make_due_in(5_000)
    handler = scene.handler()
    assert list(scene.run_once(handler).values()) == [Release(delay_seconds=4_500.0, uncounted=True)]
    stand.advance(4_500)
    assert list(scene.run_once(handler).values()) == [Ack()]
    assert arrived(scene) == []
    stand.advance(500)
    assert arrived(scene) == [b"a"]


def test_a_replay_to_a_fifo_queue_waits_in_the_dlq_and_is_sent_without_a_delay(scene: Scene) -> None:
    queue, dead_letters = "orders.fifo", "orders.fifo-dlq"
    scene.broker.send(queue, [Outgoing(body=b"a")])
    (delivery,) = scene.receive(queue)
    scene.settle({delivery.receipt: DIED}, [delivery])
    (dead_letter,) = scene.receive(dead_letters)
    handler = scene.handler(ReplayPolicy(base_seconds=600), sources=(queue,))
    (settlement,) = handler.begin([dead_letter]).run().values()
    assert isinstance(settlement, Release)
    scene.settle({dead_letter.receipt: settlement}, [dead_letter])
    scene.harness.advance(settlement.delay_seconds)
    (dead_letter,) = scene.receive(dead_letters)
    assert list(handler.begin([dead_letter]).run().values()) == [Ack()]
    assert [each.message.body for each in scene.receive(queue)] == [b"a"]


def test_an_execution_needs_no_claim_and_runs_after_drain_and_release(scene: Scene) -> None:
    scene.die(b"a")
    execution: ReplayExecution = scene.handler().begin(scene.receive(DLQ))
    assert extended(execution)
    execution.drain()
    execution.release()
    assert [type(each) for each in execution.run().values()] == [Ack]


def test_send_each_returns_the_error_of_a_single_rejected_message(scene: Scene) -> None:
    refused = ConfigurationError("never")
    broker = FailingBroker(scene.broker, fails={b"a": refused})
    assert send_each(broker, QUEUE, [Outgoing(body=b"a")]) == [refused]  # type: ignore[arg-type]  # as above

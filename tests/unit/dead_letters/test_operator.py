"""Replay by a person: the order of steps, the log, and the rate."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.operator import CHUNK, ReplayItem, ReplayRate, ReplaySender, matching
from penstock.dead_letters.reader import BrowsingReader
from penstock.errors import TemporaryError
from penstock.messaging.death import SET_ASIDE_ATTRIBUTE
from penstock.messaging.message import ORIGIN_ATTRIBUTE, Message, Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE, Replay
from penstock.messaging.steps import Step
from penstock.testing import FakeClock

QUEUE, DLQ = "orders", "orders-dlq"


class MemoryReplayLog:
    """A `ReplayLog` in memory. `marked` has the ids marked as sent, in order."""

    def __init__(self) -> None:
        self.known: dict[str, Replay] = {}
        self.marked: list[str] = []

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        for replay in replays:
            self.known.setdefault(replay.replay_id, replay)
        return self.find([replay.replay_id for replay in replays])

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        return {id: self.known[id] for id in replay_ids if id in self.known}

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        self.marked += replay_ids
        for id in replay_ids:
            old = self.known[id]
            self.known[id] = Replay(
                replay_id=id,
                dead_letter_queue=old.dead_letter_queue,
                dead_letter_id=old.dead_letter_id,
                queue=old.queue,
                count=old.count,
                due_at=old.due_at,
                sent=True,
            )


class Interrupted(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(auto_advance=True)


@pytest.fixture
def broker(clock: FakeClock) -> MemoryBroker:
    return MemoryBroker(clock=clock, deduplication_window_seconds=300.0)


def items(broker: MemoryBroker, count: int, *, to: str = QUEUE) -> list[ReplayItem]:
    attributes = MappingProxyType({COUNTER_ATTRIBUTE: "3", SET_ASIDE_ATTRIBUTE: "often enough"})
    broker.send(DLQ, [Outgoing(body=b"%d" % number, attributes=attributes) for number in range(count)])
    return [
        ReplayItem(dead_letter=dead_letter, queue=to)
        for page in BrowsingReader(broker, DLQ).pages()
        for dead_letter in page
    ]


def messages_in(broker: MemoryBroker, queue: str = QUEUE) -> list[Message]:
    return list(broker.browse(queue, messages_max=1_000))


def test_messages_are_sent_then_marked_and_only_then_deleted(broker: MemoryBroker, clock: FakeClock) -> None:
    log, states = MemoryReplayLog(), list[tuple[Step, int, int, int]]()

    def probe(step: Step) -> None:
        states.append((step, len(messages_in(broker)), len(log.marked), len(messages_in(broker, DLQ))))

    sent = ReplaySender(broker, log, clock=clock, probe=probe).send(BrowsingReader(broker, DLQ), items(broker, 2))
    assert states == [
        (Step.REPLAY_INTENDED, 0, 0, 2),
        (Step.REPLAY_SENT, 2, 0, 2),
        (Step.REPLAY_MARKED, 2, 2, 2),
    ]
    assert (messages_in(broker, DLQ), sent.sent_before) == ([], 0)
    assert list(sent.ids) == [message.id for message in messages_in(broker)]
    for message, item in zip(messages_in(broker), sent.items, strict=True):
        assert message.attributes == {
            COUNTER_ATTRIBUTE: "0",
            REPLAY_ID_ATTRIBUTE: item.replay.replay_id,
            ORIGIN_ATTRIBUTE: item.dead_letter.id,
        }


@pytest.mark.parametrize("step", [Step.REPLAY_INTENDED, Step.REPLAY_SENT, Step.REPLAY_MARKED])
def test_a_replay_interrupted_at_any_step_is_completed_by_the_next(
    broker: MemoryBroker, clock: FakeClock, step: Step
) -> None:
    def probe(reached: Step) -> None:
        if reached is step:
            raise Interrupted

    log, planned = MemoryReplayLog(), items(broker, 3)
    with pytest.raises(Interrupted):
        ReplaySender(broker, log, clock=clock, probe=probe).send(BrowsingReader(broker, DLQ), planned)
    again = ReplaySender(broker, log, clock=clock).send(BrowsingReader(broker, DLQ), planned)
    assert (len(messages_in(broker)), messages_in(broker, DLQ)) == (3, [])
    assert again.sent_before == (3 if step is Step.REPLAY_MARKED else 0)


def test_a_persons_replay_overrides_an_intent_of_the_replayer(broker: MemoryBroker, clock: FakeClock) -> None:
    log = MemoryReplayLog()
    (item,) = items(broker, 1, to="elsewhere")
    id = item.replay.replay_id
    log.known[id] = Replay(
        replay_id=id, dead_letter_queue=DLQ, dead_letter_id=item.dead_letter.id, queue=QUEUE, count=2, due_at=9e9
    )
    ReplaySender(broker, log, clock=clock).send(BrowsingReader(broker, DLQ), [item])
    (message,) = messages_in(broker, "elsewhere")
    assert (message.attributes[COUNTER_ATTRIBUTE], log.marked) == ("0", [id])


def test_nothing_is_sent_if_the_log_is_unavailable(broker: MemoryBroker, clock: FakeClock) -> None:
    class UnavailableLog(MemoryReplayLog):
        def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
            raise TemporaryError("away")

    planned = items(broker, 1)
    with pytest.raises(TemporaryError):
        ReplaySender(broker, UnavailableLog(), clock=clock).send(BrowsingReader(broker, DLQ), planned)
    assert (messages_in(broker), len(messages_in(broker, DLQ))) == ([], 1)


def test_messages_dead_lettered_after_the_start_are_skipped(broker: MemoryBroker, clock: FakeClock) -> None:
    items(broker, 1)
    began_at = clock.now()
    clock.advance(1)
    items(broker, 1)
    with BrowsingReader(broker, DLQ) as dead_letters:
        found = matching(dead_letters, DeadLetterFilter(), clock=clock, stopped=lambda: False, until=began_at)
        assert [dead_letter.message.enqueued_at for page in found for dead_letter in page] == [began_at]


def test_matching_yields_nothing_after_a_stop_request(broker: MemoryBroker, clock: FakeClock) -> None:
    items(broker, 1)
    with BrowsingReader(broker, DLQ) as dead_letters:
        assert list(matching(dead_letters, DeadLetterFilter(), clock=clock, stopped=lambda: True)) == []


@pytest.mark.parametrize(("rate", "chunk"), [(None, CHUNK), (0.5, 1), (7.9, 7), (1_000.0, CHUNK)])
def test_a_chunk_is_at_most_one_second_of_the_rate(clock: FakeClock, rate: float | None, chunk: int) -> None:
    assert ReplayRate(rate, clock=clock, stopped=lambda: False).chunk == chunk


def test_the_rate_is_kept_over_all_chunks(clock: FakeClock) -> None:
    replay_rate = ReplayRate(10.0, clock=clock, stopped=lambda: False)
    for _ in range(5):
        clock.advance(0.3)  # the time that sending takes does not lower the rate
        replay_rate.wait(10)
    assert clock.monotonic() == pytest.approx(5.0, abs=0.01)


def test_a_stop_request_ends_the_wait_for_the_rate(clock: FakeClock) -> None:
    replay_rate = ReplayRate(0.001, clock=clock, stopped=lambda: clock.monotonic() > 1.0)
    replay_rate.wait(1)
    assert clock.monotonic() < 2.0

"""Replay by a person through a broker that accepts only some messages: accepted messages are not sent again."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from tests.unit.brokers.sqs_partial import PartialQueue, away, denied, throttled, unanswered

from penstock.dead_letters.operator import ReplayedChunk, ReplayItem, ReplaySender
from penstock.dead_letters.reader import DeadLetteredMessage, DeadLetterReader
from penstock.errors import ConfigurationError, PenstockError
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Message
from penstock.messaging.steps import Probe, Step, no_probe


class Killed(BaseException):
    """Stands for the end of the process."""


class RemainingDeadLetters:
    """The dead letters that are left, with the one method of a reader that a sender calls."""

    def __init__(self) -> None:
        self.ids = {str(n) for n in range(40)}

    def remove(self, ids: Sequence[str]) -> int:
        found = self.ids & set(ids)
        self.ids -= found
        return len(found)


class ReplaySetup:
    """Forty dead letters, a replay log, and the queue to which they are sent."""

    def __init__(self) -> None:
        self.queue = PartialQueue()
        self.broker = self.queue.broker()
        self.ledger = Ledger.open("sqlite://")
        self.remaining = RemainingDeadLetters()

    def send(self, probe: Probe = no_probe) -> ReplayedChunk:
        items = [
            ReplayItem(
                dead_letter=DeadLetteredMessage(
                    queue="orders-dlq", message=Message(id=id, body=id.encode(), enqueued_at=1.0)
                ),
                queue="orders",
            )
            for id in sorted(self.remaining.ids, key=int)
        ]
        return ReplaySender(self.broker, self.ledger.replays, clock=SystemClock(), probe=probe).send(
            cast(DeadLetterReader, self.remaining), items
        )

    def drain(self) -> None:
        self.queue.before = self.queue.after = lambda call: None
        self.queue.busy = set()
        assert self.send().failed is None

    def sent_twice(self) -> list[str]:
        return [body for body, times in self.queue.taken.items() if times > 1]


@pytest.fixture
def setup() -> ReplaySetup:
    return ReplaySetup()


@pytest.mark.parametrize("fault", [throttled, away, denied])
def test_messages_accepted_before_a_failed_call_are_deleted_and_not_sent_again(
    setup: ReplaySetup, fault: Callable[[int], None]
) -> None:
    setup.queue.before = lambda call: fault(call) if call > 2 else None
    sent = setup.send()
    assert (len(sent.items), len(sent.ids), isinstance(sent.failed, PenstockError)) == (20, 20, True)
    assert len(setup.remaining.ids) == 20
    setup.drain()
    assert (setup.remaining.ids, len(setup.queue.taken), setup.sent_twice()) == (set(), 40, [])


def test_an_error_of_the_queue_is_raised_if_it_accepted_nothing(setup: ReplaySetup) -> None:
    setup.queue.before = denied
    with pytest.raises(ConfigurationError):
        setup.send()
    assert (len(setup.remaining.ids), setup.queue.calls) == (40, 1)


def test_a_message_that_its_queue_rejects_stays_and_the_others_are_sent_once(setup: ReplaySetup) -> None:
    setup.queue.refused = {"7"}
    sent = setup.send()
    assert [item.dead_letter.id for item, _ in sent.refused] == ["7"]
    assert (len(sent.items), setup.remaining.ids, sent.failed) == (39, {"7"}, None)
    setup.queue.refused = set()
    setup.drain()
    assert (setup.remaining.ids, len(setup.queue.taken), setup.sent_twice()) == (set(), 40, [])


def test_only_the_call_without_a_response_is_sent_again(setup: ReplaySetup) -> None:
    setup.queue.after = lambda call: unanswered() if call == 2 else None
    assert setup.send().failed is not None
    setup.drain()
    assert (setup.remaining.ids, len(setup.queue.taken), len(setup.sent_twice())) == (set(), 40, 10)


@pytest.mark.parametrize("time", [1, 2, 3, 4])
def test_after_a_kill_behind_a_call_only_that_call_is_sent_again(setup: ReplaySetup, time: int) -> None:
    times = 0

    def probe(step: Step) -> None:
        nonlocal times
        times += step is Step.REPLAY_SENT
        if times == time:
            raise Killed

    with pytest.raises(Killed):
        setup.send(probe)
    setup.drain()
    assert (setup.remaining.ids, len(setup.queue.taken), len(setup.sent_twice())) == (set(), 40, 10)

"""A person's replay before a broker that takes a part of what is sent: what was taken is never sent again."""

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


class Died(BaseException):
    """The process ends here."""


class Held:
    """The dead letters that are left, as far as a sender asks for them."""

    def __init__(self) -> None:
        self.ids = {str(n) for n in range(40)}

    def remove(self, ids: Sequence[str]) -> int:
        there = self.ids & set(ids)
        self.ids -= there
        return len(there)


class Scene:
    """Forty dead letters, their record and their queue."""

    def __init__(self) -> None:
        self.queue = PartialQueue()
        self.broker = self.queue.broker()
        self.ledger = Ledger.open("sqlite://")
        self.held = Held()

    def send(self, probe: Probe = no_probe) -> ReplayedChunk:
        items = [
            ReplayItem(
                dead_letter=DeadLetteredMessage(
                    queue="orders-dlq", message=Message(id=id, body=id.encode(), enqueued_at=1.0)
                ),
                queue="orders",
            )
            for id in sorted(self.held.ids, key=int)
        ]
        return ReplaySender(self.broker, self.ledger.replays, clock=SystemClock(), probe=probe).send(
            cast(DeadLetterReader, self.held), items
        )

    def drain(self) -> None:
        self.queue.before = self.queue.after = lambda call: None
        self.queue.busy = set()
        assert self.send().failed is None

    def twice(self) -> list[str]:
        return [body for body, times in self.queue.taken.items() if times > 1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("fault", [throttled, away, denied])
def test_what_was_taken_before_a_call_failed_is_marked_and_its_dead_letters_are_gone(
    scene: Scene, fault: Callable[[int], None]
) -> None:
    scene.queue.before = lambda call: fault(call) if call > 2 else None
    sent = scene.send()
    assert (len(sent.items), len(sent.ids), isinstance(sent.failed, PenstockError)) == (20, 20, True)
    assert len(scene.held.ids) == 20
    scene.drain()
    assert (scene.held.ids, len(scene.queue.taken), scene.twice()) == (set(), 40, [])


def test_an_error_of_the_queue_is_raised_if_it_took_nothing(scene: Scene) -> None:
    scene.queue.before = denied
    with pytest.raises(ConfigurationError):
        scene.send()
    assert (len(scene.held.ids), scene.queue.calls) == (40, 1)


def test_a_dead_letter_that_its_queue_refuses_stays_and_the_others_go_once(scene: Scene) -> None:
    scene.queue.refused = {"7"}
    sent = scene.send()
    assert [item.dead_letter.id for item, _ in sent.refused] == ["7"]
    assert (len(sent.items), scene.held.ids, sent.failed) == (39, {"7"}, None)
    scene.queue.refused = set()
    scene.drain()
    assert (scene.held.ids, len(scene.queue.taken), scene.twice()) == (set(), 40, [])


def test_without_an_answer_only_that_call_is_sent_again(scene: Scene) -> None:
    scene.queue.after = lambda call: unanswered() if call == 2 else None
    assert scene.send().failed is not None
    scene.drain()
    assert (scene.held.ids, len(scene.queue.taken), len(scene.twice())) == (set(), 40, 10)


@pytest.mark.parametrize("time", [1, 2, 3, 4])
def test_killed_behind_a_call_at_most_that_call_is_sent_again(scene: Scene, time: int) -> None:
    times = 0

    def probe(step: Step) -> None:
        nonlocal times
        times += step is Step.REPLAY_SENT
        if times == time:
            raise Died

    with pytest.raises(Died):
        scene.send(probe)
    scene.drain()
    assert (scene.held.ids, len(scene.queue.taken), len(scene.twice())) == (set(), 40, 10)

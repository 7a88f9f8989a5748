"""The relay before a broker that takes a part of what is sent: what was taken is never sent again."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.unit.brokers.sqs_partial import PartialQueue, away, denied, throttled, unanswered

from penstock import App
from penstock.errors import PenstockError, TemporaryError, UnknownOutcome
from penstock.events import Event, OutboxRejected, OutboxSent
from penstock.messaging.broker import PARTIAL_CHUNK
from penstock.messaging.clock import SystemClock
from penstock.transactions import create_tables
from penstock.transactions.relay import Relay, RelaySettings
from penstock.transactions.store import TransactionStore


class Died(BaseException):
    """The process ends here."""


class Scene:
    """An outbox with rows, and relays of it before one queue."""

    def __init__(self, folder: Path) -> None:
        self.engine: Engine = create_engine(f"sqlite:///{folder / 'shop.db'}")
        create_tables(self.engine)
        self.queue = PartialQueue()
        self.broker = self.queue.broker()
        self.app = App(broker=self.broker)
        self.events: list[Event] = []

    def write(self, count: int, *, queue: str = "orders", group: str | None = None) -> None:
        with self.engine.begin() as connection:
            self.app.outbox(connection).send_many(queue, range(count), group=group)

    def relay(self, store: TransactionStore | None = None) -> Relay:
        return Relay(
            store or TransactionStore(self.engine),
            broker=lambda: self.broker,
            settings=RelaySettings(),
            clock=SystemClock(),
            random=lambda: 0.5,
            emit=self.events.append,
        )

    def rows(self) -> list[int]:
        with self.engine.begin() as connection:
            return sorted(int(body) for (body,) in connection.execute(text("SELECT body FROM penstock_outbox")))

    def expire(self) -> None:
        """The claims of relays that died end, and refused rows are due."""
        with self.engine.begin() as connection:
            connection.execute(text("UPDATE penstock_outbox SET claimed_until = 0, due_at = 0"))

    def drain(self) -> None:
        self.queue.before = self.queue.after = lambda call: None
        self.queue.busy = set()
        self.expire()
        self.relay().once()

    def twice(self) -> list[str]:
        return [body for body, times in self.queue.taken.items() if times > 1]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_refused_row_waits_with_its_reason_and_its_neighbours_go_once(scene: Scene) -> None:
    scene.write(26)
    scene.queue.refused = {"7"}
    for _ in range(3):
        scene.expire()
        scene.relay().step()
    assert (scene.rows(), len(scene.queue.taken), scene.twice()) == ([7], 25, [])
    (refused, *_) = [event for event in scene.events if isinstance(event, OutboxRejected)]
    assert "InvalidParameterValue" in refused.reason
    assert sum(len(event.message_ids) for event in scene.events if isinstance(event, OutboxSent)) == 25


def test_an_entry_that_fails_for_now_is_the_only_one_that_is_sent_again(scene: Scene) -> None:
    scene.write(26)
    scene.queue.busy = {"3"}
    with pytest.raises(TemporaryError, match="InternalError"):
        scene.relay().step()
    assert scene.rows() == [3, *range(PARTIAL_CHUNK, 26)]
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken), scene.twice()) == ([], 26, [])


@pytest.mark.parametrize("fault", [throttled, away, denied])
def test_a_call_that_nothing_was_taken_of_leaves_what_was_taken_before_it_sent(
    scene: Scene, fault: Callable[[int], None]
) -> None:
    """Throttling, a network that is away, and rights that are withdrawn."""
    scene.write(40)
    scene.queue.before = lambda call: fault(call) if call > 2 else None
    with suppress(PenstockError):
        scene.relay().step()
    assert len(scene.rows()) == 20
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken), scene.twice()) == ([], 40, [])


def test_without_an_answer_only_that_call_is_sent_again(scene: Scene) -> None:
    scene.write(40)
    scene.queue.after = lambda call: unanswered() if call == 2 else None
    with pytest.raises(UnknownOutcome):
        scene.relay().step()
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken)) == ([], 40)
    assert sorted(map(int, scene.twice())) == list(range(10, 20))


@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("place", ["before the call", "behind the call", "behind the mark"])
def test_a_relay_that_is_killed_sends_at_most_one_call_again(scene: Scene, call: int, place: str) -> None:
    scene.write(40)
    marks = 0

    class Dying(TransactionStore):
        def delete(self, claim_id: bytes, ids: list[int]) -> None:  # type: ignore[override]  # as the relay calls it
            nonlocal marks
            super().delete(claim_id, ids)
            marks += 1
            if place == "behind the mark" and marks == call:
                raise Died

        def release(self, claim_id: bytes) -> None:
            """A dead process releases nothing."""

    def die(number: int) -> None:
        if number == call:
            raise Died

    scene.queue.before = die if place == "before the call" else lambda _: None
    scene.queue.after = die if place == "behind the call" else lambda _: None
    with pytest.raises(Died):
        scene.relay(Dying(scene.engine)).step()
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken)) == ([], 40), "none is lost"
    assert len(scene.twice()) == (PARTIAL_CHUNK if place == "behind the call" else 0)


def test_a_queue_that_is_refused_as_a_whole_rests_and_its_rows_keep_their_order(scene: Scene) -> None:
    scene.write(30)
    scene.queue.before = denied
    relay = scene.relay()
    relayed = relay.step()
    assert (relayed.refused, scene.queue.calls) == (3, 1)
    scene.drain()
    assert (scene.rows(), scene.twice()) == ([], [])


def test_in_a_fifo_queue_nothing_of_a_group_passes_a_message_that_failed(scene: Scene) -> None:
    scene.write(6, queue="orders.fifo", group="a")
    scene.queue.busy = {"2"}
    with pytest.raises(TemporaryError):
        scene.relay().step()
    assert scene.queue.order == ["0", "1"]
    scene.drain()
    assert scene.queue.order == list("012345")

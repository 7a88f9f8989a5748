"""The relay with a broker that accepts part of a send: accepted messages are never sent again."""

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


class Crash(BaseException):
    """A stand-in for the end of the process."""


class Scene:
    """An outbox with rows, and relays that send them to one queue."""

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
        """End the claims of dead relays and make refused rows due."""
        with self.engine.begin() as connection:
            connection.execute(text("UPDATE penstock_outbox SET claimed_until = 0, due_at = 0"))

    def drain(self) -> None:
        self.queue.before = self.queue.after = lambda call: None
        self.queue.busy = set()
        self.expire()
        self.relay().once()

    def sent_twice(self) -> list[str]:
        return [body for body, times in self.queue.taken.items() if times > 1]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_refused_row_waits_with_its_reason_and_the_others_are_sent_once(scene: Scene) -> None:
    scene.write(26)
    scene.queue.refused = {"7"}
    for _ in range(3):
        scene.expire()
        scene.relay().step()
    assert (scene.rows(), len(scene.queue.taken), scene.sent_twice()) == ([7], 25, [])
    (refused, *_) = [event for event in scene.events if isinstance(event, OutboxRejected)]
    assert "InvalidParameterValue" in refused.reason
    assert sum(len(event.message_ids) for event in scene.events if isinstance(event, OutboxSent)) == 25


def test_only_an_entry_with_a_transient_failure_is_sent_again(scene: Scene) -> None:
    scene.write(26)
    scene.queue.busy = {"3"}
    with pytest.raises(TemporaryError, match="InternalError"):
        scene.relay().step()
    assert scene.rows() == [3, *range(PARTIAL_CHUNK, 26)]
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken), scene.sent_twice()) == ([], 26, [])


@pytest.mark.parametrize("fault", [throttled, away, denied])
def test_a_call_that_fails_completely_does_not_repeat_earlier_calls(scene: Scene, fault: Callable[[int], None]) -> None:
    """Throttling, a network failure, and withdrawn rights."""
    scene.write(40)
    scene.queue.before = lambda call: fault(call) if call > 2 else None
    with suppress(PenstockError):
        scene.relay().step()
    assert len(scene.rows()) == 20
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken), scene.sent_twice()) == ([], 40, [])


def test_a_call_without_a_response_is_the_only_one_sent_again(scene: Scene) -> None:
    scene.write(40)
    scene.queue.after = lambda call: unanswered() if call == 2 else None
    with pytest.raises(UnknownOutcome):
        scene.relay().step()
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken)) == ([], 40)
    assert sorted(map(int, scene.sent_twice())) == list(range(10, 20))


@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("moment", ["before the call", "after the call", "after the delete"])
def test_a_killed_relay_repeats_at_most_one_call(scene: Scene, call: int, moment: str) -> None:
    scene.write(40)
    deletes = 0

    class CrashingStore(TransactionStore):
        def delete(self, claim_id: bytes, ids: list[int]) -> None:  # type: ignore[override]  # as the relay calls it
            nonlocal deletes
            super().delete(claim_id, ids)
            deletes += 1
            if moment == "after the delete" and deletes == call:
                raise Crash

        def release(self, claim_id: bytes) -> None:
            """A dead process releases nothing."""

    def die(number: int) -> None:
        if number == call:
            raise Crash

    scene.queue.before = die if moment == "before the call" else lambda _: None
    scene.queue.after = die if moment == "after the call" else lambda _: None
    with pytest.raises(Crash):
        scene.relay(CrashingStore(scene.engine)).step()
    scene.drain()
    assert (scene.rows(), len(scene.queue.taken)) == ([], 40), "no message is lost"
    assert len(scene.sent_twice()) == (PARTIAL_CHUNK if moment == "after the call" else 0)


def test_a_queue_refused_as_a_whole_is_paused_and_its_rows_keep_their_order(scene: Scene) -> None:
    scene.write(30)
    scene.queue.before = denied
    relay = scene.relay()
    relayed = relay.step()
    assert (relayed.refused, scene.queue.calls) == (3, 1)
    scene.drain()
    assert (scene.rows(), scene.sent_twice()) == ([], [])


def test_in_a_fifo_queue_no_message_of_a_group_overtakes_a_failed_one(scene: Scene) -> None:
    scene.write(6, queue="orders.fifo", group="a")
    scene.queue.busy = {"2"}
    with pytest.raises(TemporaryError):
        scene.relay().step()
    assert scene.queue.order == ["0", "1"]
    scene.drain()
    assert scene.queue.order == list("012345")

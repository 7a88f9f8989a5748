"""Whole queues, moved by the broker."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from penstock.app.scope import Scope
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import load_settings
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.messaging.message import Outgoing
from penstock.operations.dead_letters.actions import move
from penstock.operations.dead_letters.selection import DeadLetterSelection
from penstock.operations.inspection import ScopeView, view


@dataclass(frozen=True)
class Moved:
    moved: int


class Task:
    """Tells of some messages more each time."""

    def __init__(self, *moved: int) -> None:
        self._progress = iter(moved)
        self.closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Moved:
        return Moved(next(self._progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


class Broker(MemoryBroker):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str | None, int | None]] = []
        self.task = Task(0, 3, 7)

    def move_all(self, source: str, destination: str | None = None, *, per_second: int | None = None) -> Task:
        self.asked.append((source, destination, per_second))
        return self.task


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger.open("sqlite://")) as ledger:
        yield ledger


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[ScopeView]:
    settings = load_settings(data_dir=str(tmp_path), broker=f"sqlite:///{tmp_path}/q.db", ledger="sqlite://")
    with view(Scope(settings=settings)) as seen:
        yield seen


def broker_of(seen: ScopeView, broker: MemoryBroker) -> Any:
    seen.__dict__["broker"] = broker  # in the place of the one that would be opened
    for queue in ("orders", "orders-dlq", "orders-dead", "other"):
        broker.send(queue, [Outgoing(body=b"1")])
    return broker


def moved(
    seen: ScopeView, ledger: Ledger, asked: DeadLetterSelection, *, stopped: bool = False, **given: Any
) -> tuple[int, list[int]]:
    told: list[int] = []
    options: dict[str, Any] = {"to": None, "rate": None, **given}
    count = move(seen, asked, ledger=ledger, stopped=lambda: stopped and bool(told), on_progress=told.append, **options)
    return count, told


@pytest.mark.parametrize(
    ("asked", "options", "call"),
    [
        (DeadLetterSelection(queue="orders", tier="dlq"), {}, ("orders-dlq", None, None)),
        (DeadLetterSelection(queue="orders", tier="dead"), {"rate": 7.5}, ("orders-dead", "orders", 7)),
        (DeadLetterSelection(queue="orders-dlq"), {"to": "other", "rate": 0.5}, ("orders-dlq", "other", 1)),
    ],
)
def test_a_queue_is_moved_and_it_is_on_record(
    seen: ScopeView,
    ledger: Ledger,
    asked: DeadLetterSelection,
    options: dict[str, Any],
    call: tuple[str, str | None, int | None],
) -> None:
    broker = broker_of(seen, Broker())
    assert moved(seen, ledger, asked, **options) == (7, [0, 3, 4])
    assert (broker.asked, broker.task.closed) == ([call], True)
    (row,) = ledger.audits.latest(limit=9)
    assert (row.action, row.queue, row.messages, row.outcome) == ("move", call[0], 7, "done")


def test_a_request_to_stop_cancels_it(seen: ScopeView, ledger: Ledger) -> None:
    broker = broker_of(seen, Broker())
    assert moved(seen, ledger, DeadLetterSelection(queue="orders", tier="dlq"), stopped=True) == (0, [0])
    assert broker.task.closed
    assert ledger.audits.latest(limit=1)[0].outcome == "interrupted"


@pytest.mark.parametrize(
    "asked",
    [
        DeadLetterSelection(),
        DeadLetterSelection(queue="orders", limit=1),
        DeadLetterSelection(queue="orders", wanted=DeadLetterFilter(error="x")),
    ],
)
def test_a_move_knows_no_filters(seen: ScopeView, ledger: Ledger, asked: DeadLetterSelection) -> None:
    broker = broker_of(seen, Broker())
    with pytest.raises(UsageError, match="whole queues"):
        moved(seen, ledger, asked)
    assert broker.asked == []


def test_a_broker_that_cannot(seen: ScopeView, ledger: Ledger) -> None:
    broker_of(seen, MemoryBroker())
    with pytest.raises(UsageError, match="is for SQS"):
        moved(seen, ledger, DeadLetterSelection(queue="orders"))

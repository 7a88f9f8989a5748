"""Moves of whole queues by the broker."""

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
class MoveProgress:
    moved: int


class MoveTask:
    """A move of the broker that reports the given totals one by one."""

    def __init__(self, *moved: int) -> None:
        self._progress = iter(moved)
        self.closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MoveProgress:
        return MoveProgress(next(self._progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


class MovingBroker(MemoryBroker):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str | None, int | None]] = []
        self.task = MoveTask(0, 3, 7)

    def move_all(self, source: str, destination: str | None = None, *, per_second: int | None = None) -> MoveTask:
        self.calls.append((source, destination, per_second))
        return self.task


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger.open("sqlite://")) as ledger:
        yield ledger


@pytest.fixture
def scope(tmp_path: Path) -> Iterator[ScopeView]:
    settings = load_settings(data_dir=str(tmp_path), broker=f"sqlite:///{tmp_path}/q.db", ledger="sqlite://")
    with view(Scope(settings=settings)) as opened:
        yield opened


def broker_of(scope: ScopeView, broker: MemoryBroker) -> Any:
    scope.__dict__["broker"] = broker  # instead of the one that would be opened
    for queue in ("orders", "orders-dlq", "orders-dead", "other"):
        broker.send(queue, [Outgoing(body=b"1")])
    return broker


def run_move(
    scope: ScopeView, ledger: Ledger, selection: DeadLetterSelection, *, stopped: bool = False, **given: Any
) -> tuple[int, list[int]]:
    progress: list[int] = []
    options: dict[str, Any] = {"to": None, "rate": None, **given}
    count = move(
        scope,
        selection,
        ledger=ledger,
        stopped=lambda: stopped and bool(progress),
        on_progress=progress.append,
        **options,
    )
    return count, progress


@pytest.mark.parametrize(
    ("selection", "options", "call"),
    [
        (DeadLetterSelection(queue="orders", tier="dlq"), {}, ("orders-dlq", None, None)),
        (DeadLetterSelection(queue="orders", tier="dead"), {"rate": 7.5}, ("orders-dead", "orders", 7)),
        (DeadLetterSelection(queue="orders-dlq"), {"to": "other", "rate": 0.5}, ("orders-dlq", "other", 1)),
    ],
)
def test_a_queue_is_moved_with_an_audit_entry(
    scope: ScopeView,
    ledger: Ledger,
    selection: DeadLetterSelection,
    options: dict[str, Any],
    call: tuple[str, str | None, int | None],
) -> None:
    broker = broker_of(scope, MovingBroker())
    assert run_move(scope, ledger, selection, **options) == (7, [0, 3, 4])
    assert (broker.calls, broker.task.closed) == ([call], True)
    (row,) = ledger.audits.latest(limit=9)
    assert (row.action, row.queue, row.messages, row.outcome) == ("move", call[0], 7, "done")


def test_a_request_to_stop_cancels_the_move(scope: ScopeView, ledger: Ledger) -> None:
    broker = broker_of(scope, MovingBroker())
    assert run_move(scope, ledger, DeadLetterSelection(queue="orders", tier="dlq"), stopped=True) == (0, [0])
    assert broker.task.closed
    assert ledger.audits.latest(limit=1)[0].outcome == "interrupted"


@pytest.mark.parametrize(
    "selection",
    [
        DeadLetterSelection(),
        DeadLetterSelection(queue="orders", limit=1),
        DeadLetterSelection(queue="orders", wanted=DeadLetterFilter(error="x")),
    ],
)
def test_a_move_refuses_filters(scope: ScopeView, ledger: Ledger, selection: DeadLetterSelection) -> None:
    broker = broker_of(scope, MovingBroker())
    with pytest.raises(UsageError, match="whole queues"):
        run_move(scope, ledger, selection)
    assert broker.calls == []


def test_a_broker_without_moves_is_refused(scope: ScopeView, ledger: Ledger) -> None:
    broker_of(scope, MemoryBroker())
    with pytest.raises(UsageError, match="is for SQS"):
        run_move(scope, ledger, DeadLetterSelection(queue="orders"))

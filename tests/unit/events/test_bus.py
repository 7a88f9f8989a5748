"""The bus: which listener receives which events."""

from pathlib import Path

import pytest

from penstock import events
from penstock.app.registry import HEARD, RecordWriter
from penstock.events import Bus, Event, LeaseLost, ProcessKilled, SelectiveListener, SettlementFailed, WorkerDraining
from penstock.messaging.clock import SystemClock
from penstock.monitoring.errors.hook import ErrorReporter
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import LogSettings
from penstock.worker.shutdown import StopSignal

LOST = LeaseLost(queue="q", message_id="m", attempt=1)
DRAINING = WorkerDraining(reason="done", in_flight=0)


class OneKindListener(SelectiveListener):
    """A listener that receives events of one kind, and records the kinds that the bus asked it about."""

    def __init__(self, kind: type[Event]) -> None:
        self.kind = kind
        self.heard: list[Event] = []
        self.asked: list[type[Event]] = []

    def wants(self, kind: type[Event]) -> bool:
        self.asked.append(kind)
        return kind is self.kind

    def __call__(self, event: Event) -> None:
        self.heard.append(event)


def test_listeners_receive_all_events_in_order_and_selective_ones_only_theirs() -> None:
    everything: list[tuple[str, Event]] = []
    selective = OneKindListener(LeaseLost)
    bus = Bus(lambda event: everything.append(("a", event)), selective, lambda event: everything.append(("b", event)))
    for event in (LOST, DRAINING, LOST):
        bus.emit(event)
    assert everything == [(name, event) for event in (LOST, DRAINING, LOST) for name in "ab"]
    assert selective.heard == [LOST, LOST]
    assert selective.asked == [LeaseLost, WorkerDraining], "the bus asks once for each kind"


def test_a_bus_wants_only_events_that_have_a_listener() -> None:
    bus = Bus(OneKindListener(LeaseLost))
    assert bus.wants(LeaseLost)
    assert not bus.wants(WorkerDraining)
    assert not Bus().wants(LeaseLost)
    assert Bus(print).wants(WorkerDraining)


def test_a_bus_on_another_bus_receives_only_events_that_have_a_listener() -> None:
    listener = OneKindListener(LeaseLost)
    outer = Bus(Bus(listener))
    assert outer.wants(LeaseLost)
    assert not outer.wants(WorkerDraining)
    for event in (LOST, DRAINING):
        outer.emit(event)
    assert listener.heard == [LOST]


@pytest.mark.parametrize(("level", "heard"), [("debug", True), ("info", True), ("warning", False)])
def test_the_log_receives_the_events_that_its_level_logs(level: str, heard: bool) -> None:
    log = configure_logs(LogSettings(level=level, format="json"))  # type: ignore[arg-type] # it is one of them
    assert log.wants(events.MessageFinished) is heard
    assert log.wants(events.MessageFailed)
    assert log.wants(SettlementFailed)


def test_the_error_hook_receives_failures_only() -> None:
    reporter = ErrorReporter(lambda error, context: None, worker="w", emit=lambda event: None)
    assert reporter.wants(events.MessageFailed)
    assert reporter.wants(events.MessageInvalid)
    assert not reporter.wants(events.MessageFinished)


def test_a_workers_record_receives_its_messages_and_not_their_results(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "w.json", worker="w", version="1", stop=StopSignal(), clock=SystemClock())
    bus = Bus(writer)
    bus.emit(events.MessagesReceived(queue="q", message_ids=("m", "n", "o"), redelivered=0))
    assert writer.record().in_flight == 3
    bus.emit(LOST)
    bus.emit(SettlementFailed(queue="q", message_id="n", attempt=1, operation="ack", reason="gone", lost=True))
    assert writer.record().in_flight == 1
    assert ProcessKilled not in HEARD
    assert not bus.wants(events.MessageFinished)

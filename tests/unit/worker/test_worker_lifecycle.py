"""A worker from start to end, on doubles: serving, failing, draining, releasing."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ClaimLost, PublishHalted, TemporaryError, UsageError
from penstock.events import (
    ExecutionFailed,
    JobFailed,
    ReceiveFailed,
    ReleaseFailed,
    SettlementMissing,
    ThreadLeftBehind,
    WorkerDraining,
    WorkerStopped,
)
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]
UNCOUNTED = Release(delay_seconds=0.0, uncounted=True)


# Serving


def test_messages_are_processed_in_batches_and_acked(life: "Life") -> None:
    life.broker.put(*range(10))
    life.until = lambda: len(life.broker.acked()) == 10
    assert life.start(batch_messages_max=4).end() == "drained"
    assert [len(execution.deliveries) for execution in life.handler.executions] == [4, 4, 2]
    assert life.events[-1] == WorkerStopped(outcome="drained", released=())


def test_a_receive_requests_the_free_slots_and_never_zero(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(*range(12))
    life.start(batch_messages_max=5, fetch_max=3)
    life.running()
    # One running batch and one closed, waiting batch: no slot is free, so no more messages are requested.
    eventually(lambda: len(life.broker.leased) == 10)
    assert life.broker.receive_sizes == [3, 2, 3, 2]
    for number in range(3):
        life.running(number).go_on.set()
    eventually(lambda: len(life.broker.acked()) == 12)
    life.stop.request()
    assert life.end() == "drained"
    assert 0 not in life.broker.receive_sizes


def test_a_freed_slot_wakes_a_full_worker(life: "Life", eventually: Eventually) -> None:
    """With idle waits of 50 s only the freed slot can wake the worker in time."""
    life.handler.blocking = True
    life.broker.put(*range(4))
    life.start(batch_messages_max=2, idle_floor_seconds=50.0, idle_ceiling_seconds=60.0)
    life.running(0).go_on.set()
    life.running(1).go_on.set()
    eventually(lambda: len(life.broker.acked()) == 4)
    life.stop.request()
    assert life.end() == "drained"


def test_as_many_batches_are_in_flight_as_allowed(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(*range(5))
    life.start(batch_messages_max=1, in_flight_max=3)
    for number in range(3):
        life.running(number)
    eventually(lambda: len(life.broker.leased) == 4, "three are running and one is waiting")
    assert len(life.handler.executions) == 3
    life.handler.blocking = False
    for number in range(3):
        life.running(number).go_on.set()
    eventually(lambda: len(life.broker.acked()) == 5)
    life.stop.request()
    assert life.end() == "drained"


def test_prefetched_deliveries_whose_lease_was_lost_are_not_begun(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start(batch_messages_max=2, lease_seconds=0.2, heartbeat_seconds=0.01)
    first = life.running(0)
    life.broker.put(1, 2)
    eventually(lambda: len(life.broker.leased) == 3)
    life.broker.steal("m1")
    eventually(lambda: any(type(event).__name__ == "LeaseLost" for event in life.events))
    first.go_on.set()
    second = life.running(1)
    assert [delivery.message.id for delivery in second.deliveries] == ["m2"]
    second.go_on.set()
    life.stop.request()
    assert life.end() == "drained"


def test_a_failed_receive_is_reported_and_retried(life: "Life") -> None:
    life.broker.receive_faults = [TemporaryError("down"), OSError("reset")]
    life.broker.put(0)
    life.until = lambda: bool(life.broker.acked())
    assert life.start().end() == "drained"
    assert len(life.emitted(ReceiveFailed)) == 2


def test_the_probe_receives_every_step(life: "Life") -> None:
    life.broker.put(0)
    life.until = lambda: bool(life.broker.acked())
    life.start().end()
    assert life.steps == ["received", "settling", "settled"]


# Answers and failures


def test_each_delivery_gets_the_settlement_of_its_receipt(life: "Life") -> None:
    dead_letter = DeadLetter(reason="not JSON")
    life.handler.answer = lambda deliveries: {
        deliveries[0].receipt: Ack(),
        deliveries[1].receipt: dead_letter,
        "unknown": Ack(),
    }
    life.broker.put(0, 1)
    life.until = lambda: len(life.broker.settled) == 2
    life.start().end()
    assert life.broker.settled == [("m0", Ack()), ("m1", dead_letter)]


def test_a_missing_settlement_is_reported_and_the_delivery_released_with_a_delay(life: "Life") -> None:
    life.handler.answer = lambda deliveries: {deliveries[0].receipt: Ack()}
    life.broker.put(0, 1)
    life.until = lambda: len(life.broker.settled) == 2
    life.start(backoff_base_seconds=4.0, backoff_cap_seconds=60.0).end()
    assert life.emitted(SettlementMissing) == [SettlementMissing(queue="q", message_id="m1")]
    assert life.broker.released() == {"m1": Release(delay_seconds=2.0)}


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), TemporaryError("ledger down"), ClaimLost("gone"), SystemExit(3)]
)
def test_a_run_that_raises_costs_a_wait_and_the_worker_continues(life: "Life", error: BaseException) -> None:
    calls: list[int] = []

    def answer(deliveries: Sequence[Delivery]) -> dict[str, Settlement]:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.handler.answer = answer
    life.broker.put(0, 1)
    life.until = lambda: bool(life.broker.acked())
    assert life.start(batch_messages_max=1).end() == "drained"
    assert life.broker.released() == {"m0": Release(delay_seconds=0.0005)}
    (failed,) = life.emitted(ExecutionFailed)
    assert failed == ExecutionFailed(handler="toy", message_ids=("m0",), error=f"{type(error).__name__}: {error}")
    assert "release" in life.journal, "the failed batch frees its resources"


class LateClock(SystemClock):
    """A clock with which the I/O thread begins its rest slightly late, as on a busy machine."""

    def monotonic(self) -> float:
        if sys._getframe(1).f_code.co_name == "_rest":
            threading.Event().wait(0.02)
        return super().monotonic()


def test_a_wait_that_ends_between_two_checks_strands_no_held_message(life: "Life") -> None:
    calls: list[int] = []

    def answer(deliveries: Sequence[Delivery]) -> dict[str, Settlement]:
        calls.append(1)
        if len(calls) <= 10:
            raise ValueError("not yet")
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.handler.answer = answer
    life.clock = LateClock()
    life.broker.put(*range(11))
    life.until = lambda: bool(life.broker.acked())
    assert life.start(batch_messages_max=1, backoff_base_seconds=0.02, backoff_cap_seconds=0.02).end() == "drained"
    assert len(calls) == 11


def test_a_failure_makes_the_consumer_wait_for_its_backoff(life: "Life", eventually: Eventually) -> None:
    def answer(deliveries: Sequence[Delivery]) -> dict[str, Settlement]:
        raise ValueError("always")

    life.handler.answer = answer
    life.broker.put(*range(50))
    # The first failure makes it wait for 500 s; messages received meanwhile are not begun.
    life.start(batch_messages_max=1, backoff_base_seconds=1_000.0, backoff_cap_seconds=1_000.0)
    eventually(lambda: life.broker.released().keys() == {"m0"})
    eventually(lambda: life.broker.leased, "the next one is held")
    assert len(life.handler.executions) == 1
    life.stop.request()
    assert life.end() == "drained"
    assert life.broker.released()["m1"] == UNCOUNTED


def test_a_begin_that_raises_is_a_failed_run(life: "Life") -> None:
    life.handler.begin_faults = [ValueError("a bug")]
    life.broker.put(0, 1)
    life.until = lambda: bool(life.broker.acked())
    assert life.start(batch_messages_max=1).end() == "drained"
    assert life.broker.released().keys() == {"m0"}


@pytest.mark.parametrize("error", [UsageError("no such table"), PublishHalted("needs a person")])
def test_a_permanent_error_stops_the_worker_and_releases_everything(life: "Life", error: Exception) -> None:
    def answer(deliveries: Sequence[Delivery]) -> dict[str, Settlement]:
        raise error

    life.handler.answer = answer
    life.broker.put(0, 1, 2)
    life.start(batch_messages_max=1)
    life.end()
    assert life.error is error
    assert not life.broker.leased
    assert set(life.broker.released().values()) <= {UNCOUNTED}
    assert life.journal.index("release") < life.journal.index("interrupt")
    assert life.broker.acked() == []
    (stopped,) = life.emitted(WorkerStopped)
    assert stopped == WorkerStopped(outcome="interrupted", released=("m0",))


def test_a_fatal_begin_releases_its_deliveries(life: "Life") -> None:
    life.handler.begin_faults = [UsageError("bad DDL")]
    life.broker.put(0)
    life.start().end()
    assert isinstance(life.error, UsageError)
    assert life.broker.released() == {"m0": UNCOUNTED}


def test_a_fatal_upkeep_stops_the_worker(life: "Life") -> None:
    life.handler.upkeep_faults = [PublishHalted("needs a person")]
    life.start().end()
    assert isinstance(life.error, PublishHalted)


def test_a_listener_that_raises_stops_the_worker_and_its_error_is_raised(life: "Life") -> None:
    life.broker.put(0)
    defect = RuntimeError("of the listener")

    def listener(event: object) -> None:
        raise defect

    life.listeners = (listener,)
    worker = life.worker()
    with pytest.raises(RuntimeError, match="of the listener"):
        worker.run(life.stop)


def test_a_lost_claim_ends_the_batch_without_a_settlement_of_its_own(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.handler.obedient = False
    life.broker.put(0)
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    execution = life.running()
    execution.held = False
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    eventually(lambda: life.broker.released())
    execution.go_on.set()  # it returns an ack, too late
    life.stop.request()
    assert life.end() == "drained"
    assert life.broker.acked() == []
    assert life.broker.released()["m0"].uncounted is True
    assert "claim was lost" in str(life.emitted(ExecutionFailed))


def test_a_lost_message_lease_does_not_stop_the_run(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    execution = life.running()
    life.broker.steal("m0")
    eventually(lambda: any(type(event).__name__ == "LeaseLost" for event in life.events))
    assert not execution.interrupted.is_set()
    execution.go_on.set()
    eventually(lambda: any(getattr(event, "lost", False) for event in life.events), "its settlement arrives too late")
    life.stop.request()
    assert life.end() == "drained"


# Upkeep and until


def test_upkeep_runs_at_the_start_and_before_a_finished_worker_ends(life: "Life") -> None:
    life.until = lambda: True
    assert life.start(upkeep_seconds=1_000.0).end() == "drained"
    assert life.handler.upkeeps == 2


def test_a_worker_with_an_end_condition_runs_upkeep_after_the_last_batch(life: "Life") -> None:
    """The end condition may depend on the upkeep; publishing is an example."""
    life.broker.put(0)
    life.until = lambda: bool(life.broker.acked()) and life.handler.upkeeps >= 2
    assert life.start(upkeep_seconds=1_000.0).end() == "drained"


def test_an_idle_worker_runs_upkeep_no_more_often_than_configured(life: "Life", eventually: Eventually) -> None:
    life.start(upkeep_seconds=1_000.0)
    eventually(lambda: len(life.broker.receive_sizes) > 20, "it polls")
    assert life.handler.upkeeps == 1
    life.stop.request()
    life.end()


def test_a_failed_upkeep_is_reported_and_retried(life: "Life", eventually: Eventually) -> None:
    life.handler.upkeep_faults = [TemporaryError("down"), ValueError("a bug")]
    life.start(upkeep_seconds=1_000.0)
    eventually(lambda: life.handler.upkeeps == 3)
    assert len(life.emitted(JobFailed)) == 2
    life.stop.request()
    assert life.end() == "drained"


def test_a_last_upkeep_that_keeps_failing_is_raised(life: "Life") -> None:
    life.until = lambda: True
    life.handler.upkeep_faults = [TemporaryError("down")] * 100
    life.start().end()
    assert isinstance(life.error, TemporaryError)


def test_an_end_condition_that_fails_is_checked_again(life: "Life") -> None:
    answers: list[bool | Exception] = [TemporaryError("ledger down"), False, True]

    def until() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    life.until = until
    assert life.start().end() == "drained"
    assert answers == []


def test_a_finished_worker_releases_unstarted_messages(life: "Life") -> None:
    life.broker.put(*range(3))
    life.until = lambda: bool(life.broker.acked())
    assert life.start(batch_messages_max=1).end() == "drained"
    assert not life.broker.leased
    assert set(life.broker.released().values()) <= {UNCOUNTED}


# Stopping


def test_row_74_a_stop_while_idle_ends_the_worker_within_the_poll_wait(life: "Life") -> None:
    life.start(idle_floor_seconds=50.0, idle_ceiling_seconds=60.0)
    assert life.broker.receiving.wait(DEADLINE_SECONDS)
    life.stop.request()
    assert life.end() == "drained"


def test_a_stop_lets_work_in_flight_finish_and_extends_its_lease(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    execution = life.running()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining))
    assert life.emitted(WorkerDraining) == [WorkerDraining(reason="stop requested", in_flight=1)]
    before = len(life.broker.extensions)
    eventually(lambda: len(life.broker.extensions) > before + 3, "heartbeats outlive draining")
    execution.go_on.set()
    assert life.end() == "drained"
    assert life.broker.acked() == ["m0"]


def test_nothing_is_fetched_after_a_stop(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start()
    execution = life.running()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining))
    life.broker.put(1)
    execution.go_on.set()
    assert life.end() == "drained"
    assert life.broker.waiting == [(1, 1)]


def test_no_poll_begins_after_a_stop_that_arrives_between_two_steps(life: "Life", eventually: Eventually) -> None:
    receives: list[int] = []

    def until() -> bool:
        if not receives:
            life.stop.request()
            eventually(lambda: life.emitted(WorkerDraining))
            receives.append(len(life.broker.receive_sizes))
        return False

    life.until = until
    life.broker.put(0)
    assert life.start().end() == "drained"
    assert [len(life.broker.receive_sizes)] == receives


def test_row_75_at_the_deadline_everything_is_released_in_order(life: "Life") -> None:
    life.handler.blocking = True
    life.broker.put(0, 1)
    life.start(stop_timeout_seconds=8.0)  # leaves no time for draining
    execution = life.running()
    life.stop.request()
    assert life.end() == "interrupted"
    assert execution.interrupted.is_set()
    ending = [entry for entry in life.journal if not entry.startswith("extend")]
    assert ending == ["drain", "release", "settle 2", "interrupt"]
    assert life.broker.released() == {"m0": UNCOUNTED, "m1": UNCOUNTED}
    assert life.events[-1] == WorkerStopped(outcome="interrupted", released=("m0", "m1"))


def test_releasing_waits_for_a_heartbeat_in_flight(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.broker.extend_gate = threading.Event()
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    life.running()
    assert life.broker.extending.wait(DEADLINE_SECONDS)
    life.stop.request()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining))
    assert "release" not in life.journal
    life.broker.extend_gate.set()
    assert life.end() == "interrupted"
    assert life.journal.index("extend") < life.journal.index("release")


def test_a_second_stop_request_releases_at_once(life: "Life") -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start(stop_timeout_seconds=3_600.0)
    life.running()
    life.stop.request()
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.broker.released() == {"m0": UNCOUNTED}


def test_a_stop_releases_collected_messages_that_have_not_begun(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(*range(5))
    life.start(batch_messages_max=2)
    execution = life.running()
    eventually(lambda: len(life.broker.leased) == 4)
    life.stop.request()
    eventually(lambda: life.broker.released() == {"m2": UNCOUNTED, "m3": UNCOUNTED})
    execution.go_on.set()
    assert life.end() == "drained"
    assert sorted(life.broker.acked()) == ["m0", "m1"]


@pytest.mark.parametrize("batch_messages_max", [1, 5_000])
def test_row_76_messages_of_the_poll_in_flight_are_released(
    life: "Life", eventually: Eventually, batch_messages_max: int
) -> None:
    life.broker.receive_gate = threading.Event()
    life.start(batch_messages_max=batch_messages_max)
    assert life.broker.receiving.wait(DEADLINE_SECONDS)
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining))
    life.broker.put(0)
    life.broker.receive_gate.set()
    assert life.end() == "drained"
    assert life.broker.released() == {"m0": UNCOUNTED}
    assert life.handler.executions == []


def test_a_poll_that_hangs_does_not_keep_collected_messages(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(0)
    life.start(batch_messages_max=10, stop_timeout_seconds=8.0, flush_seconds=1.0, drain_seconds=0.0)
    life.running()
    life.broker.put(1)
    eventually(lambda: len(life.broker.leased) == 2)
    gate = life.broker.receive_gate = threading.Event()
    life.broker.receiving.clear()
    assert life.broker.receiving.wait(DEADLINE_SECONDS)  # this poll waits at the gate
    life.stop.request()
    assert life.end() == "forced"
    assert life.broker.released() == {"m0": UNCOUNTED, "m1": UNCOUNTED}
    assert life.emitted(ThreadLeftBehind) == [ThreadLeftBehind(thread="penstock-io")]
    gate.set()


def test_a_release_step_that_raises_does_not_prevent_the_others(life: "Life") -> None:
    life.handler.blocking = True
    life.handler.release_fault = OSError("the ledger is down")
    life.broker.put(0)
    life.start(stop_timeout_seconds=8.0)
    execution = life.running()
    life.stop.request()
    assert life.end() == "interrupted"
    assert execution.interrupted.is_set()
    assert life.broker.released() == {"m0": UNCOUNTED}
    (failed,) = life.emitted(ReleaseFailed)
    assert failed == ReleaseFailed(handler="toy", step="free the claim", error="OSError: the ledger is down")


def test_a_stuck_thread_is_left_behind_and_named(life: "Life") -> None:
    life.handler.blocking = True
    life.handler.obedient = False
    life.broker.put(0)
    life.start(stop_timeout_seconds=8.0, flush_seconds=0.6)
    execution = life.running()
    life.stop.request()
    assert life.end() == "forced"
    assert life.broker.released() == {"m0": UNCOUNTED}
    assert life.emitted(ThreadLeftBehind) == [ThreadLeftBehind(thread="penstock-run-toy-1")]
    execution.go_on.set()


def test_a_batch_whose_release_hangs_does_not_delay_the_others(life: "Life") -> None:
    life.handler.blocking = True
    life.broker.put(0, 1)
    life.start(batch_messages_max=1, in_flight_max=2, stop_timeout_seconds=8.0, release_seconds=0.5)
    hung = threading.Event()
    life.running(0).release = lambda: hung.wait(30)  # type: ignore[assignment,method-assign] # a ledger that hangs
    life.running(1)
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.broker.released() == {"m0": UNCOUNTED, "m1": UNCOUNTED}, "the claim alone waits for its lease to end"
    assert [event.error for event in life.emitted(ReleaseFailed)] == [
        "TimeoutError: it took too long; the claim ends with its lease"
    ]
    hung.set()


def test_settlements_that_cannot_be_applied_in_time_are_named(life: "Life", eventually: Eventually) -> None:
    life.broker.refuse = {"m0"}
    life.broker.put(0)
    life.start(stop_timeout_seconds=8.0, flush_seconds=0.6)
    eventually(lambda: "settle 1" in life.journal)
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.events[-1] == WorkerStopped(outcome="interrupted", released=("m0",), unsettled=("m0",))


def test_a_worker_with_a_stop_request_before_its_start_stops(life: "Life") -> None:
    life.stop.request()
    life.broker.put(0)
    assert life.start().end() == "drained"
    assert not life.broker.leased

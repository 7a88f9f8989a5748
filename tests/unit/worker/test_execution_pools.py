"""Executions on the pool and on the event loop, and isolation from a misbehaving handler."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from penstock.events import ExecutionFailed, LeasesExtended
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, Settlements
from penstock.messaging.settlement import Ack, Release
from penstock.worker.pools import EventLoop

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]


def names_seen(life: "Life", place: ExecutionPlace, concurrency: int) -> list[str]:
    """Return the names of the threads that processed ten messages."""
    names: list[str] = []

    def answer(deliveries: Sequence[Delivery]) -> Settlements:
        names.append(threading.current_thread().name)
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.serve(place, queue="mail", handler={"answer": answer})
    life.broker.put(*range(10), queue="mail")
    life.until = lambda: len(life.broker.acked()) == 10
    assert life.start(concurrency=concurrency).end() == "drained"
    return names


def test_functions_run_on_at_most_as_many_threads_as_there_are_slots(life: "Life") -> None:
    assert set(names_seen(life, ExecutionPlace.POOL, 2)) <= {"penstock-pool-1", "penstock-pool-2"}


def test_coroutines_run_in_one_thread(life: "Life") -> None:
    assert set(names_seen(life, ExecutionPlace.LOOP, 5)) == {"penstock-loop"}


def test_coroutines_run_on_the_standard_library_loop_without_uvloop(
    life: "Life", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it were not installed
    kinds: list[type] = []

    def answer(deliveries: Sequence[Delivery]) -> Settlements:
        kinds.append(type(asyncio.get_running_loop()))
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.serve(ExecutionPlace.LOOP, queue="mail", handler={"answer": answer})
    life.broker.put(0, queue="mail")
    life.until = lambda: bool(life.broker.acked())
    assert life.start().end() == "drained"
    (kind,) = kinds
    assert kind.__module__.startswith("asyncio.")


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_no_thread_remains_after_the_worker_ended(life: "Life", eventually: Eventually, place: ExecutionPlace) -> None:
    names_seen(life, place, 5)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith(("penstock-pool", "penstock-loop"))])
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ()


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_any_exception_of_a_handler_delays_only_its_own_message(
    life: "Life", place: ExecutionPlace, error: BaseException
) -> None:
    raised: list[str] = []

    def answer(deliveries: Sequence[Delivery]) -> Settlements:
        if deliveries[0].message.id == "m0":
            raised.append("m0")
            raise error
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.serve(place, queue="mail", handler={"answer": answer})
    life.broker.put(*range(5), queue="mail")
    life.until = lambda: len(life.broker.settled) == 5
    # With waits of 1,000 s between consecutive failures: they delay only consumers of long runs.
    assert life.start(backoff_base_seconds=1_000.0, backoff_cap_seconds=1_000.0).end() == "drained"
    assert life.broker.released() == {"m0": Release(delay_seconds=500.0)}
    assert len(life.broker.acked()) == 4
    assert raised == ["m0"]
    assert [event.message_ids for event in life.events if isinstance(event, ExecutionFailed)] == [("m0",)]
    assert "release" in life.journal, "the failed execution frees its resources"


def test_a_coroutine_on_the_pool_is_reported_as_a_failure(life: "Life") -> None:
    async def work() -> Settlements:
        return {}

    def answer(deliveries: Sequence[Delivery]) -> Coroutine[Any, Any, Settlements]:
        return work()

    life.serve(ExecutionPlace.POOL, queue="mail", handler={"answer": answer})
    life.broker.put(0, queue="mail")
    life.until = lambda: bool(life.broker.settled)
    assert life.start().end() == "drained"
    (failed,) = [event for event in life.events if isinstance(event, ExecutionFailed)]
    assert "only an execution on the event loop may do" in failed.error
    assert life.broker.released().keys() == {"m0"}


def test_a_handler_that_blocks_the_loop_delays_neither_heartbeats_nor_settling_nor_other_consumers(
    life: "Life", eventually: Eventually
) -> None:
    blocked, let_go = threading.Event(), threading.Event()

    def answer(deliveries: Sequence[Delivery]) -> Settlements:
        blocked.set()
        assert let_go.wait(DEADLINE_SECONDS)  # in the loop's thread: nothing else runs there
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.serve(ExecutionPlace.LOOP, queue="rude", handler={"answer": answer})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(0, queue="rude")
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    assert blocked.wait(DEADLINE_SECONDS)
    count = len(life.emitted(LeasesExtended))
    life.broker.put(*range(1, 20), queue="mail")
    eventually(lambda: len(life.broker.acked()) == 19, "the other queue is served and settled")
    eventually(lambda: len(life.emitted(LeasesExtended)) > count + 3, "heartbeats go on")
    assert LeasesExtended(queue="rude", message_ids=("m0",)) in life.emitted(LeasesExtended)
    let_go.set()
    life.stop.request()
    assert life.end() == "drained"
    assert len(life.broker.acked()) == 20


def test_tasks_run_concurrently_and_their_references_are_kept(life: "Life", eventually: Eventually) -> None:
    """A garbage collection in between removes none of them, though the loop itself holds them weakly."""
    import gc

    mail = life.serve(ExecutionPlace.LOOP, queue="mail", handler={"blocking": True})
    life.broker.put(*range(20), queue="mail")
    life.start(concurrency=20)
    eventually(lambda: len(mail.executions) == 20)
    executions = [life.running(number, mail) for number in range(20)]
    gc.collect()
    for execution in executions:
        execution.let_go()
    eventually(lambda: len(life.broker.acked()) == 20)
    life.stop.request()
    assert life.end() == "drained"


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_a_lost_claim_interrupts_and_its_late_answer_is_ignored(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    mail = life.serve(place, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    execution = life.running(0, mail)
    execution.held = False
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    eventually(lambda: life.broker.released())
    life.stop.request()
    assert life.end() == "drained"
    assert life.broker.acked() == []
    assert len(life.emitted(ExecutionFailed)) == 1, "the cancellation of an ended run is not a failure of its own"


def test_a_given_event_loop_is_used_and_left_running(life: "Life") -> None:
    event_loop = EventLoop()
    loops: list[asyncio.AbstractEventLoop] = []

    def answer(deliveries: Sequence[Delivery]) -> Settlements:
        loops.append(asyncio.get_running_loop())
        return {delivery.receipt: Ack() for delivery in deliveries}

    life.event_loop = event_loop
    life.serve(ExecutionPlace.LOOP, queue="mail", handler={"answer": answer})
    life.broker.put(0, queue="mail")
    life.until = lambda: bool(life.broker.acked())
    assert life.start().end() == "drained"
    assert loops == [event_loop.ensure_started()], "it is still running"
    assert not event_loop.done
    event_loop.close()

"""Stopping with several consumers: one drain notice each, release in groups, pausing, stacks, threads left behind."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.errors import TemporaryError
from penstock.events import ReleaseFailed, StacksDumped, ThreadLeftBehind, WorkerDraining, WorkerStopped
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.settlement import Release
from penstock.worker.lifecycle import WorkerOutcome

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeClock, Life

Eventually = Callable[..., None]
UNCOUNTED = Release(delay_seconds=0.0, uncounted=True)
AT_ONCE: dict[str, float] = {"drain_seconds": 0.0}
BLOCKING = {"blocking": True}
SHARED = [ExecutionPlace.POOL, ExecutionPlace.LOOP]


@pytest.mark.parametrize("place", list(ExecutionPlace))
def test_every_running_execution_is_notified_of_the_drain_once(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    mail = life.serve(place, queue="mail", in_flight_max=3, handler=BLOCKING)
    life.broker.put(*range(3), queue="mail")
    life.start(stop_timeout_seconds=3_600.0)
    executions = [life.running(number, mail) for number in range(3)]
    life.stop.request()
    eventually(lambda: life.journal.count("drain") == 3)
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.journal.count("drain") == 3
    assert all(execution.interrupted.is_set() for execution in executions)


def test_the_result_of_a_draining_execution_counts(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.LOOP, queue="mail", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.start()
    execution = life.running(0, mail)
    life.stop.request()
    eventually(lambda: "drain" in life.journal)
    execution.let_go()
    assert life.end() == "drained"
    assert life.broker.acked() == ["m0"]


@pytest.mark.parametrize("place", SHARED)
def test_executions_that_share_the_slots_are_released_as_one_group_in_order(
    life: "Life", place: ExecutionPlace
) -> None:
    mail = life.serve(place, queue="mail", handler=BLOCKING)
    images = life.serve(place, queue="images", handler=BLOCKING)
    life.broker.put(0, 1, queue="mail")
    life.broker.put(2, 3, queue="images")
    life.start(**AT_ONCE)
    for handler in (mail, images):
        for number in range(2):
            life.running(number, handler)
    life.stop.request()
    assert life.end() == "interrupted"
    steps = [entry for entry in life.journal if not entry.startswith(("extend", "drain", "cancelled"))]
    assert steps == ["release"] * 4 + ["settle 4"] + ["interrupt"] * 4
    assert life.broker.released() == {f"m{number}": UNCOUNTED for number in range(4)}
    assert life.conclusion == WorkerOutcome(outcome="interrupted", threads_left=())
    assert life.events[-1] == WorkerStopped(outcome="interrupted", released=("m0", "m1", "m2", "m3"))


def test_the_group_leaves_the_lease_book_before_any_claim_is_freed(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler=BLOCKING)
    life.broker.put(0, 1, queue="mail")
    life.broker.extend_gate = threading.Event()
    life.start(lease_seconds=0.2, heartbeat_seconds=0.01)
    for number in range(2):
        life.running(number, mail)
    assert life.broker.extending.wait(DEADLINE_SECONDS)
    life.stop.request()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining))
    assert "release" not in life.journal, "a heartbeat is in flight"
    life.broker.extend_gate.set()
    assert life.end() == "interrupted"
    assert life.journal.index("extend") < life.journal.index("release")
    assert "extend" not in life.journal[life.journal.index("release") :]


def test_a_claim_that_cannot_be_freed_does_not_keep_the_group(life: "Life") -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={**BLOCKING, "release_fault": OSError("down")})
    images = life.serve(ExecutionPlace.POOL, queue="images", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.broker.put(1, queue="images")
    life.start(**AT_ONCE)
    for handler in (mail, images):
        life.running(0, handler)
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.broker.released() == {"m0": UNCOUNTED, "m1": UNCOUNTED}
    assert life.emitted(ReleaseFailed) == [ReleaseFailed(handler="mail", step="free the claim", error="OSError: down")]


@pytest.mark.parametrize(
    ("place", "thread"), [(ExecutionPlace.POOL, "penstock-pool-1"), (ExecutionPlace.LOOP, "penstock-loop")]
)
def test_messages_of_a_handler_that_ignores_its_interruption_are_released(
    life: "Life", place: ExecutionPlace, thread: str
) -> None:
    mail = life.serve(place, queue="mail", handler={**BLOCKING, "obedient": False})
    life.broker.put(0, queue="mail")
    life.start(**AT_ONCE, flush_seconds=0.6)
    execution = life.running(0, mail)
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.broker.released() == {"m0": UNCOUNTED}
    assert life.conclusion == WorkerOutcome(outcome="interrupted", threads_left=(thread,))
    assert life.emitted(ThreadLeftBehind) == [ThreadLeftBehind(thread=thread)]
    execution.let_go()


def test_a_failed_release_makes_the_end_forced(life: "Life") -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.start(**AT_ONCE, release_seconds=0.2)
    life.running(0, mail)
    life.broker.settle_faults = [TemporaryError("down")] * 10_000
    life.stop.request()
    assert life.end() == "forced"
    assert life.conclusion == WorkerOutcome(outcome="forced", threads_left=())


# Pausing


@pytest.mark.parametrize("place", list(ExecutionPlace))
def test_a_paused_worker_finishes_work_in_flight_receives_no_more_and_keeps_running(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    mail = life.serve(place, queue="mail", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.start(upkeep_seconds=0.001)
    execution = life.running(0, mail)
    life.stop.pause()
    eventually(lambda: life.emitted(WorkerDraining) == [WorkerDraining(reason="pause requested", in_flight=1)])
    receives = len(life.broker.receive_sizes)
    life.broker.put(1, queue="mail")
    assert "drain" not in life.journal, "a pause is not a stop: work continues"
    execution.let_go()
    eventually(lambda: life.broker.acked() == ["m0"])
    upkeeps = mail.upkeeps
    eventually(lambda: mail.upkeeps > upkeeps, "it still runs and does its upkeep")
    assert len(life.broker.receive_sizes) <= receives + 1, "only a receive that had begun"
    assert life.broker.queues["mail"] == [(1, 1)]
    life.stop.request()
    assert life.end() == "drained"
    assert life.emitted(WorkerDraining)[-1] == WorkerDraining(reason="stop requested", in_flight=0)


def test_a_pause_releases_unstarted_messages(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    life.broker.put(*range(5))
    life.start(batch_messages_max=2)
    execution = life.running()
    eventually(lambda: len(life.broker.leased) == 4)
    life.stop.pause()
    eventually(lambda: life.broker.released() == {"m2": UNCOUNTED, "m3": UNCOUNTED})
    execution.let_go()
    eventually(lambda: sorted(life.broker.acked()) == ["m0", "m1"])
    assert life.conclusion is None, "it keeps running"
    life.stop.request()
    assert life.end() == "drained"


def test_stopping_a_paused_worker_releases_unfinished_messages(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.LOOP, queue="mail", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.start(**AT_ONCE)
    life.running(0, mail)
    life.stop.pause()
    eventually(lambda: life.emitted(WorkerDraining))
    life.stop.request()
    assert life.end() == "interrupted"
    assert life.broker.released() == {"m0": UNCOUNTED}


# Stacks


def test_the_stacks_of_all_threads_and_tasks_are_dumped_by_name(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.LOOP, queue="mail", handler=BLOCKING)
    images = life.serve(ExecutionPlace.POOL, queue="images", handler=BLOCKING)
    life.broker.put(0, queue="mail")
    life.broker.put(1, queue="images")
    life.start()
    executions = [life.running(0, handler) for handler in (mail, images)]
    life.stop.request_stacks()
    eventually(lambda: life.emitted(StacksDumped))
    (dumped,) = [event for event in life.events if isinstance(event, StacksDumped)]
    for thread in ("penstock-io", "penstock-heartbeat", "penstock-loop", "penstock-pool-1", "MainThread"):
        assert f"Thread {thread}:" in dumped.stacks
    assert "Task penstock-run-mail-1:" in dumped.stacks
    assert "in _work" in dumped.stacks, "down to where the handler waits"
    for execution in executions:
        execution.let_go()
    eventually(lambda: len(life.broker.acked()) == 2, "it continues")
    life.stop.request_stacks()
    eventually(lambda: len(life.emitted(StacksDumped)) == 2)
    life.stop.request()
    assert life.end() == "drained"


def test_stacks_are_dumped_while_a_handler_blocks_the_loop(life: "Life", eventually: Eventually) -> None:
    blocked, let_go = threading.Event(), threading.Event()

    def the_culprit(deliveries: object) -> dict[str, Release]:
        blocked.set()
        assert let_go.wait(DEADLINE_SECONDS)
        return {}

    life.serve(ExecutionPlace.LOOP, queue="mail", handler={"answer": the_culprit})
    life.broker.put(0, queue="mail")
    life.start()
    assert blocked.wait(DEADLINE_SECONDS)
    life.stop.request_stacks()
    eventually(lambda: "in the_culprit" in str(life.emitted(StacksDumped)))
    let_go.set()
    life.stop.request()
    life.end()


def test_an_interrupted_run_gets_the_rest_of_the_stop_timeout(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    """With the time of flushing alone, its thread would be left behind and the worker's end forced."""
    life.clock = clock
    life.handler.blocking = True
    life.handler.obedient = False
    life.broker.put(0)
    life.start(stop_timeout_seconds=3_600.0, drain_seconds=0.0, flush_seconds=0.6)
    execution = life.running()
    life.stop.request()
    assert execution.interrupted.wait(60.0)
    for _ in range(5):  # far longer than flushing may take
        waits = len(clock.waits)
        clock.time += 61.0
        eventually(lambda waits=waits: len(clock.waits) > waits, "it keeps waiting")
    assert not life.emitted(WorkerStopped)
    assert not life.emitted(ThreadLeftBehind)
    execution.let_go()
    assert life.end() == "interrupted"
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ()
    stopped = life.emitted(WorkerStopped)[0]
    assert (stopped.released, stopped.unsettled) == (("m0",), ())


def test_an_execution_that_releases_its_message_at_a_stop_counts_as_released(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(
        ExecutionPlace.POOL,
        queue="mail",
        handler={
            "blocking": True,
            "answer": lambda deliveries: {one.receipt: Release(uncounted=True) for one in deliveries},
        },
    )
    life.broker.put(0, queue="mail")
    life.start()
    execution = life.running(0, mail)
    life.stop.request()
    eventually(lambda: "drain" in life.journal)
    execution.let_go()
    assert life.end() == "interrupted"
    assert life.emitted(WorkerStopped) == [WorkerStopped(outcome="interrupted", released=("m0",))]


def test_a_forced_end_names_as_unsettled_only_messages_that_the_broker_did_not_settle(life: "Life") -> None:
    life.handler.blocking = True
    life.handler.obedient = False
    life.broker.put(0)
    life.start(drain_seconds=0.0, flush_seconds=0.6, stop_timeout_seconds=10.0)
    execution = life.running()
    life.stop.request()
    assert execution.interrupted.wait(60.0)
    life.stop.request()  # urgent: the worker waits for flushing at most
    assert life.end() == "forced"
    stopped = life.emitted(WorkerStopped)[0]
    assert (stopped.released, stopped.unsettled) == (("m0",), ())
    execution.let_go()

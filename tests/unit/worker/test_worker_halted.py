"""A handler that fails in a way no retry can fix: its queue is no longer served, the others are."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from penstock.errors import RestartNeeded, UsageError, UserError
from penstock.events import ConsumerHalted, Event, WorkerDraining, WorkerFailed, WorkerStopped
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.settlement import Settlement
from penstock.worker.liveness import Liveness, Phase

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life, ToyHandler

Eventually = Callable[..., None]
MISTAKE = UsageError("the transform is None")


def in_run(handler: "ToyHandler", error: UserError = MISTAKE) -> None:
    def fatal(deliveries: Sequence[Delivery]) -> dict[str, Settlement]:
        raise error

    handler.answer = fatal


def in_begin(handler: "ToyHandler", error: UserError = MISTAKE) -> None:
    handler.begin_faults = [error]


def in_upkeep(handler: "ToyHandler", error: UserError = MISTAKE) -> None:
    handler.upkeep_faults = [error]


def ends(life: "Life") -> list[Event]:
    """Return the events of the worker's end."""
    return [event for event in life.events if isinstance(event, WorkerDraining | WorkerFailed | WorkerStopped)]


@pytest.mark.parametrize("place", list(ExecutionPlace))
@pytest.mark.parametrize("where", [in_run, in_begin, in_upkeep])
def test_one_consumer_is_halted_and_its_messages_are_released_uncounted(
    life: "Life", eventually: Eventually, place: ExecutionPlace, where: Callable[["ToyHandler"], None]
) -> None:
    broken = life.serve(place, queue="broken")
    life.serve(ExecutionPlace.POOL, queue="mail")
    where(broken)
    life.broker.put(0, 1, 2, queue="broken")
    life.start(upkeep_seconds=0.01)
    eventually(lambda: life.emitted(ConsumerHalted), "the consumer is halted")
    life.broker.put(*range(10, 20), queue="mail")
    eventually(lambda: len(life.broker.acked()) >= 10, "the other queue is served")
    life.stop.request()
    assert life.end() == "drained"
    assert life.error is None
    assert [event.queue for event in life.emitted(ConsumerHalted)] == ["broken"]
    assert all(release.uncounted for release in life.broker.released().values())
    assert not life.broker.leased


def test_halting_the_last_consumer_ends_the_worker(life: "Life") -> None:
    for queue in ("a", "b"):
        in_run(life.serve(ExecutionPlace.POOL, queue=queue))
        life.broker.put(0 if queue == "a" else 1, queue=queue)
    life.start()
    life.end()
    assert life.error is MISTAKE
    assert len(life.emitted(ConsumerHalted)) == 1
    assert not life.broker.leased
    failed, draining, stopped = ends(life)
    assert isinstance(failed, WorkerFailed)
    assert (failed.error_type, failed.error) == ("UsageError", "the transform is None")
    assert isinstance(draining, WorkerDraining)
    assert draining.reason == "a failure"
    assert isinstance(stopped, WorkerStopped)


@pytest.mark.parametrize("where", [in_run, in_begin, in_upkeep])
def test_a_worker_that_needs_a_new_process_drains_and_reports_it(
    life: "Life", eventually: Eventually, where: Callable[..., None]
) -> None:
    restart = RestartNeeded("Spark's JVM ended")
    spark = life.serve(ExecutionPlace.THREAD, queue="spark")
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.liveness = Liveness(SystemClock())
    life.broker.put(10, queue="mail")
    life.start(upkeep_seconds=0.01)
    running = life.running(handler=mail)
    where(spark, restart)
    life.broker.put(0, queue="spark")
    eventually(lambda: life.emitted(WorkerFailed))
    assert life.liveness.phase is Phase.STOPPING, "so that the probe reports it"
    assert "m10" not in life.broker.acked()
    running.let_go()
    life.end()
    assert life.error is restart
    assert "m10" in life.broker.acked()
    assert all(release.uncounted for release in life.broker.released().values())
    assert not life.broker.leased


def test_a_failure_during_the_stop_is_reported_before_the_end(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    in_run(life.handler)
    life.broker.put(0)
    life.start()
    execution = life.running()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining), "it drains")
    execution.go_on.set()
    life.end()
    assert life.error is MISTAKE
    assert list(map(type, ends(life))) == [WorkerDraining, WorkerFailed, WorkerStopped]


def test_a_stop_that_also_ended_spark_is_no_failure(life: "Life", eventually: Eventually) -> None:
    life.handler.blocking = True
    in_run(life.handler, RestartNeeded("Spark's JVM ended"))
    life.broker.put(0)
    life.start()
    execution = life.running()
    life.stop.request()
    eventually(lambda: life.emitted(WorkerDraining), "it drains")
    execution.go_on.set()
    assert life.end() == "drained"
    assert life.error is None
    assert list(map(type, ends(life))) == [WorkerDraining, WorkerStopped]
    assert all(release.uncounted for release in life.broker.released().values())
    assert not life.broker.leased


def test_a_worker_with_an_end_condition_ends_with_the_first_failed_consumer(life: "Life") -> None:
    in_run(life.serve(ExecutionPlace.POOL, queue="broken"))
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(0, queue="broken")
    life.until = lambda: False
    life.start()
    life.end()
    assert life.error is MISTAKE
    assert life.emitted(ConsumerHalted) == []

"""Handler timeouts: the execution settles, then it is interrupted; its lease is dropped, its slot held to the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.events import ExecutionFailed, ThreadLeftBehind
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.settlement import Release

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]
SHORT = {"blocking": True, "timeout_seconds": 0.02}


@pytest.mark.parametrize("place", list(ExecutionPlace))
def test_work_past_its_timeout_is_settled_and_then_interrupted(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    mail = life.serve(place, queue="mail", handler=SHORT)
    life.broker.put(0, queue="mail")
    life.start(idle_floor_seconds=50.0, idle_ceiling_seconds=60.0)  # only the deadline itself can wake it in time
    execution = life.running(0, mail)
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    eventually(lambda: life.broker.released() == {"m0": Release(delay_seconds=5.0)})
    life.stop.request()
    assert life.end() == "drained"
    assert life.journal.index("time out") < life.journal.index("interrupt")
    assert life.broker.acked() == []
    failures = str(life.emitted(ExecutionFailed))
    # An execution that shares the slots reports its failures itself, message by message.
    assert ("timeout of 0.02 s" in failures) == (place is ExecutionPlace.THREAD)


def test_a_thread_that_ignores_its_interruption_keeps_its_slot_and_loses_its_lease(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={**SHORT, "obedient": False})
    images = life.serve(ExecutionPlace.THREAD, queue="images", handler={"blocking": True})
    life.broker.put(0, 1, queue="mail")
    life.broker.put(2, queue="images")
    life.start(concurrency=1, lease_seconds=0.2, heartbeat_seconds=0.01)
    execution = life.running(0, mail)
    eventually(lambda: life.broker.released().keys() == {"m0"})
    before = len(life.broker.extensions)
    eventually(lambda: len(life.broker.extensions) > before + 5, "other leases are kept")
    assert {ids for beat in life.broker.extensions[before:] for ids in beat} == {"m2"}, "but not that of a hung run"
    assert len(mail.executions) == 1, "the limit is strict: its slot is occupied"
    mail.blocking = False
    execution.let_go()
    eventually(lambda: life.broker.acked() == ["m1"], "its slot is free")
    life.running(0, images).let_go()
    life.stop.request()
    assert life.end() == "drained"


def test_other_work_continues_while_an_execution_is_past_its_timeout(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={**SHORT, "obedient": False})
    life.serve(ExecutionPlace.LOOP, queue="images", handler={"timeout_seconds": 100.0})
    life.broker.put(0, queue="mail")
    life.start()
    execution = life.running(0, mail)
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    life.broker.put(*range(1, 10), queue="images")
    eventually(lambda: len(life.broker.acked()) == 9)
    execution.go_on.set()
    life.stop.request()
    assert life.end() == "drained"


def test_a_stop_reports_a_hung_thread_without_waiting_for_the_whole_drain(life: "Life") -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={**SHORT, "obedient": False})
    life.broker.put(0, queue="mail")
    life.start(stop_timeout_seconds=3_600.0, flush_seconds=0.6)
    execution = life.running(0, mail)
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    life.stop.request()
    assert life.end() == "drained"
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ("penstock-pool-1",)
    assert life.emitted(ThreadLeftBehind) == [ThreadLeftBehind(thread="penstock-pool-1")]
    execution.go_on.set()


def test_a_timeout_that_cannot_be_recorded_releases_the_message_with_a_delay(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(
        ExecutionPlace.POOL, queue="mail", handler={**SHORT, "time_out_fault": OSError("the ledger is down")}
    )
    life.broker.put(0, queue="mail")
    life.start(backoff_base_seconds=4.0, backoff_cap_seconds=60.0)
    assert life.running(0, mail).interrupted.wait(DEADLINE_SECONDS)
    eventually(lambda: life.broker.released() == {"m0": Release(delay_seconds=2.0)})
    life.stop.request()
    assert life.end() == "drained"
    assert "release" in life.journal


def test_work_within_its_timeout_is_not_interrupted(life: "Life") -> None:
    life.serve(ExecutionPlace.POOL, queue="mail", handler={"timeout_seconds": 100.0})
    life.broker.put(*range(20), queue="mail")
    life.until = lambda: len(life.broker.acked()) == 20
    assert life.start().end() == "drained"
    assert "time out" not in life.journal


def test_a_timeout_counts_during_a_drain(life: "Life") -> None:
    mail = life.serve(ExecutionPlace.LOOP, queue="mail", handler={"blocking": True, "timeout_seconds": 0.2})
    life.broker.put(0, queue="mail")
    life.start(stop_timeout_seconds=3_600.0)
    execution = life.running(0, mail)
    life.stop.request()
    assert execution.interrupted.wait(DEADLINE_SECONDS)
    assert life.end() == "drained"
    assert life.broker.released() == {"m0": Release(delay_seconds=5.0)}

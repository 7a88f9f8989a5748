"""Broker turns and arrival signals: when a worker polls, and when it listens."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import ReceiveFailed
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.message import Outgoing
from penstock.worker.queue_scheduler import CALM_SECONDS

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeBroker, FakeClock, FakeListening, Life

Eventually = Callable[..., None]
SLOWLY = {"idle_floor_seconds": 50.0, "idle_ceiling_seconds": 60.0}  # polling alone would receive nothing in time


def listening_of(life: "Life", eventually: Eventually) -> "FakeListening":
    eventually(lambda: life.broker.listenings, "the worker listens")
    return life.broker.listenings[0]


def idle_listening(life: "Life", eventually: Eventually, consumers: int = 1) -> "FakeListening":
    """Return the listening of a worker that has polled every queue."""
    listening = listening_of(life, eventually)
    eventually(lambda: len(life.broker.receive_sizes) >= consumers and life.broker.polled_queues)
    return listening


def stopped(life: "Life") -> str | None:
    life.stop.request()
    return life.end()


# --- arrival signals


def test_an_idle_worker_begins_a_signalled_message_at_once(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    for number in range(3):
        listening = idle_listening(life, eventually)
        life.broker.put(number, queue="mail")
        listening.signal()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert listening.queues == ("mail",)
    assert stopped(life) == "drained"


def test_a_worker_on_a_real_broker_begins_sent_messages_at_once(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.LOOP, queue="mail")
    broker = MemoryBroker()
    life.broker = cast("FakeBroker", broker)
    life.start(**SLOWLY)
    for _ in range(5):
        broker.send("mail", [Outgoing(body=b"{}")])
        eventually(lambda: (stats := broker.stats("mail")).visible == stats.in_flight == 0, "it is processed")
    assert stopped(life) == "drained"


def test_a_worker_listens_before_it_polls(life: "Life", eventually: Eventually) -> None:
    """An arrival between the poll and the rest would wait for the next poll."""
    life.serve(ExecutionPlace.POOL, queue="mail")
    wanted: list[list[bool]] = []
    receive = life.broker.receive

    def spy(queue: str, **numbers: float) -> object:
        wanted.append(list(life.broker.listenings[0].wanted))
        return receive(queue, **numbers)  # type: ignore[arg-type] # passed through

    life.broker.receive = spy  # type: ignore[assignment,method-assign] # a spy
    life.start(**SLOWLY)
    eventually(lambda: wanted)
    life.broker.listenings[0].signal()
    eventually(lambda: len(wanted) == 2)
    assert wanted == [[True], [True, True]]
    assert stopped(life) == "drained"


def test_a_queue_that_a_signalled_poll_drained_is_not_polled_again(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.reports_drained = True
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually)
    for number in range(3):
        life.broker.put(number, queue="mail")
        listening.signal()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
        eventually(lambda: listening.wanted[-1])
    assert stopped(life) == "drained"
    assert len(life.broker.polled_queues) == 1 + 3


def test_a_false_alarm_polls_each_consumer_once_and_the_next_signal_waits_briefly(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    for queue in ("a", "b", "c"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually, consumers=3)
    listening.signal()
    eventually(lambda: len(life.broker.receive_sizes) == 6)
    polled = Counter(life.broker.polled_queues)
    assert polled == {"a": 2, "b": 2, "c": 2}
    life.broker.put(1, queue="b")
    listening.signal()
    eventually(lambda: pytest.approx(CALM_SECONDS) in clock.waits, "it rests briefly")
    assert Counter(life.broker.polled_queues) == polled, "the arrival may be for other workers"
    clock.time += 2 * CALM_SECONDS
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_after_a_signalled_message_the_next_signal_polls_at_once(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually)
    for number in range(4):
        life.broker.put(number, queue="mail")
        listening.signal()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert stopped(life) == "drained"


def test_a_consumer_whose_receive_failed_is_not_polled_on_a_signal(life: "Life", eventually: Eventually) -> None:
    for queue in ("down", "mail"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.broker.unreachable = {"down"}
    life.start(**SLOWLY, retry_base_seconds=1_000.0, retry_cap_seconds=1_000.0)
    listening = idle_listening(life, eventually, consumers=2)
    for number in range(3):
        life.broker.put(number, queue="mail")
        listening.signal()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert Counter(life.broker.polled_queues)["down"] == 1
    assert len(life.emitted(ReceiveFailed)) == 1
    assert stopped(life) == "drained"


def test_a_full_worker_does_not_listen_and_polls_once_it_has_room(life: "Life", eventually: Eventually) -> None:
    full = life.serve(ExecutionPlace.POOL, queue="full", handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(concurrency=1, **SLOWLY)
    listening = idle_listening(life, eventually, consumers=2)
    life.broker.put(0, queue="full")
    listening.signal()
    execution = life.running(0, full)
    eventually(lambda: listening.wanted[-1] is False, "another worker may have room")
    life.broker.put(1, queue="mail")  # without a signal
    execution.let_go()
    eventually(lambda: life.broker.acked() == ["m0", "m1"])
    eventually(lambda: listening.wanted[-1])
    assert stopped(life) == "drained"


def test_a_full_consumer_is_not_listened_for_while_another_has_room(life: "Life", eventually: Eventually) -> None:
    full = life.serve(ExecutionPlace.POOL, queue="full", in_flight_max=1, handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually, consumers=2)
    eventually(lambda: listening.wanted_of == {"full", "mail"})
    life.broker.put(0, queue="full")
    listening.signal()
    execution = life.running(0, full)
    eventually(lambda: listening.wanted_of == {"mail"}, "another worker may have room for it")
    life.broker.put(1, queue="full")  # without a signal
    execution.let_go()
    life.running(1, full).let_go()
    eventually(lambda: life.broker.acked() == ["m0", "m1"])
    eventually(lambda: listening.wanted_of == {"full", "mail"})
    assert stopped(life) == "drained"


def test_a_worker_does_not_listen_during_a_backlog(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(*range(200), queue="mail")
    life.start(concurrency=4, fetch_max=2, **SLOWLY)
    eventually(lambda: len(life.broker.acked()) == 200)
    listening = listening_of(life, eventually)
    eventually(lambda: listening.wanted[-1])
    assert listening.wanted.count(True) <= 3, "at the first poll, and after the backlog"
    assert stopped(life) == "drained"


def test_if_polls_are_billed_a_worker_listens_to_the_queues_without_a_backlog(
    life: "Life", eventually: Eventually
) -> None:
    busy = life.serve(ExecutionPlace.POOL, queue="busy", handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.capabilities = replace(life.broker.capabilities, polls_are_billed=True)
    life.broker.put(*range(4), queue="busy")
    life.start(concurrency=3, fetch_max=1, **SLOWLY)
    listening = listening_of(life, eventually)
    one, other, third = (life.running(n, busy) for n in range(3))
    eventually(lambda: listening.wanted[-1] is False, "it rests without room")
    assert listening.wanted_sets[0] == {"busy", "mail"}
    assert set(map(frozenset, listening.wanted_sets[1:-1])) == {frozenset({"mail"})}
    for execution in (one, other, third):
        execution.let_go()
    life.running(3, busy).let_go()
    eventually(lambda: len(life.broker.acked()) == 4)
    eventually(lambda: listening.wanted_of == {"busy", "mail"})
    assert stopped(life) == "drained"


def test_a_draining_worker_does_not_listen_and_closes_its_listening_at_the_end(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(**SLOWLY)
    execution, listening = life.running(0, mail), listening_of(life, eventually)
    eventually(lambda: listening.wanted[-1])
    life.stop.request()
    eventually(lambda: listening.wanted[-1] is False)
    assert not listening.closed
    execution.let_go()
    assert life.end() == "drained"
    assert listening.closed


def test_a_paused_worker_does_not_listen(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually)
    life.stop.pause()
    eventually(lambda: listening.wanted[-1] is False)
    assert stopped(life) == "drained"


def test_a_broker_is_polled_when_its_reported_delay_ends(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 7.0
    life.start(**SLOWLY)
    idle_listening(life, eventually)
    eventually(lambda: 7.0 in clock.waits)
    life.broker.put(1, queue="mail")
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_a_false_alarm_does_not_postpone_the_scheduled_poll(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 7.0
    life.start(**SLOWLY)
    listening = idle_listening(life, eventually)
    listening.signal()
    eventually(lambda: len(life.broker.receive_sizes) == 2)
    listening.signal()
    eventually(lambda: pytest.approx(CALM_SECONDS) in clock.waits, "it rests briefly")
    life.broker.put(1, queue="mail")
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_an_expired_delay_without_messages_causes_no_busy_loop(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    """This happens when a queue is paused."""
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 0.0
    life.start(**SLOWLY)
    idle_listening(life, eventually)
    eventually(lambda: [seconds for seconds in clock.waits if seconds >= SLOWLY["idle_floor_seconds"]])
    assert len(life.broker.receive_sizes) == 1
    assert stopped(life) == "drained"


# --- turns


def test_settling_and_receiving_are_one_turn(life: "Life", eventually: Eventually) -> None:
    first, second = (life.serve(ExecutionPlace.POOL, queue=queue, handler={"blocking": True}) for queue in ("a", "b"))
    life.broker.put(0, queue="a")
    life.broker.put(1, queue="b")
    life.start(concurrency=2, fetch_max=1)
    one, other = life.running(0, first), life.running(0, second)
    eventually(lambda: life.broker.listenings[0].wanted[-1] is False, "it rests without room")
    turns = len(life.broker.turns)
    one.let_go()
    eventually(lambda: len(life.broker.turns) > turns)
    settled, polled = life.broker.turns[turns]
    assert (settled, sorted(polled)) == (1, ["a", "b"])
    other.let_go()
    assert stopped(life) == "drained"


def test_without_room_or_settlements_there_is_no_turn(life: "Life", clock: "FakeClock", eventually: Eventually) -> None:
    life.clock = clock
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(*range(9), queue="mail")
    life.start(concurrency=1)
    life.running(0, mail)
    eventually(lambda: life.broker.listenings[0].wanted[-1] is False, "it rests without room")
    for _ in range(5):
        waits = len(clock.waits)
        clock.time += 100.0  # longer than any of its waits
        eventually(lambda: len(clock.waits) > waits + 1)  # noqa: B023 # awaited at once
    assert life.broker.turns == [(0, ["mail"])]
    life.stop.request()
    assert stopped(life) == "interrupted"


def test_messages_received_in_a_turn_are_released_if_its_settlements_stop_the_worker(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(concurrency=1)
    execution = life.running(0, mail)
    eventually(lambda: life.broker.listenings[0].wanted[-1] is False, "it rests without room")
    life.broker.settle_faults = [ConfigurationError("no such queue")]
    life.broker.put(1, queue="mail")
    execution.let_go()
    life.end()
    assert isinstance(life.error, ConfigurationError)
    assert life.broker.released().keys() == {"m1"}


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_a_settle_that_fails_in_a_turn_is_retried_and_receiving_continues(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    life.serve(place, queue="mail")
    life.broker.settle_faults = [TemporaryError("unreachable")] * 2
    life.broker.put(*range(20), queue="mail")
    life.start(concurrency=5)
    eventually(lambda: len(life.broker.acked()) == 20)
    assert stopped(life) == "drained"


def test_until_is_checked_after_each_settlement_while_other_batches_run(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, 1, queue="mail")
    life.until = lambda: len(life.broker.acked()) == 1
    life.start(concurrency=2, **SLOWLY)
    one, other = life.running(0, mail), life.running(1, mail)
    one.let_go()
    eventually(lambda: "drain" in life.journal, "the worker drains")
    other.let_go()
    assert life.end() == "drained"

"""Turns at the broker, and being told of arrivals: when a worker asks, and whom it keeps from being told."""

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
    from tests.unit.worker.conftest import FakeBroker, FakeClock, FakeEar, Life

Eventually = Callable[..., None]
SLOWLY = {"idle_floor_seconds": 50.0, "idle_ceiling_seconds": 60.0}  # by asking alone nothing would come in time


def ear_of(life: "Life", eventually: Eventually) -> "FakeEar":
    eventually(lambda: life.broker.ears, "the worker listens")
    return life.broker.ears[0]


def resting(life: "Life", eventually: Eventually, consumers: int = 1) -> "FakeEar":
    """The ear of a worker that has looked at every line."""
    ear = ear_of(life, eventually)
    eventually(lambda: len(life.broker.asked) >= consumers and life.broker.asked_of)
    return ear


def stopped(life: "Life") -> str | None:
    life.stop.request()
    return life.end()


# --- being told


def test_what_an_idle_worker_is_told_of_begins_at_once(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    for number in range(3):
        ear = resting(life, eventually)
        life.broker.put(number, queue="mail")
        ear.tell()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert ear.queues == ("mail",)
    assert stopped(life) == "drained"


def test_a_worker_over_a_real_broker_begins_at_once_what_is_sent(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.LOOP, queue="mail")
    broker = MemoryBroker()
    life.broker = cast("FakeBroker", broker)
    life.start(**SLOWLY)
    for _ in range(5):
        broker.send("mail", [Outgoing(body=b"{}")])
        eventually(lambda: (stats := broker.stats("mail")).visible == stats.in_flight == 0, "it is worked off")
    assert stopped(life) == "drained"


def test_it_wants_to_be_told_before_it_looks(life: "Life", eventually: Eventually) -> None:
    """An arrival between the look and the rest would wait for the next look."""
    life.serve(ExecutionPlace.POOL, queue="mail")
    wanted: list[list[bool]] = []
    receive = life.broker.receive

    def spy(queue: str, **numbers: float) -> object:
        wanted.append(list(life.broker.ears[0].wanted))
        return receive(queue, **numbers)  # type: ignore[arg-type] # as they came

    life.broker.receive = spy  # type: ignore[assignment,method-assign] # a spy
    life.start(**SLOWLY)
    eventually(lambda: wanted)
    life.broker.ears[0].tell()
    eventually(lambda: len(wanted) == 2)
    assert wanted == [[True], [True, True]]
    assert stopped(life) == "drained"


def test_a_false_alarm_lets_every_consumer_be_asked_once_and_the_next_one_waits_a_moment(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    for queue in ("a", "b", "c"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.start(**SLOWLY)
    ear = resting(life, eventually, consumers=3)
    ear.tell()
    eventually(lambda: len(life.broker.asked) == 6)
    asked = Counter(life.broker.asked_of)
    assert asked == {"a": 2, "b": 2, "c": 2}
    life.broker.put(1, queue="b")
    ear.tell()
    eventually(lambda: pytest.approx(CALM_SECONDS) in clock.waits, "it rests a moment")
    assert Counter(life.broker.asked_of) == asked, "what arrives may be for others"
    clock.time += 2 * CALM_SECONDS
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_after_a_told_message_the_next_one_is_asked_for_at_once_again(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    ear = resting(life, eventually)
    for number in range(4):
        life.broker.put(number, queue="mail")
        ear.tell()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert stopped(life) == "drained"


def test_a_consumer_whose_receive_failed_is_left_alone_even_if_told_of(life: "Life", eventually: Eventually) -> None:
    for queue in ("away", "mail"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.broker.away = {"away"}
    life.start(**SLOWLY, retry_base_seconds=1_000.0, retry_cap_seconds=1_000.0)
    ear = resting(life, eventually, consumers=2)
    for number in range(3):
        life.broker.put(number, queue="mail")
        ear.tell()
        eventually(lambda: len(life.broker.acked()) == number + 1)  # noqa: B023 # awaited at once
    assert Counter(life.broker.asked_of)["away"] == 1
    assert len(life.told(ReceiveFailed)) == 1
    assert stopped(life) == "drained"


def test_without_room_nothing_is_to_be_told_and_with_room_again_a_look_makes_up_for_it(
    life: "Life", eventually: Eventually
) -> None:
    full = life.serve(ExecutionPlace.POOL, queue="full", handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(concurrency=1, **SLOWLY)
    ear = resting(life, eventually, consumers=2)
    life.broker.put(0, queue="full")
    ear.tell()
    execution = life.running(0, full)
    eventually(lambda: ear.wanted[-1] is False, "another worker may have room")
    life.broker.put(1, queue="mail")  # and nobody tells of it
    execution.let_go()
    eventually(lambda: life.broker.acked() == ["m0", "m1"])
    eventually(lambda: ear.wanted[-1])
    assert stopped(life) == "drained"


def test_a_full_consumer_is_not_listened_for_while_another_has_room(life: "Life", eventually: Eventually) -> None:
    full = life.serve(ExecutionPlace.POOL, queue="full", in_flight_max=1, handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    ear = resting(life, eventually, consumers=2)
    eventually(lambda: ear.wanted_of == {"full", "mail"})
    life.broker.put(0, queue="full")
    ear.tell()
    execution = life.running(0, full)
    eventually(lambda: ear.wanted_of == {"mail"}, "another worker may have room for it")
    life.broker.put(1, queue="full")  # and nobody tells of it
    execution.let_go()
    life.running(1, full).let_go()
    eventually(lambda: life.broker.acked() == ["m0", "m1"])
    eventually(lambda: ear.wanted_of == {"full", "mail"})
    assert stopped(life) == "drained"


def test_while_there_is_a_backlog_nothing_is_to_be_told(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(*range(200), queue="mail")
    life.start(concurrency=4, fetch_max=2, **SLOWLY)
    eventually(lambda: len(life.broker.acked()) == 200)
    ear = ear_of(life, eventually)
    eventually(lambda: ear.wanted[-1])
    assert ear.wanted.count(True) <= 3, "at the first look, and when the backlog is gone"
    assert stopped(life) == "drained"


def test_where_looks_cost_the_others_are_heard_while_one_queue_has_a_backlog(
    life: "Life", eventually: Eventually
) -> None:
    busy = life.serve(ExecutionPlace.POOL, queue="busy", handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.capabilities = replace(life.broker.capabilities, polls_are_billed=True)
    life.broker.put(*range(4), queue="busy")
    life.start(concurrency=3, fetch_max=1, **SLOWLY)
    ear = ear_of(life, eventually)
    one, other, third = (life.running(n, busy) for n in range(3))
    eventually(lambda: ear.wanted[-1] is False, "it rests without room")
    assert ear.wanted_sets[0] == {"busy", "mail"}
    assert set(map(frozenset, ear.wanted_sets[1:-1])) == {frozenset({"mail"})}
    for execution in (one, other, third):
        execution.let_go()
    life.running(3, busy).let_go()
    eventually(lambda: len(life.broker.acked()) == 4)
    eventually(lambda: ear.wanted_of == {"busy", "mail"})
    assert stopped(life) == "drained"


def test_a_worker_that_drains_is_told_nothing_and_in_the_end_the_ear_is_closed(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(**SLOWLY)
    execution, ear = life.running(0, mail), ear_of(life, eventually)
    eventually(lambda: ear.wanted[-1])
    life.stop.request()
    eventually(lambda: ear.wanted[-1] is False)
    assert not ear.closed
    execution.let_go()
    assert life.end() == "drained"
    assert ear.closed


def test_a_paused_worker_is_told_nothing(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(**SLOWLY)
    ear = resting(life, eventually)
    life.stop.pause()
    eventually(lambda: ear.wanted[-1] is False)
    assert stopped(life) == "drained"


def test_where_the_broker_knows_when_a_delay_ends_it_is_asked_then(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 7.0
    life.start(**SLOWLY)
    resting(life, eventually)
    eventually(lambda: 7.0 in clock.waits)
    life.broker.put(1, queue="mail")
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_a_false_alarm_keeps_no_consumer_from_being_asked_at_its_time(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 7.0
    life.start(**SLOWLY)
    ear = resting(life, eventually)
    ear.tell()
    eventually(lambda: len(life.broker.asked) == 2)
    ear.tell()
    eventually(lambda: pytest.approx(CALM_SECONDS) in clock.waits, "it rests a moment")
    life.broker.put(1, queue="mail")
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"])
    assert stopped(life) == "drained"


def test_a_delay_that_is_over_and_brought_nothing_does_not_make_it_spin(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    """As where a queue is paused."""
    life.clock = clock
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.next_in_seconds = 0.0
    life.start(**SLOWLY)
    resting(life, eventually)
    eventually(lambda: [seconds for seconds in clock.waits if seconds >= SLOWLY["idle_floor_seconds"]])
    assert len(life.broker.asked) == 1
    assert stopped(life) == "drained"


# --- turns


def test_settling_and_asking_is_one_turn(life: "Life", eventually: Eventually) -> None:
    first, second = (life.serve(ExecutionPlace.POOL, queue=queue, handler={"blocking": True}) for queue in ("a", "b"))
    life.broker.put(0, queue="a")
    life.broker.put(1, queue="b")
    life.start(concurrency=2, fetch_max=1)
    one, other = life.running(0, first), life.running(0, second)
    eventually(lambda: life.broker.ears[0].wanted[-1] is False, "it rests without room")
    turns = len(life.broker.turns)
    one.let_go()
    eventually(lambda: len(life.broker.turns) > turns)
    settled, asked = life.broker.turns[turns]
    assert (settled, sorted(asked)) == (1, ["a", "b"])
    other.let_go()
    assert stopped(life) == "drained"


def test_without_room_and_anything_to_settle_there_is_no_turn(
    life: "Life", clock: "FakeClock", eventually: Eventually
) -> None:
    life.clock = clock
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(*range(9), queue="mail")
    life.start(concurrency=1)
    life.running(0, mail)
    eventually(lambda: life.broker.ears[0].wanted[-1] is False, "it rests without room")
    for _ in range(5):
        waits = len(clock.waits)
        clock.time += 100.0  # whatever its waits were, they are over
        eventually(lambda: len(clock.waits) > waits + 1)  # noqa: B023 # awaited at once
    assert life.broker.turns == [(0, ["mail"])]
    life.stop.request()
    assert stopped(life) == "interrupted"


def test_what_was_received_in_a_turn_is_given_back_if_its_settlements_stop_the_worker(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(concurrency=1)
    execution = life.running(0, mail)
    eventually(lambda: life.broker.ears[0].wanted[-1] is False, "it rests without room")
    life.broker.settle_faults = [ConfigurationError("no such queue")]
    life.broker.put(1, queue="mail")
    execution.let_go()
    life.end()
    assert isinstance(life.error, ConfigurationError)
    assert life.broker.released().keys() == {"m1"}


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_a_settle_that_fails_in_a_turn_is_tried_again_and_the_receive_goes_on(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    life.serve(place, queue="mail")
    life.broker.settle_faults = [TemporaryError("away")] * 2
    life.broker.put(*range(20), queue="mail")
    life.start(concurrency=5)
    eventually(lambda: len(life.broker.acked()) == 20)
    assert stopped(life) == "drained"


def test_until_is_asked_when_what_a_batch_came_to_is_settled_though_others_are_at_work(
    life: "Life", eventually: Eventually
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, 1, queue="mail")
    life.until = lambda: len(life.broker.acked()) == 1
    life.start(concurrency=2, **SLOWLY)
    one, other = life.running(0, mail), life.running(1, mail)
    one.let_go()
    eventually(lambda: "drain" in life.journal, "the worker leaves")
    other.let_go()
    assert life.end() == "drained"

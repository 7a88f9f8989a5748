"""One batch at work: one caller decides how it ends, and one caller submits its settlements."""

import threading
from collections.abc import Callable
from typing import cast

from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Execution
from penstock.worker.running_batch import BatchRuntime, RunningBatch


def flight_of(delivery: Delivery) -> RunningBatch:
    course = BatchRuntime(handler="h", queue="q", lock=threading.Lock(), lost=lambda _: None)
    return RunningBatch(course, cast("Execution", object()), [delivery], 1)


def test_the_first_caller_decides_and_settles(delivery: Callable[..., Delivery]) -> None:
    flight = flight_of(delivery(1))
    assert flight.end()
    assert not flight.end()
    assert not flight.settles()


def test_a_caller_that_asks_the_ledger_first_settles_only_if_no_other_has(delivery: Callable[..., Delivery]) -> None:
    flight = flight_of(delivery(1))
    assert flight.end(settles=False)
    assert [flight.settled, flight.settles(), flight.settled, flight.settles()] == [False, True, True, False]

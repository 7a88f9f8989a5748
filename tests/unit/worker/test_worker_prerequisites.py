"""A consumer that waits for a prerequisite before its first receive, while the others are served."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import ConsumerHalted, JobFailed, WorkerStopped
from penstock.messaging.handler import ExecutionPlace
from penstock.worker.consumer import SlowStart

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

DEADLINE_SECONDS = 60.0
Eventually = Callable[..., None]
MISTAKE = ConfigurationError("Spark did not start")


class Gate:
    """A start that ends when, and as, the test decides."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        self.begun.set()
        assert self.go.wait(DEADLINE_SECONDS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate(life: "Life") -> Gate:
    """Return the start of the queue "clicks"; "mail" is served beside it."""
    gate = Gate()
    life.serve(ExecutionPlace.THREAD, queue="clicks")
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.consumers = [
        replace(consumer, start=SlowStart(awaits="Spark", run=gate)) if consumer.queue == "clicks" else consumer
        for consumer in life.consumers
    ]
    life.broker.put(0, queue="clicks")
    life.broker.put(1, queue="mail")
    return gate


def test_other_consumers_are_served_during_a_start(life: "Life", eventually: Eventually, gate: Gate) -> None:
    life.start()
    eventually(lambda: life.broker.acked() == ["m1"])
    assert gate.begun.wait(DEADLINE_SECONDS)
    assert "clicks" not in life.broker.polled_queues
    gate.go.set()
    eventually(lambda: life.broker.acked() == ["m1", "m0"])
    life.stop.request()
    assert life.end() == "drained"


def test_a_stop_does_not_wait_for_a_start(life: "Life", eventually: Eventually, gate: Gate) -> None:
    gate.error = MISTAKE
    life.start()
    assert gate.begun.wait(DEADLINE_SECONDS)
    eventually(lambda: life.broker.acked() == ["m1"])
    life.stop.request()
    assert life.end() == "drained"
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ("penstock-start",)
    assert life.emitted(WorkerStopped) == [WorkerStopped(outcome="drained", released=())]
    gate.go.set()
    eventually(lambda: not any(thread.name == "penstock-start" for thread in threading.enumerate()))
    assert life.emitted(ConsumerHalted) == []


def test_a_failed_start_halts_only_its_consumer(life: "Life", eventually: Eventually, gate: Gate) -> None:
    gate.error = MISTAKE
    gate.go.set()
    life.start()
    eventually(lambda: life.emitted(ConsumerHalted))
    life.broker.put(2, queue="mail")
    eventually(lambda: set(life.broker.acked()) == {"m1", "m2"})
    life.stop.request()
    assert life.end() == "drained"
    assert [(event.queue, event.error) for event in life.emitted(ConsumerHalted)] == [
        ("clicks", "ConfigurationError: Spark did not start")
    ]
    assert "clicks" not in life.broker.polled_queues


def test_a_start_that_fails_temporarily_is_retried(life: "Life", eventually: Eventually, gate: Gate) -> None:
    gate.error = TemporaryError("the store is down")
    gate.go.set()
    life.start()
    eventually(lambda: life.emitted(JobFailed))
    life.broker.put(2, queue="mail")
    eventually(lambda: set(life.broker.acked()) == {"m1", "m2"})
    gate.error = None
    eventually(lambda: set(life.broker.acked()) == {"m0", "m1", "m2"})
    life.stop.request()
    assert life.end() == "drained"
    assert life.emitted(ConsumerHalted) == []


def test_a_stop_ends_the_retries_of_a_start(life: "Life", eventually: Eventually, gate: Gate) -> None:
    gate.error = TemporaryError("the store is down")
    gate.go.set()
    life.start()
    eventually(lambda: life.emitted(JobFailed))
    life.stop.request()
    assert life.end() == "drained"
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ()


@pytest.mark.parametrize("error", [MISTAKE, ValueError("a defect")])
def test_a_failed_start_ends_a_worker_that_serves_nothing_else(life: "Life", gate: Gate, error: BaseException) -> None:
    life.consumers = [consumer for consumer in life.consumers if consumer.queue == "clicks"]
    gate.error = error
    gate.go.set()
    life.start()
    life.end()
    assert life.error is error

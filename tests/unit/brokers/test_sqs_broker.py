"""Capabilities of the SQS broker, requests that it rejects without a call, and independence of its calls."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import received, succeeded

from penstock.brokers.sqs import SqsBroker
from penstock.brokers.sqs.broker import EXTENDERS, SETTLERS
from penstock.brokers.sqs.client import SqsApi
from penstock.brokers.sqs.leases import CHANGE
from penstock.brokers.sqs.settle import DELETE
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import QueueSettings, ReceiveRequest
from penstock.messaging.message import Outgoing
from penstock.messaging.queued import QueuedState
from penstock.messaging.settlement import Ack
from penstock.storage.aws import Aws

NOWHERE = Aws(region="us-east-1", endpoint_url="http://127.0.0.1:1")
DEADLINE_SECONDS = 60.0


@pytest.fixture
def broker() -> Iterator[SqsBroker]:
    with closing(SqsBroker(NOWHERE, holder="w", pollers=3)) as opened:
        yield opened


def test_capabilities_are_those_of_sqs(broker: SqsBroker) -> None:
    can = broker.capabilities
    assert (can.delay_seconds_max, can.lease_seconds_max, can.body_bytes_max) == (900, 43_200, 1_048_576)
    assert can.receive_max == 30
    assert not any(
        (can.fenced, can.releases_uncounted, can.deduplicates, can.browsable, can.remembers_attempts, can.pausable)
    )
    assert not any((can.creates_queues, can.ordered, can.exact_stats, can.explains_deaths))
    assert can.polls_are_billed
    assert (can.settle_batch, can.settle_linger_seconds) == (10, 0.1)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda broker: broker.browse("q", messages_max=1), "cannot be browsed"),
        (lambda broker: broker.peek("q", QueuedState.WAITING, messages_max=1), "cannot be browsed"),
        (lambda broker: broker.find("q", "id"), "cannot be browsed"),
        (lambda broker: broker.pause("q"), "cannot be paused on SQS"),
        (lambda broker: broker.resume("q"), "none is ever paused"),
        (lambda broker: broker.receive("q", messages_max=1, lease_seconds=43_201), "lease_seconds is 43201"),
        (lambda broker: broker.receive("q", messages_max=1, lease_seconds=1, wait_seconds=-1), "wait_seconds"),
        (lambda broker: broker.send("q", [Outgoing(body=b"", delay_seconds=901)]), "900 s that SQS can"),
        (lambda broker: broker.send("", [Outgoing(body=b"")]), "needs a name"),
    ],
)
def test_an_impossible_request_is_rejected_without_a_call(
    broker: SqsBroker, attempt: Callable[[SqsBroker], object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        attempt(broker)
    assert not broker.paused("q")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pollers": 0}, "pollers is 0"),
        ({"poll_seconds": 0.5}, "poll_seconds is 0.5"),
        ({"poll_seconds": 21}, "poll_seconds is 21"),
        ({"queues": [QueueSettings(name="q", receives_max=0)]}, "receives_max is 0"),
        ({"queues": [QueueSettings(name="q", dead_letter_queue="q")]}, "its own dead-letter queue"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SqsBroker(NOWHERE, holder="w", **options)  # type: ignore[arg-type]


def test_empty_requests_do_nothing(broker: SqsBroker) -> None:
    assert broker.send("q", []) == ()
    assert broker.receive("q", messages_max=0, lease_seconds=1) == ()
    assert list(broker.settle([])) == []
    assert list(broker.extend([], lease_seconds=1)) == []


def test_every_operation_on_a_closed_broker_raises_a_temporary_error(broker: SqsBroker) -> None:
    broker.close()
    broker.close()
    attempts: list[Callable[[], object]] = [
        lambda: broker.send("q", [Outgoing(body=b"x")]),
        lambda: broker.receive("q", messages_max=1, lease_seconds=1),
        lambda: broker.extend([received(1)], lease_seconds=1),
        lambda: broker.settle([(received(1), Ack())]),
        lambda: broker.stats("q"),
        lambda: broker.queue_names(),
        lambda: broker.purge("q"),
    ]
    for attempt in attempts:
        with pytest.raises(TemporaryError, match="closed"):
            attempt()
    turn = broker.turn([(received(1), Ack())], [ReceiveRequest(queue="q", messages_max=1)], lease_seconds=1)
    assert isinstance(turn.settle_error, TemporaryError)
    assert turn.receive_error is not None


class Hanging:
    """Replaces the calls to AWS. Calls of one operation on one queue wait until the test sets `gate`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str, queue: str) -> None:
        self.gate = threading.Event()
        self._waiting = threading.Semaphore(0)

        def ask(_: SqsApi, called: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
            if called == "get_queue_url":
                return {"QueueUrl": f"http://sqs/1/{parameters['QueueName']}"}
            if (called, queue) == hangs:
                self._waiting.release()
                assert self.gate.wait(2 * DEADLINE_SECONDS)
            return succeeded(parameters["Entries"])

        hangs = (operation, queue)
        monkeypatch.setattr(SqsApi, "call", ask)

    def await_calls(self, count: int) -> None:
        for _ in range(count):
            assert self._waiting.acquire(timeout=DEADLINE_SECONDS)


def extend_in_thread(broker: SqsBroker, queue: str) -> threading.Event:
    """Extend the leases of two full calls in a thread; return an event that is set when they are extended."""
    done = threading.Event()
    deliveries = [received(n, queue=queue, began_at=time.monotonic()) for n in range(1_000, 1_020)]

    def extend() -> None:
        broker.extend(deliveries, lease_seconds=60)
        done.set()

    threading.Thread(target=extend, daemon=True).start()
    return done


@pytest.mark.parametrize("queue", ["q", "other"])
def test_leases_are_extended_while_every_call_that_settles_hangs(
    broker: SqsBroker, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    hanging = Hanging(monkeypatch, DELETE, "q")
    acks = [(received(n, began_at=time.monotonic()), Ack()) for n in range(10 * (SETTLERS + 1))]
    settling = threading.Thread(target=broker.settle, args=(acks,), daemon=True)
    settling.start()
    hanging.await_calls(SETTLERS + 1)  # the last call is made by the settling thread
    assert extend_in_thread(broker, queue).wait(DEADLINE_SECONDS)
    hanging.gate.set()
    settling.join(DEADLINE_SECONDS)
    assert not settling.is_alive()


def test_leases_of_a_queue_are_extended_while_every_call_that_extends_another_hangs(
    broker: SqsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch, CHANGE, "q")
    deliveries = [received(n, began_at=time.monotonic()) for n in range(10 * (EXTENDERS + 1))]
    extending = threading.Thread(target=broker.extend, args=(deliveries,), kwargs={"lease_seconds": 60}, daemon=True)
    extending.start()
    hanging.await_calls(EXTENDERS + 1)
    assert extend_in_thread(broker, "other").wait(DEADLINE_SECONDS)
    hanging.gate.set()
    extending.join(DEADLINE_SECONDS)
    assert not extending.is_alive()

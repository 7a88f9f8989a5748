"""Settling deliveries: the calls to SQS, their order, and the reported failures."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FIFO as FIFO_QUEUE
from tests.unit.brokers.sqs_doubles import NOW, Answers, SettlerSetup, client_error, received, succeeded

from penstock.brokers.sqs.envelope import opened, size_bytes
from penstock.brokers.sqs.leases import CHANGE, REMEMBERED_MAX, SettledDeliveries
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX, MESSAGE_BYTES_MAX
from penstock.brokers.sqs.send import SEND
from penstock.brokers.sqs.settle import DELETE
from penstock.errors import ConfigurationError, QueueMissing, TemporaryError
from penstock.messaging.death import death_of
from penstock.messaging.settlement import Ack, DeadLetter, Release

BAD = DeadLetter(reason="bad", exception="ValueError: x", traceback="Traceback ...")


def failing(operation: str, codes: Mapping[str, str]) -> Answers:
    """Let one operation fail for these positions in its calls; all else succeeds."""

    def answer(called: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return succeeded(parameters["Entries"], codes if called == operation else None)

    return answer


def raising(operation: str, error: Exception) -> Answers:
    return lambda called, parameters: error if called == operation else succeeded(parameters["Entries"])


def test_acks_delete_and_releases_hide_for_whole_seconds() -> None:
    setup = SettlerSetup()
    assert not setup.settle((received(1), Ack()), (received(2), Release()), (received(3), Release(delay_seconds=1.5)))
    assert setup.handles(DELETE) == ["r1"]
    (entries,) = setup.api.entries(CHANGE)
    assert [(entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in entries] == [("r2", 0), ("r3", 2)]


def test_a_release_delay_is_cut_to_the_visibility_limit() -> None:
    setup = SettlerSetup()
    setup.clock.advance(LEASE_SECONDS_MAX - 100)
    setup.settle((received(1, began_at=0.0), Release(delay_seconds=900)))
    assert setup.api.entries(CHANGE)[0][0]["VisibilityTimeout"] < 100


def test_a_second_settlement_of_a_delivery_is_lost_without_a_call() -> None:
    setup = SettlerSetup()
    first, second = received(1), received(2)
    assert not setup.settle((first, Ack()))
    failures = setup.settle((first, BAD), (second, Release()), (second, Ack()))
    assert [(failure.delivery, failure.lost) for failure in failures] == [(first, True), (second, True)]
    assert setup.api.operations() == [DELETE, CHANGE]


def test_a_failed_settlement_can_be_retried() -> None:
    setup = SettlerSetup(failing(DELETE, {"0": "throttled"}))
    (failure,) = setup.settle((received(1), Ack()), (received(2), Ack()))
    assert (failure.delivery, failure.lost) == (received(1), False)
    assert "throttled" in failure.reason
    setup.api.answers = None
    assert not setup.settle((received(1), Ack()))


def test_a_delivery_with_an_invalid_receipt_handle_is_lost() -> None:
    (failure,) = SettlerSetup(failing(CHANGE, {"0": "MessageNotInflight"})).settle((received(1), Release()))
    assert failure.lost
    (failure,) = SettlerSetup(failing(DELETE, {"0": "ReceiptHandleIsInvalid"})).settle((received(1), Ack()))
    assert failure.lost


def test_a_failed_delete_does_not_affect_releases() -> None:
    setup = SettlerSetup(raising(DELETE, TemporaryError("away")))
    (failure,) = setup.settle((received(1), Ack()), (received(2), Release()))
    assert (failure.delivery, failure.lost, failure.reason) == (received(1), False, "away")


def test_settle_raises_if_all_calls_fail() -> None:
    with pytest.raises(TemporaryError, match="away"):
        SettlerSetup(raising(DELETE, TemporaryError("away"))).settle((received(1), Ack()))


def test_a_missing_permission_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="sqs:DeleteMessage"):
        SettlerSetup(raising(DELETE, ConfigurationError("sqs:DeleteMessage"))).settle(
            (received(1), Ack()), (received(2), Release())
        )


def test_invalid_delays_are_rejected_before_any_call() -> None:
    setup = SettlerSetup()
    for delay_seconds in (-1.0, LEASE_SECONDS_MAX + 1, float("nan")):
        with pytest.raises(ConfigurationError):
            setup.settle((received(1), Ack()), (received(2), Release(delay_seconds=delay_seconds)))
    assert setup.api.calls == []


# --- dead letters


def test_a_dead_letter_is_sent_before_the_message_is_deleted() -> None:
    setup = SettlerSetup()
    assert not setup.settle((received(1, attempt=3, body=b"\xff"), BAD))
    assert [(queue, operation) for queue, operation, _ in setup.api.calls] == [
        ("q", CHANGE),
        ("q-dlq", SEND),
        ("q", DELETE),
    ]
    sent = setup.api.entries(SEND)[0][0]
    body, attributes, _ = opened({"Body": sent["MessageBody"], "MessageAttributes": sent["MessageAttributes"]})
    death = death_of(attributes)
    assert body == b"\xff"
    assert death is not None
    assert (death.reason, death.exception, death.traceback) == ("bad", "ValueError: x", "Traceback ...")
    assert (death.attempts, death.worker, death.queue, death.message_id) == (3, "worker-7", "q", "m1")
    assert (death.enqueued_at, death.first_failed_at, death.last_failed_at) == (NOW - 10, NOW - 5, NOW)


def test_on_a_first_attempt_the_first_failure_is_the_last_one() -> None:
    setup = SettlerSetup()
    setup.settle((received(1), BAD))
    attributes = {
        name: each["StringValue"] for name, each in setup.api.entries(SEND)[0][0]["MessageAttributes"].items()
    }
    death = death_of(attributes)
    assert death is not None
    assert death.first_failed_at == death.last_failed_at == NOW


def test_a_delivery_with_a_lost_lease_is_not_dead_lettered() -> None:
    setup = SettlerSetup(failing(CHANGE, {"1": "MessageNotInflight"}))
    deliveries = [received(n) for n in range(3)]
    (failure,) = setup.settle(*((delivery, BAD) for delivery in deliveries))
    assert (failure.delivery, failure.lost) == (deliveries[1], True)
    assert len(setup.api.entries(SEND)[0]) == 2
    assert setup.handles(DELETE) == ["r0", "r2"]


def test_at_the_visibility_limit_a_message_is_dead_lettered_without_extending() -> None:
    setup = SettlerSetup()
    setup.clock.advance(LEASE_SECONDS_MAX - 10)
    assert not setup.settle((received(1, began_at=0.0), BAD))
    assert setup.api.operations() == [SEND, DELETE]


def test_a_message_whose_dead_letter_was_not_sent_is_not_deleted() -> None:
    setup = SettlerSetup(failing(SEND, {"0": "InvalidMessageContents"}))
    (failure,) = setup.settle((received(1), BAD), (received(2), BAD))
    assert (failure.delivery, failure.lost) == (received(1), False)
    assert "InvalidMessageContents" in failure.reason
    assert setup.handles(DELETE) == ["r2"]


def test_if_only_the_delete_failed_only_it_is_retried() -> None:
    setup = SettlerSetup(raising(DELETE, TemporaryError("away")))
    with pytest.raises(TemporaryError):
        setup.settle((received(1), BAD))
    setup.api.answers = None
    assert not setup.settle((received(1), BAD))
    assert len(setup.api.entries(SEND)) == 1
    assert len(setup.api.entries(DELETE)) == 2


def test_without_a_dead_letter_queue_the_message_stays_and_the_failure_says_why() -> None:
    missing = QueueMissing("The queue 'q' has no dead-letter queue: create it.")
    missing.__cause__ = client_error("QueueDoesNotExist")
    setup = SettlerSetup(dead_letters=missing)
    (failure,) = setup.settle((received(1), BAD), (received(2), Ack()))
    assert (failure.delivery, failure.lost, failure.reason) == (received(1), False, str(missing))
    assert setup.handles(DELETE) == ["r2"]
    assert not setup.api.entries(SEND)


def test_a_denied_dead_letter_queue_lookup_is_a_failure_of_that_message_only() -> None:
    setup = SettlerSetup(dead_letters=ConfigurationError("here refuses sqs:GetQueueUrl"))
    (failure,) = setup.settle((received(1), BAD), (received(2), Ack()))
    assert (failure.delivery, failure.lost) == (received(1), False)
    assert "sqs:GetQueueUrl" in failure.reason
    assert setup.handles(DELETE) == ["r2"]


def test_a_dead_letter_to_a_fifo_queue_has_a_deduplication_id() -> None:
    setup = SettlerSetup(dead_letters=FIFO_QUEUE)
    setup.settle((received(1, attempt=2), BAD))
    entry = setup.api.entries(SEND)[0][0]
    assert entry["MessageDeduplicationId"] == "m1.2"
    assert entry["MessageGroupId"]


@pytest.mark.parametrize(("free_bytes", "has_death"), [(90_000, True), (50_000, True), (2_000, True), (10, False)])
def test_a_death_is_cut_to_the_space_left_by_the_message(free_bytes: int, has_death: bool) -> None:
    setup = SettlerSetup()
    body = b"x" * (MESSAGE_BYTES_MAX - free_bytes)
    settlement = DeadLetter(reason="r" * 3_000, exception="e" * 3_000, traceback="t" * 100_000)
    assert not setup.settle((received(1, body=body), settlement))
    sent = setup.api.entries(SEND)[0][0]
    assert sent["MessageBody"] == body.decode()
    assert ("MessageAttributes" in sent) is has_death


def test_a_death_is_cut_to_the_size_limit_of_the_dead_letter_queue() -> None:
    setup = SettlerSetup()
    setup.queues.message_bytes_max = 256 * 1024
    settlement = DeadLetter(reason="r" * 100, exception="e" * 100, traceback="t" * 10_000)
    assert not setup.settle((received(1, body=b"x" * (256 * 1024 - 2_000)), settlement))
    sent = dict(setup.api.entries(SEND)[0][0])
    assert size_bytes(sent) <= 256 * 1024
    death = death_of({"penstock-death": sent["MessageAttributes"]["penstock-death"]["StringValue"]})
    assert death is not None
    assert death.reason == "r" * 100


@pytest.mark.parametrize(
    ("attributes", "group"),
    [({}, "tenant"), ({f"a{n}": "é" for n in range(10)}, "tenant"), ({"penstock": '"' * 1_000}, None)],
)
def test_a_message_at_the_size_limit_is_dead_lettered_unchanged(
    attributes: Mapping[str, str], group: str | None
) -> None:
    setup = SettlerSetup()
    typed_attributes = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    room = MESSAGE_BYTES_MAX - size_bytes({"MessageBody": "", "MessageAttributes": typed_attributes})
    assert not setup.settle((received(1, body=b"x" * room, attributes=attributes, group=group), BAD))
    sent = dict(setup.api.entries(SEND)[0][0])
    assert size_bytes(sent) == MESSAGE_BYTES_MAX
    assert sent.get("MessageAttributes", {}) == typed_attributes
    assert sent.get("MessageGroupId") == group


def test_a_message_at_the_size_limit_that_needs_notes_is_sent_with_them() -> None:
    setup = SettlerSetup()
    assert not setup.settle((received(1, body=b"x" * MESSAGE_BYTES_MAX, group="ä"), BAD))
    assert size_bytes(dict(setup.api.entries(SEND)[0][0])) > MESSAGE_BYTES_MAX


# --- remembered settlements


def test_the_number_of_remembered_settlements_is_bounded() -> None:
    settled = SettledDeliveries()
    for n in range(REMEMBERED_MAX + 1):
        settled.add(received(n))
    assert received(0) not in settled
    assert received(1) in settled

"""The settlements of deliveries with notifications."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import InvalidMessage
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.notification import Notification, NotificationKind
from penstock.objects.reference import ObjectRef
from penstock.pipeline.attempt import AttemptSettings
from penstock.pipeline.batch import PARSED_BYTES_MAX, PARSED_MAX, ParsedNotifications, PipelineHandler
from penstock.pipeline.notifications import (
    DONE,
    NotificationDelivery,
    ObjectDead,
    ObjectDone,
    ObjectLater,
    ObjectOutcome,
    candidates,
    open_delivery,
    settle_delivery,
    split_suspects,
)

A = ObjectRef(bucket="b", key="a", size_bytes=1, etag="1")
B = ObjectRef(bucket="b", key="b", size_bytes=2, etag="2")
C = ObjectRef(bucket="b", key="c", size_bytes=3, etag="3")


def delivery(message_id: str = "m1", **attributes: str | bytes) -> Delivery:
    message = Message(id=message_id, body=b"{}", enqueued_at=10.0, attributes=attributes)
    return Delivery(message=message, queue="q", receipt=f"r-{message_id}", attempt=1, received_at=11.0)


def notified(*objects: ObjectRef, problems: tuple[str, ...] = (), message_id: str = "m1") -> NotificationDelivery:
    return NotificationDelivery(delivery=delivery(message_id), objects=objects, problems=problems)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param((ObjectDone(), ObjectDone()), Ack(), id="all-done"),
        pytest.param((ObjectDone(), ObjectLater(delay_seconds=3.0)), Release(delay_seconds=3.0), id="one-retried"),
        pytest.param(
            (ObjectLater(delay_seconds=1.0), ObjectLater(delay_seconds=4.0)),
            Release(delay_seconds=4.0),
            id="longest-delay",
        ),
        pytest.param(
            (ObjectLater(delay_seconds=1.0, uncounted=True), ObjectLater(delay_seconds=2.0)),
            Release(delay_seconds=2.0, uncounted=False),
            id="one-counted",
        ),
        pytest.param(
            (ObjectLater(delay_seconds=1.0, uncounted=True), ObjectDone()),
            Release(delay_seconds=1.0, uncounted=True),
            id="busy-elsewhere",
        ),
        pytest.param(
            (ObjectDead(reason="broken", original_message_id="m1"), ObjectDone()),
            DeadLetter(reason="broken"),
            id="failed-by-this-message",
        ),
        pytest.param(
            (ObjectDead(reason="broken", original_message_id="other"), ObjectDone()),
            Ack(),
            id="failed-by-another-message",
        ),
        pytest.param(
            (ObjectDead(reason="broken", original_message_id="m1"), ObjectLater(delay_seconds=1.0)),
            Release(delay_seconds=1.0),
            id="remaining-work-first",
        ),
    ],
)
def test_a_delivery_is_settled_by_the_outcomes_of_all_its_objects(
    outcomes: tuple[ObjectOutcome, ObjectOutcome], expected: object
) -> None:
    assert (
        settle_delivery(notified(A, B), {A.object_id: outcomes[0], B.object_id: outcomes[1]}, handler="clicks")
        == expected
    )


def test_an_ack_names_the_objects_that_the_message_announced() -> None:
    settlement = settle_delivery(
        notified(A, B), {A.object_id: ObjectDone(), B.object_id: ObjectDone()}, handler="clicks"
    )
    assert isinstance(settlement, Ack)
    assert settlement.objects == (A.uri, B.uri)


def test_a_bad_record_dead_letters_the_message_once_the_other_objects_are_done() -> None:
    bad = notified(A, problems=("record 2 has no key",))
    assert settle_delivery(bad, {A.object_id: ObjectDone()}, handler="clicks") == DeadLetter(
        reason="record 2 has no key"
    )
    assert settle_delivery(bad, {A.object_id: ObjectLater(delay_seconds=1.0)}, handler="clicks") == Release(
        delay_seconds=1.0
    )


def test_a_message_without_objects_is_settled_when_it_is_opened() -> None:
    tried = open_delivery(delivery(), lambda _: Notification(kind=NotificationKind.TEST_EVENT), handler="clicks")
    empty = open_delivery(delivery(), lambda _: Notification(kind=NotificationKind.EMPTY), handler="clicks")
    assert tried == empty == Ack()
    assert isinstance(tried, Ack)
    assert isinstance(empty, Ack)
    assert (tried.reason, empty.reason) == ("test_event", "no_objects")
    bad = Notification(kind=NotificationKind.RECORDS, problems=("record 1 has no key",))
    assert open_delivery(delivery(), lambda _: bad, handler="clicks") == DeadLetter(reason="record 1 has no key")


def test_an_unreadable_message_is_dead_lettered_with_the_reason() -> None:
    def refuse(delivery: Delivery) -> Notification:
        raise InvalidMessage("not JSON")

    assert open_delivery(delivery(), refuse, handler="clicks") == DeadLetter(reason="not JSON")


def test_every_message_that_names_an_object_is_a_candidate_for_it() -> None:
    first, second = notified(A, message_id="m1"), notified(A, B, message_id="m2")
    named = [(candidate.object_id, candidate.original_message.message_id) for candidate in candidates([first, second])]
    assert named == [(A.object_id, "m1"), (A.object_id, "m2"), (B.object_id, "m2")]


def test_suspects_of_a_delivery_are_separate_parts() -> None:
    whole = notified(A, B, C)
    assert split_suspects(whole, {}) == [whole]
    assert split_suspects(whole, {A.object_id: 0, B.object_id: 2}) == [
        replace(whole, objects=(A, C)),
        replace(whole, objects=(B,), failures=2),
    ]
    assert [part.failures for part in split_suspects(whole, {A.object_id: 1, B.object_id: 2, C.object_id: 1})] == [
        1,
        2,
        1,
    ]


def test_with_one_object_a_run_each_object_is_a_separate_part() -> None:
    assert split_suspects(notified(A, B), {B.object_id: 1}, singly=True) == [
        notified(A),
        replace(notified(B), failures=1),
    ]


def test_a_dead_letter_has_the_first_exception_of_its_objects() -> None:
    outcomes: dict[bytes, ObjectOutcome] = {
        A.object_id: ObjectDead(reason="too large", original_message_id="m1"),
        B.object_id: ObjectDead(reason="no", original_message_id="m1", exception="ValueError: no", traceback="where"),
    }
    assert settle_delivery(notified(A, B), outcomes, handler="clicks") == DeadLetter(
        reason="too large; no", exception="ValueError: no", traceback="where"
    )


def test_a_replayed_message_carries_its_replay_id() -> None:
    replayed = NotificationDelivery(delivery=delivery("m9", **{"penstock-replay-id": "r7"}), objects=(A,), problems=())
    assert [candidate.original_message.replay_id for candidate in candidates([replayed])] == ["r7"]


def test_an_impossible_replay_id_is_ignored() -> None:
    """MySQL refuses a text of 64 KiB, and with it the claims of all messages in the same statement."""
    forged: list[str | bytes] = ["r" * 70_000, b"r7"]
    for id in forged:
        message = NotificationDelivery(delivery=delivery("m9", **{"penstock-replay-id": id}), objects=(A,), problems=())
        assert [candidate.original_message.replay_id for candidate in candidates([message])] == [None]


def test_a_dead_letter_names_its_handler_and_whether_a_retry_can_help() -> None:
    def ended_as(*outcomes: ObjectOutcome, problems: tuple[str, ...] = ()) -> tuple[bool, str | None]:
        ends = dict(zip((A.object_id, B.object_id), outcomes, strict=True))
        settlement = settle_delivery(notified(A, B, problems=problems), ends, handler="clicks")
        assert isinstance(settlement, DeadLetter)
        return settlement.poison, settlement.handler

    lasting = ObjectDead(reason="no", original_message_id="m1", lasting=True)
    tried = ObjectDead(reason="failed 4 times", original_message_id="m1")
    of_another = ObjectDead(reason="no", original_message_id="other", lasting=True)
    assert (
        ended_as(lasting, ObjectDone())
        == ended_as(lasting, lasting)
        == ended_as(lasting, of_another)
        == (True, "clicks")
    )
    assert ended_as(lasting, tried) == ended_as(tried, of_another) == (False, "clicks")
    assert ended_as(tried, ObjectDone(), problems=("record 3 has no key",)) == (True, "clicks")
    unread = open_delivery(
        delivery(), lambda _: Notification(kind=NotificationKind.RECORDS, problems=("no key",)), handler="c"
    )
    assert isinstance(unread, DeadLetter)
    assert (unread.poison, unread.handler) == (True, "c")


def counted_parse(bodies: list[bytes]) -> Callable[[bytes], Notification]:
    def parse(body: bytes) -> Notification:
        bodies.append(body)
        return Notification(kind=NotificationKind.RECORDS, objects=(A, B))

    return parse


def test_a_notification_is_parsed_once_for_its_weight_and_its_batch() -> None:
    bodies: list[bytes] = []
    parsed = ParsedNotifications(counted_parse(bodies))
    assert parsed.weigh(delivery()) == 3
    again = replace(delivery(), message=replace(delivery().message, body=bodies[0]))
    assert parsed.take(again).objects == (A, B)
    assert len(bodies) == 1
    parsed.take(again)
    assert len(bodies) == 2, "it is kept for one batch only"


def test_a_receipt_with_another_body_is_parsed_again() -> None:
    bodies: list[bytes] = []
    parsed = ParsedNotifications(counted_parse(bodies))
    parsed.weigh(delivery())
    parsed.take(replace(delivery(), message=replace(delivery().message, body=b'{"other": 1}')))
    assert bodies == [b"{}", b'{"other": 1}']


def test_deliveries_that_never_begin_are_forgotten_beyond_a_limit() -> None:
    bodies: list[bytes] = []
    parsed = ParsedNotifications(counted_parse(bodies), kept_max=2)
    deliveries = [delivery(f"m{number}") for number in range(3)]
    for one in deliveries:
        parsed.weigh(one)
    for one in deliveries:
        parsed.take(one)
    assert len(bodies) == 4, "the oldest is parsed again"


def test_no_notification_of_a_large_batch_is_parsed_twice() -> None:
    bodies: list[bytes] = []
    settings = AttemptSettings(
        pipeline="clicks",
        worker="w",
        lease_seconds=60.0,
        objects_max=PARSED_MAX,
        attempts_max=4,
        backoff_base_seconds=1.0,
        backoff_cap_seconds=1.0,
    )
    runtime: Any = SimpleNamespace(parse=counted_parse(bodies))
    handler = PipelineHandler(settings, runtime)
    deliveries = [delivery(f"m{number}") for number in range(PARSED_MAX + 1)]  # a batch, and the first of the next one
    for one in deliveries:
        handler.weigh(one)
    for one in deliveries:
        handler._parsed.take(one)
    assert len(bodies) == len(deliveries)


def test_a_long_notification_is_parsed_twice_and_not_kept() -> None:
    bodies: list[bytes] = []
    parsed = ParsedNotifications(counted_parse(bodies))
    long = replace(delivery(), message=replace(delivery().message, body=b" " * (PARSED_BYTES_MAX + 1)))
    parsed.weigh(long)
    parsed.take(long)
    assert len(bodies) == 2


def test_an_ack_names_the_objects_only_for_a_log_that_shows_them() -> None:
    done = {A.object_id: DONE, B.object_id: DONE}
    named = settle_delivery(notified(A, B), done, handler="clicks")
    unnamed = settle_delivery(notified(A, B), done, handler="clicks", names_objects=False)
    assert isinstance(named, Ack)
    assert isinstance(unnamed, Ack)
    assert named.objects == (A.uri, B.uri)
    assert unnamed.objects is None


def test_a_delivery_with_an_object_that_was_not_processed_is_released() -> None:
    assert settle_delivery(notified(A, B), {A.object_id: DONE}, handler="clicks") == Release(uncounted=True)

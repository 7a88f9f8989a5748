"""Why a queue is slow: each reason from its figures, in both languages."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.web.figures import NOW, held, queue, worker

from penstock.app.flows import QueueFlow
from penstock.operations.queue_groups import GroupSample
from penstock.operations.status.why import QueueFigures, Reason, ReasonKind, reasons_of
from penstock.web.rendering import sentence_text
from penstock.web.texts import texts_in


def flow(
    arrived: float | None, settled: float | None, net: float | None = None, drained: float | None = None
) -> QueueFlow:
    return QueueFlow(in_per_second=arrived, out_per_second=settled, net_per_second=net, drained_in_seconds=drained)


WAITING: Mapping[str, Any] = {"visible": 50, "oldest_visible_message_age_seconds": 900.0}
BUSY = worker(in_flight=4, held=held("orders", 4, seconds=70))


def facts(given: Mapping[str, Any] | None = None, **other: Any) -> QueueFigures:
    values: Mapping[str, Any] = {"records": [worker()], "at": NOW}
    return QueueFigures(queue=queue(**{**WAITING, **(given or {})}), **{**values, **other})


NOTHING_WAITS: Mapping[str, Any] = {"visible": 0, "oldest_visible_message_age_seconds": None}


CASES: Mapping[str, tuple[QueueFigures, ReasonKind, str]] = {
    "paused": (facts({"paused": True}), ReasonKind.PAUSED, "no worker gets a message"),
    "no worker": (facts(records=[]), ReasonKind.NO_WORKER, "No worker serves this queue."),
    "no worker here, none elsewhere": (
        facts(records=[], workers_seen=False),
        ReasonKind.NO_WORKER,
        "no message is in flight",
    ),
    "breaker": (facts({"breaker": "TimeoutError: 5 s"}), ReasonKind.BREAKER, "TimeoutError: 5 s"),
    "ledger": (
        facts({"unserved": "the ledger is unavailable: refused"}),
        ReasonKind.UNSERVED,
        "the ledger is unavailable",
    ),
    "unread": (facts({"unread": "the key k holds 3 entries"}), ReasonKind.UNREAD, "the key k holds 3 entries"),
    "the only one drains": (facts(records=[worker(state="draining")]), ReasonKind.DRAINING, "The only worker"),
    "all drain": (
        facts(records=[worker(state="draining"), worker("v", state="stopping")]),
        ReasonKind.DRAINING,
        "All 2 workers of the queue drain",
    ),
    "some drain": (
        facts(records=[worker(state="draining"), worker("v")]),
        ReasonKind.DRAINING,
        "1 of 2 workers drain",
    ),
    "silent": (facts(records=[worker(beat_at=NOW - 3_000)]), ReasonKind.STUCK, "no heartbeat for 50 min"),
    "blocked": (facts(records=[worker(lag_seconds=30.0)]), ReasonKind.STUCK, "its timers run 30 s late"),
    "hanging": (facts(records=[worker(troubles=("heartbeat hangs",))]), ReasonKind.STUCK, "heartbeat hangs"),
    "holding": (
        facts(records=[worker(held=held("orders", 1, seconds=3_600))]),
        ReasonKind.STUCK,
        "has held a message of this queue for 60 min",
    ),
    "busy": (facts(records=[BUSY]), ReasonKind.BUSY, "All 4 slots of its workers are busy, the longest for 70 s."),
    "busy, not for long": (
        facts(records=[worker(in_flight=4, held=held("orders", 4, seconds=2))]),
        ReasonKind.BUSY,
        "All 4 slots of its workers are busy, the longest for 2 s.",
    ),
    "the only slot of the handler": (
        facts(records=[worker(in_flight=1, held=held("orders", 1, seconds=5))], concurrency=1),
        ReasonKind.BUSY,
        "The only slot of the handler is busy, for 5 s: its concurrency is 1.",
    ),
    "all slots of the handler": (
        facts(
            records=[worker(held=held("orders", 2, seconds=300)), worker("v", held=held("orders", 2))], concurrency=2
        ),
        ReasonKind.BUSY,
        "All 4 slots of the handler are busy, the longest for 5 min: its concurrency is 2.",
    ),
    "one slot of the handler is free": (
        facts(records=[worker(held=held("orders", 2)), worker("v", held=held("orders", 1))], concurrency=2),
        ReasonKind.BACKLOG,
        "the figures do not show why",
    ),
    "a silent worker is not busy": (
        facts(records=[worker(held=held("orders", 2, seconds=120), beat_at=NOW - 120)], concurrency=2),
        ReasonKind.STUCK,
        "no heartbeat for 2 min",
    ),
    "busy with others": (
        facts(records=[worker(in_flight=4, held=(*held("mails", 3), *held("orders", 1)))]),
        ReasonKind.BUSY,
        "most of them with messages of mails",
    ),
    "growing": (facts(flow=flow(12.0, 2.5)), ReasonKind.GROWING, "12 messages arrive per second, and 2.5 are settled"),
    "growing, workers unseen": (
        facts({"in_flight": 2}, records=[worker()], workers_seen=False, flow=flow(None, None, 3.0)),
        ReasonKind.GROWING,
        "grows by 3.0 messages per second",
    ),
    "catching up": (facts(flow=flow(1.0, 9.0, -8.0, 7_200.0)), ReasonKind.BACKLOG, "the queue is empty in 2 h"),
    "one group": (
        facts(groups=GroupSample(messages=200, group="tenant-7", in_group=190)),
        ReasonKind.FLOOD,
        "The group tenant-7 has 95% of the 200 messages",
    ),
    "failing": (facts({"dead_letters": 15}, dead_letters_before=3.0), ReasonKind.FAILING, "12 messages became dead"),
    "one failed": (facts({"dead_letters": 4}, dead_letters_before=3.0), ReasonKind.FAILING, "1 message became a dead"),
    "one delayed": (facts({"visible": 0, "delayed": 1}), ReasonKind.DELAYED, "1 message is delayed"),
    "delayed": (facts({"visible": 0, "delayed": 4}), ReasonKind.DELAYED, "4 messages are delayed"),
    "not explained": (facts(), ReasonKind.BACKLOG, "the figures do not show why"),
    "quick": (facts({"oldest_visible_message_age_seconds": 2.0}), ReasonKind.NONE, "Nothing delays it"),
    "one in flight": (
        facts({**NOTHING_WAITS, "in_flight": 1}, records=[worker(held=held("orders", 1, seconds=240))]),
        ReasonKind.NONE,
        "1 is in flight, for 4 min",
    ),
    "in flight": (
        facts({**NOTHING_WAITS, "in_flight": 2}, records=[worker(held=held("orders", 2, seconds=240))]),
        ReasonKind.NONE,
        "2 are in flight, the longest for 4 min",
    ),
    "empty": (facts({"visible": 0, "oldest_visible_message_age_seconds": None}), ReasonKind.NONE, "No message waits."),
}


@pytest.mark.parametrize("name", CASES)
def test_each_reason_follows_from_its_figures(name: str) -> None:
    given, kind, text = CASES[name]
    (reason,) = reasons_of(given)
    assert reason.kind is kind
    assert text in reason.sentence.text


@pytest.mark.parametrize("name", CASES)
def test_each_sentence_has_its_japanese(name: str) -> None:
    for reason in reasons_of(CASES[name][0]):
        for one in (reason.sentence, reason.advice):
            if one is not None:
                assert one.form in texts_in("ja").translations
                assert "{" not in sentence_text(texts_in("ja"), one)
                assert sentence_text(texts_in("en"), one).unescape() == one.text


def kinds(reasons: Any) -> list[ReasonKind]:
    return [reason.kind for reason in reasons]


def test_several_reasons_come_with_the_strongest_first() -> None:
    found = reasons_of(
        facts(
            {"paused": True, "breaker": "E", "dead_letters": 9},
            records=[BUSY],
            flow=flow(5.0, 1.0),
            dead_letters_before=1.0,
            groups=GroupSample(messages=100, group="g", in_group=100),
        )
    )
    assert kinds(found) == [
        ReasonKind.PAUSED,
        ReasonKind.BREAKER,
        ReasonKind.BUSY,
        ReasonKind.GROWING,
        ReasonKind.FLOOD,
        ReasonKind.FAILING,
    ]
    assert [reason.level for reason in found] == ["bad", "bad", "warn", "warn", "warn", "warn"]


@pytest.mark.parametrize(
    "given",
    [
        facts(records=[worker(in_flight=3, held=held("orders", 3))]),  # a slot is free
        facts(records=[BUSY, worker("v")]),  # another worker has free slots
        facts(records=[worker(concurrency=None, in_flight=9)]),  # an older version does not report its slots
        facts({"visible": 0, "oldest_visible_message_age_seconds": None}, records=[BUSY]),  # nothing waits
    ],
)
def test_slots_that_are_free_or_unknown_are_no_reason(given: QueueFigures) -> None:
    assert ReasonKind.BUSY not in kinds(reasons_of(given))


@pytest.mark.parametrize(
    "groups",
    [
        None,
        GroupSample(messages=19, group="g", in_group=19),
        GroupSample(messages=100, group="g", in_group=79),
        GroupSample(messages=100),
    ],
)
def test_few_messages_or_mixed_ones_are_no_flood(groups: GroupSample | None) -> None:
    assert ReasonKind.FLOOD not in kinds(reasons_of(facts(groups=groups)))


def test_messages_of_another_queue_that_a_worker_holds_do_not_blame_this_one() -> None:
    assert ReasonKind.STUCK not in kinds(reasons_of(facts(records=[worker(held=held("mails", 1, seconds=9_000))])))


def test_a_message_within_the_timeout_of_its_handler_is_not_held_too_long() -> None:
    given = facts(records=[worker(held=held("orders", 1, seconds=3_600))], timeouts={"orders": 7_200.0})
    assert ReasonKind.STUCK not in kinds(reasons_of(given))


def test_workers_of_other_hosts_are_not_missed_while_messages_are_in_flight() -> None:
    given = facts({"in_flight": 2}, records=[], workers_seen=False)
    assert ReasonKind.NO_WORKER not in kinds(reasons_of(given))


def test_equal_rates_are_no_growth() -> None:
    assert ReasonKind.GROWING not in kinds(reasons_of(facts(flow=flow(10.0, 9.8))))


def test_fewer_dead_letters_than_an_hour_ago_are_no_reason() -> None:
    assert ReasonKind.FAILING not in kinds(reasons_of(facts({"dead_letters": 2}, dead_letters_before=5.0)))


def test_a_reason_about_a_worker_names_it() -> None:
    found: list[Reason] = list(reasons_of(facts(records=[worker("stuck-1", beat_at=NOW - 100)])))
    assert found[0].worker == "stuck-1"


def test_a_call_that_takes_minutes_may_hang_and_its_worker_is_named() -> None:
    (reason,) = reasons_of(CASES["all slots of the handler"][0])
    assert reason.worker == worker().worker
    assert reason.advice is not None
    assert "it hangs" in reason.advice.text
    (reason,) = reasons_of(CASES["busy, not for long"][0])
    assert reason.worker is None
    assert reason.advice is not None
    assert "raise worker.concurrency" in reason.advice.text

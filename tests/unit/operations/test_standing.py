"""What `status` makes of messages that no worker of this host works on."""

from dataclasses import fields, replace
from typing import Any

import pytest

from penstock.app.backends import has_workers_elsewhere
from penstock.app.queues import QueueStatus
from penstock.config import Settings
from penstock.ledger.records import ObjectState
from penstock.operations.status.standing import PipelineStatus, Status
from penstock.operations.status.status import late_queues

NOBODY_HERE = Status(
    table=None,
    table_version=None,
    objects=dict.fromkeys(ObjectState, 0),
    batches_committed=1,
    batches_unpublished=0,
    messages_visible=2,
    messages_in_flight=3,
    messages_delayed=5,
    oldest_visible_message_age_seconds=1.0,
    dead_letters=0,
    workers=(),
)


def test_on_a_broker_of_this_host_messages_without_a_worker_are_a_trouble() -> None:
    assert NOBODY_HERE.troubles == ["messages waiting with no worker running: 10"]


def test_on_a_broker_that_hosts_share_a_worker_may_be_elsewhere() -> None:
    shared = replace(NOBODY_HERE, workers_elsewhere=True)
    assert shared.troubles == []
    assert shared.verdict == "messages waiting or in work: 10; workers of other hosts cannot be seen from here"
    assert replace(shared, workers=("here",)).verdict == "all well"
    assert replace(shared, messages_visible=0, messages_in_flight=0, messages_delayed=0).verdict == "all well"
    waiting = "messages waiting or in work: 10; workers of other hosts cannot be seen from here"
    assert replace(shared, dead_letters=1).verdict == f"dead letters: 1; {waiting}"
    assert replace(shared, dead_letters=1, messages_visible=0, messages_in_flight=0, messages_delayed=0).verdict == (
        "dead letters: 1"
    )


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [("redis://h", True), ("unix:///s", True), ("sqs://", True), ("sqlite:///f", False), ("memory://", False)],
)
def test_which_brokers_hosts_share(address: str, elsewhere: bool) -> None:
    assert has_workers_elsewhere(Settings(broker=address)) is elsewhere
    assert not has_workers_elsewhere(Settings(broker=address, one_host=True)), "the user says so"


# The words of the verdict

WELL = replace(NOBODY_HERE, messages_visible=0, messages_in_flight=0, messages_delayed=0, workers=("w1",))


def queue(name: str = "orders", *, age_seconds: float | None = 1.0, **given: Any) -> QueueStatus:
    numbers: dict[str, Any] = {
        "visible": 1,
        "in_flight": 0,
        "delayed": 0,
        "oldest_message_age_seconds": age_seconds,
        "dead_letters": 0,
        "dead_letters_set_aside": 0,
        "paused": False,
        "breaker": None,
        "unserved": None,
        "workers": (),
    }
    known = {field.name for field in fields(QueueStatus)}
    sources = {"oldest_visible_message_age_source": "exact", "oldest_message_age_source": "exact"}
    return QueueStatus(
        queue=name,
        oldest_visible_message_age_seconds=age_seconds,
        **{name: value for name, value in {**sources, **numbers, **given}.items() if name in known},
    )


def late(*queues: QueueStatus, seen_all: bool = True, **settings: Any) -> Status:
    return replace(WELL, late=late_queues(queues, Settings(**settings), seen_all=seen_all))


def test_a_queue_is_late_when_its_oldest_visible_message_is_older_than_the_settings_let_it() -> None:
    assert late(queue(age_seconds=300.0)).verdict == "all well"
    assert late(queue(age_seconds=None)).verdict == "all well"
    found = late(queue(age_seconds=410.0))
    assert found.verdict == "late: the oldest visible message of orders is 7 min old, 110 s more than it may be"
    assert (found.words, found.troubles) == (["late"], [found.verdict.removeprefix("late: ")])


def test_each_queue_may_have_a_time_of_its_own() -> None:
    settings: dict[str, Any] = {"late_after_seconds": 50.0, "late_queues": {"slow": 4_000.0}}
    found = late(queue("slow", age_seconds=3_000.0), queue("mails", age_seconds=60.0), **settings)
    assert [(one.queue, one.after_seconds) for one in found.late] == [("mails", 50.0)]


@pytest.mark.parametrize(
    ("given", "word"),
    [({}, "unconsumed"), ({"in_flight": 1}, "late"), ({"workers": ("w1",)}, "late")],
)
def test_where_workers_may_be_elsewhere_a_late_queue_with_nothing_in_flight_is_unconsumed(
    given: dict[str, Any], word: str
) -> None:
    assert late(queue(age_seconds=900.0, **given), seen_all=False).words == [word]
    assert late(queue(age_seconds=900.0, **given), seen_all=True).words == ["late"]
    told = late(queue(age_seconds=900.0), seen_all=False).verdict
    assert told.endswith("10 min more than it may be, and nobody seems to receive from it")


def test_what_a_replay_brings_back_is_a_warning_and_no_trouble() -> None:
    waiting = replace(WELL, dead_letters=3, dead_letters_replayed=3)
    assert (waiting.verdict, waiting.troubles) == ("all well; dead letters that wait for their replay: 3", [])
    aside = replace(waiting, dead_letters=5, dead_letters_set_aside=2)
    assert aside.troubles == ["dead letters: 2, 2 of them set aside for people"]
    assert replace(waiting, dead_letters_replaced=2).troubles == [], "those that wait and were replaced count once"


def test_overdue_objects_are_lost_to_those_who_wait_for_them() -> None:
    pipeline = PipelineStatus(
        pipeline="clicks",
        objects=WELL.objects,
        objects_replaced=0,
        batches_committed=1,
        batches_unpublished=0,
        table=None,
        table_version=None,
        disagreement=None,
        objects_overdue=2,
        oldest_unprocessed_age_seconds=9_000.0,
    )
    assert replace(WELL, pipelines=[pipeline]).verdict == "lost: objects overdue: 2, the oldest for 2 h"


def test_all_words_the_worst_first() -> None:
    everything = replace(
        late(queue(age_seconds=900.0)),
        disagreements=["two histories"],
        messages_unserved=4,
        dead_letters=1,
        objects={**WELL.objects, ObjectState.DEAD: 1},
    )
    assert everything.words == ["lost", "unconsumed", "dead", "late"]
    assert everything.verdict == (
        "lost: table and ledger disagree: two histories; unconsumed: messages in queues that no worker serves: 4; dead "
        "objects: 1; dead letters: 1; late: the oldest visible message of orders is 15 min old, 10 min more than it "
        "may be"
    )
    assert [trouble.text for trouble in everything.findings] == everything.troubles

"""The status model: queues without workers, lagging queues, dead letters and overdue objects."""

from dataclasses import fields, replace
from typing import Any

import pytest

from penstock.app.brokers import has_workers_elsewhere
from penstock.app.queues import QueueStatus
from penstock.config import Settings
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import PipelineStatus, Status
from penstock.operations.status.status import lagging_queues

WITHOUT_WORKERS = Status(
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


def test_on_a_broker_of_one_host_messages_without_a_worker_are_a_problem() -> None:
    assert WITHOUT_WORKERS.problem_texts == ["10 messages wait, and no worker runs"]


def test_on_a_shared_broker_messages_without_a_local_worker_are_no_problem() -> None:
    shared = replace(WITHOUT_WORKERS, workers_elsewhere=True)
    assert shared.problem_texts == []
    assert shared.summary == "messages waiting or in flight: 10; workers of other hosts are invisible"
    assert replace(shared, workers=("here",)).summary == "all well"
    assert replace(shared, messages_visible=0, messages_in_flight=0, messages_delayed=0).summary == "all well"
    waiting = "messages waiting or in flight: 10; workers of other hosts are invisible"
    assert replace(shared, dead_letters=1).summary == f"dead letters: 1; {waiting}"
    assert replace(shared, dead_letters=1, messages_visible=0, messages_in_flight=0, messages_delayed=0).summary == (
        "dead letters: 1"
    )


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [("redis://h", True), ("unix:///s", True), ("sqs://", True), ("sqlite:///f", False), ("memory://", False)],
)
def test_only_shared_brokers_may_have_workers_elsewhere(address: str, elsewhere: bool) -> None:
    assert has_workers_elsewhere(Settings(broker=address)) is elsewhere
    assert not has_workers_elsewhere(Settings(broker=address, one_host=True)), "the user declares a single host"


# Problems and their texts

HEALTHY = replace(WITHOUT_WORKERS, messages_visible=0, messages_in_flight=0, messages_delayed=0, workers=("w1",))


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


def lagging_status(*queues: QueueStatus, seen_all: bool = True, **settings: Any) -> Status:
    return replace(HEALTHY, lagging=lagging_queues(queues, Settings(**settings), seen_all=seen_all))


def test_a_queue_lags_if_its_oldest_visible_message_is_older_than_the_limit() -> None:
    assert lagging_status(queue(age_seconds=300.0)).summary == "all well"
    assert lagging_status(queue(age_seconds=None)).summary == "all well"
    found = lagging_status(queue(age_seconds=410.0))
    assert found.summary == "lagging: the oldest visible message of orders is 7 min old, 110 s over the limit"
    assert (found.problem_kinds, found.problem_texts) == (["lagging"], [found.summary.removeprefix("lagging: ")])


def test_each_queue_may_have_its_own_limit() -> None:
    settings: dict[str, Any] = {"alerts_lagging_after": 50.0, "alerts_lagging_queues": {"slow": 4_000.0}}
    found = lagging_status(queue("slow", age_seconds=3_000.0), queue("mails", age_seconds=60.0), **settings)
    assert [(one.queue, one.after_seconds) for one in found.lagging] == [("mails", 50.0)]


@pytest.mark.parametrize(
    ("given", "kind"),
    [({}, "no consumer"), ({"in_flight": 1}, "lagging"), ({"workers": ("w1",)}, "lagging")],
)
def test_with_workers_elsewhere_a_lagging_queue_with_nothing_in_flight_has_no_consumer(
    given: dict[str, Any], kind: str
) -> None:
    assert lagging_status(queue(age_seconds=900.0, **given), seen_all=False).problem_kinds == [kind]
    assert lagging_status(queue(age_seconds=900.0, **given), seen_all=True).problem_kinds == ["lagging"]
    summary = lagging_status(queue(age_seconds=900.0), seen_all=False).summary
    assert summary.endswith("10 min over the limit, and no worker seems to receive from it")


def test_dead_letters_waiting_for_a_replay_are_no_problem() -> None:
    waiting = replace(HEALTHY, dead_letters=3, dead_letters_replayed=3)
    assert (waiting.summary, waiting.problem_texts) == ("all well; dead letters that wait for their replay: 3", [])
    set_aside = replace(waiting, dead_letters=5, dead_letters_set_aside=2)
    assert set_aside.problem_texts == ["dead letters: 2, 2 of them in final DLQs"]
    assert replace(waiting, dead_letters_replaced=2).problem_texts == [], (
        "dead letters that wait and were replaced count once"
    )


CLICKS = PipelineStatus(
    pipeline="clicks",
    objects=HEALTHY.objects,
    objects_replaced=0,
    batches_committed=1,
    reconciled=None,
    batches_unpublished=0,
    table=None,
    table_version=None,
    disagreement=None,
    objects_overdue=0,
    oldest_unprocessed_age_seconds=None,
)


def test_overdue_objects_are_reported_as_missing() -> None:
    pipeline = replace(CLICKS, objects_overdue=2, oldest_unprocessed_age_seconds=9_000.0)
    assert replace(HEALTHY, pipelines=[pipeline]).summary == "missing: objects overdue: 2, the oldest for 2 h"


def test_objects_with_too_many_bad_lines_are_a_problem() -> None:
    pipeline = replace(CLICKS, warned_objects=2, warned_lines=1_200)
    found = replace(HEALTHY, pipelines=[pipeline, replace(CLICKS, pipeline="views", warned_objects=1, warned_lines=1)])
    assert found.summary == (
        "bad lines: 1,201 in 3 objects, over 5% of their lines; `penstock quarantine list` shows them"
    )
    assert found.problem_kinds == ["bad lines"]
    assert replace(found, pipelines=[CLICKS]).summary == "all well"


@pytest.mark.parametrize(
    ("queues", "named"),
    [
        ({"clicks": "clicks-files"}, " in clicks-files"),
        ({"clicks": "clicks-files", "views": "views-files"}, " in clicks-files and views-files"),
        ({"clicks": None, "views": "views-files"}, " in orders"),  # one is unknown: those with messages
    ],
)
def test_the_queues_of_objects_without_a_worker_are_named(queues: dict[str, str | None], named: str) -> None:
    left = {**HEALTHY.objects, ObjectState.UNPROCESSED: 1}
    pipelines = [replace(CLICKS, pipeline=name, queue=own, objects=left) for name, own in queues.items()]
    done = replace(CLICKS, pipeline="done", queue="done-files")
    total = {**HEALTHY.objects, ObjectState.UNPROCESSED: len(pipelines)}
    deserted = replace(
        HEALTHY,
        workers=(),
        objects=total,
        pipelines=[*pipelines, done],
        queues=[queue("orders"), queue("empty", visible=0)],
    )
    assert deserted.problem_texts == [f"objects waiting with no worker running: {len(pipelines)}{named}"]


def test_problems_are_sorted_with_the_worst_first() -> None:
    everything = replace(
        lagging_status(queue(age_seconds=900.0)),
        disagreements=["two histories"],
        messages_unserved=4,
        queues_unserved=["mails"],
        dead_letters=1,
        objects={**HEALTHY.objects, ObjectState.DEAD: 1},
    )
    assert everything.problem_kinds == ["missing", "no consumer", "failed", "lagging"]
    assert everything.summary == (
        "missing: table and ledger disagree: two histories; no consumer: 4 messages wait in mails, which no worker "
        "consumes; failed objects: 1; dead letters: 1; lagging: the oldest visible message of orders is 15 min old, "
        "10 min over the limit"
    )
    assert [problem.text for problem in everything.problems] == everything.problem_texts
    assert list(replace(everything, dead_letters_replayed=1, notes=["a note"]).lines) == [
        "missing: table and ledger disagree: two histories",
        "no consumer: 4 messages wait in mails, which no worker consumes",
        "failed objects: 1",
        "lagging: the oldest visible message of orders is 15 min old, 10 min over the limit",
        "dead letters that wait for their replay: 1",
        "a note",
    ]


def test_a_single_problem_stays_on_one_line_with_the_notes() -> None:
    assert replace(HEALTHY, dead_letters=1, notes=["a note"]).lines == ["dead letters: 1; a note"]


@pytest.mark.parametrize(
    ("names", "waiting"),
    [
        (["a"], "1 message waits in a"),
        (["a", "b"], "2 messages wait in a and b"),
        (["a", "b", "c"], "3 messages wait in a, b and c"),
        (["a", "b", "c", "d"], "4 messages wait in a, b and 2 more queues"),
        (["a", "b", "c", "d", "e", "f", "g"], "7 messages wait in a, b and 5 more queues"),
    ],
)
def test_queues_without_a_consumer_are_named(names: list[str], waiting: str) -> None:
    queues = [queue(name) for name in names] + [queue("empty", visible=0)]
    deserted = replace(
        WITHOUT_WORKERS, queues=queues, messages_visible=len(names), messages_in_flight=0, messages_delayed=0
    )
    assert deserted.problem_texts == [f"{waiting}, and no worker runs"]
    unserved = replace(HEALTHY, messages_unserved=len(names), queues_unserved=names)
    assert unserved.problem_texts == [f"{waiting}, which no worker consumes"]

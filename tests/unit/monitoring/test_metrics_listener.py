"""The value of every metric after events, in the text that Prometheus reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.monitoring.event_strategies import event_types, events_of
from tests.unit.monitoring.scraping import scraped

from penstock import events
from penstock.events import Bus, Event
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.monitoring.metrics.catalogue import METRICS
from penstock.monitoring.metrics.listener import COUNTED_BY_QUEUE, REMEMBERED_MAX, MetricsListener
from penstock.monitoring.metrics.meters import Meters
from penstock.testing import FakeClock

WORK: Mapping[str, Any] = {"queue": "q", "handler": "h", "message_id": "m", "attempt": 1}
RUN: Mapping[str, Any] = {"pipeline": "clicks", "attempt_id": "a1"}
OBJECT: Mapping[str, Any] = {"pipeline": "photos", "object_uri": "s3://b/k", "attempt_id": "a2"}
REPLAYED: Sequence[tuple[str | None, Literal["sent", "waiting", "set_aside"]]] = (
    *(("q", "sent"), ("q", "sent"), ("q", "waiting")),
    (None, "set_aside"),
)
QUEUES = {"clicks": "clicks-queue", "photos": "photos-queue"}


def settled(*settlements: Settlement) -> Event:
    return events.SettlementsApplied(
        queue="q", message_ids=tuple(f"m{at}" for at in range(len(settlements))), settlements=settlements
    )


def refused(*, lost: bool, message_id: str = "m", attempt: int = 1) -> Event:
    return events.SettlementFailed(
        queue="q", message_id=message_id, attempt=attempt, operation="ack", reason="why", lost=lost
    )


def lost(*, attempt: int = 1) -> Event:
    return events.LeaseLost(queue="q", message_id="m", attempt=attempt)


def failed(*, final: bool) -> Event:
    return events.MessageFailed(
        **WORK,
        enqueued_at=0.0,
        duration_seconds=3.0,
        error_type="ValueError",
        error="no",
        traceback=None,
        exception=None,
        final=final,
        delay_seconds=None,
    )


def claimed() -> Event:
    return events.BatchClaimed(**RUN, objects=2, bytes=7, seconds=0.02)


def started() -> Event:
    return events.ObjectStarted(**OBJECT, attempt=1)


def object_failed(outcome: str) -> Event:
    return events.ObjectFailed(**OBJECT, outcome=outcome, reason="no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    emitted: Sequence[Event | float]  # a number is a pause in seconds
    counted: Mapping[str, float]  # all expected samples, without the buckets of histograms


def duration(outcome: str, seconds: float, *, queue: str = "q", handler: str = "h", count: int = 1) -> dict[str, float]:
    labels = f"{{handler={handler},outcome={outcome},queue={queue}}}"
    return {f"handler_duration_seconds_count{labels}": count, f"handler_duration_seconds_sum{labels}": seconds}


def stage(name: str, seconds: float) -> dict[str, float]:
    labels = f"{{pipeline=clicks,stage={name}}}"
    return {f"batch_duration_seconds_count{labels}": 1, f"batch_duration_seconds_sum{labels}": seconds}


CASES = {
    "received": Case(
        emitted=[events.MessagesReceived(queue="q", message_ids=("a", "b", "c"), redelivered=2, expired=1)],
        counted={
            "messages_received_total{queue=q}": 3,
            "messages_redelivered_total{queue=q}": 2,
            "expired_leases_total{queue=q}": 1,
        },
    ),
    "settled": Case(
        emitted=[
            settled(Ack(), Release(uncounted=True), Ack()),
            settled(Release()),
            settled(DeadLetter(reason="rejected")),
        ],
        counted={
            "messages_settled_total{outcome=acked,queue=q}": 2,
            "messages_settled_total{outcome=released,queue=q}": 1,
            "messages_settled_total{outcome=retried,queue=q}": 1,
            "messages_settled_total{outcome=dead_lettered,queue=q}": 1,
        },
    ),
    "not settled": Case(
        emitted=[refused(lost=False), refused(lost=True)],
        counted={
            "settlement_failures_total{operation=ack,queue=q}": 2,
            "messages_settled_total{outcome=lease_lost,queue=q}": 1,
        },
    ),
    "a lease found lost by a heartbeat, whose settlement is then refused": Case(
        emitted=[lost(), refused(lost=True), refused(lost=True, message_id="other")],
        counted={
            "settlement_failures_total{operation=ack,queue=q}": 2,
            "messages_settled_total{outcome=lease_lost,queue=q}": 2,
        },
    ),
    "a settlement refused before the heartbeat reports the lost lease": Case(
        emitted=[refused(lost=True), lost()],
        counted={
            "settlement_failures_total{operation=ack,queue=q}": 1,
            "messages_settled_total{outcome=lease_lost,queue=q}": 1,
        },
    ),
    "a message whose next lease is also lost before the first execution ends": Case(
        emitted=[lost(), lost(attempt=2), refused(lost=True, attempt=2), refused(lost=True)],
        counted={
            "settlement_failures_total{operation=ack,queue=q}": 2,
            "messages_settled_total{outcome=lease_lost,queue=q}": 2,
        },
    ),
    "heartbeats": Case(
        emitted=[
            events.LeasesExtended(queue="q", message_ids=("a", "b")),
            events.HeartbeatFailed(queue="q", error="unavailable"),
            events.HeartbeatFailed(queue="q", error="unavailable", last=True),
        ],
        counted={f"heartbeats_total{{queue=q,result={result}}}": 1 for result in ("ok", "retried", "failed")},
    ),
    "handled": Case(
        emitted=[
            events.MessageFinished(**WORK, enqueued_at=0.0, duration_seconds=2.0),
            events.MessageFinished(**WORK, enqueued_at=0.0, duration_seconds=0.5),
            failed(final=False),
            failed(final=True),
            events.MessageInterrupted(**WORK, duration_seconds=4.0),
        ],
        counted={
            **duration("finished", 2.5, count=2),
            **duration("retried", 3.0),
            **duration("failed", 3.0),
            **duration("interrupted", 4.0),
        },
    ),
    "started": Case(
        emitted=[
            events.WorkerStarted(queues=("q",), concurrency=1),
            events.MessagesReceived(queue="q", message_ids=("a",), redelivered=0),
        ],
        counted={
            "messages_received_total{queue=q}": 1,
            "messages_redelivered_total{queue=q}": 0,
            "expired_leases_total{queue=q}": 0,
            **{f"heartbeats_total{{queue=q,result={value}}}": 0 for value in ("ok", "retried", "failed")},
            **{
                f"settlement_failures_total{{operation={value},queue=q}}": 0
                for value in ("ack", "release", "dead_letter")
            },
            **{
                f"messages_settled_total{{outcome={value},queue=q}}": 0
                for value in ("acked", "released", "retried", "dead_lettered", "lease_lost")
            },
            **{f"shutdowns_total{{outcome={value}}}": 0 for value in ("drained", "interrupted", "forced")},
        },
    ),
    "stopped": Case(
        emitted=[
            events.WorkerStopped(outcome=outcome, released=()) for outcome in ("drained", "interrupted", "forced")
        ],
        counted={f"shutdowns_total{{outcome={outcome}}}": 1 for outcome in ("drained", "interrupted", "forced")},
    ),
    "replayed": Case(
        emitted=[
            events.DeadLetterReplayed(
                queue=queue,
                dead_letter_queue="q-dlq",
                message_id="m",
                replay_id="r",
                count=1,
                due_at=None,
                new_message_id=None,
                result=result,
            )
            for queue, result in REPLAYED
        ],
        counted={
            "replays_total{queue=q,result=sent}": 2,
            "replays_total{queue=q,result=waiting}": 1,
            "replays_total{queue=,result=set_aside}": 1,
        },
    ),
    "a batch": Case(
        emitted=[
            claimed(),
            events.ObjectStarted(**{**OBJECT, **RUN}, attempt=1),
            events.BatchWritten(**RUN, rows=10, lines_quarantined=3, seconds=60.0),
            events.BatchCommitted(
                **RUN,
                seq=1,
                objects=2,
                rows=10,
                lines_quarantined=3,
                bytes=700,
                seconds=0.5,
                replaced_objects=1,
                replaced_rows=4,
                grown_objects=1,
                appended_rows=3,
            ),
            events.ObjectFinished(**{**OBJECT, **RUN}, rows=10, lines_quarantined=3),
            events.LinesQuarantined(
                pipeline="clicks", object_uri="s3://b/k", count=3, reasons={"malformed": 2, "invalid UTF-8": 1}
            ),
            events.UnknownFieldsFound(pipeline="clicks", object_uri="s3://b/k", fields={"x": 2, "y": 1}, others=4),
            events.WrongTypesRescued(pipeline="clicks", object_uri="s3://b/k", fields={"amount": 9}, others=1),
            events.BatchPublished(
                pipeline="clicks",
                sink="rows",
                seq=1,
                table_version=1,
                seconds=1.5,
                merged={"inserted": 2, "updated": 5},
            ),
        ],
        counted={
            **stage("claim", 0.02),
            **stage("run", 60.0),
            **stage("commit", 0.5),
            **stage("publish", 1.5),
            **duration("finished", 60.0, queue="clicks-queue", handler="clicks"),
            "batch_rows_total{pipeline=clicks}": 10,
            "unknown_field_values_total{pipeline=clicks}": 7,
            "wrong_type_values_total{pipeline=clicks}": 10,
            "batch_bytes_total{pipeline=clicks}": 700,
            "replaced_objects_total{pipeline=clicks}": 1,
            "replaced_rows_total{pipeline=clicks}": 4,
            "grown_objects_total{pipeline=clicks}": 1,
            "appended_rows_total{pipeline=clicks}": 3,
            "merged_rows_total{effect=inserted,pipeline=clicks}": 2,
            "merged_rows_total{effect=updated,pipeline=clicks}": 5,
            "quarantined_lines_total{pipeline=clicks,reason=malformed}": 2,
            "quarantined_lines_total{pipeline=clicks,reason=invalid UTF-8}": 1,
        },
    ),
    "commits of another writer": Case(
        emitted=[
            *(
                events.ForeignCommit(pipeline="clicks", sink="rows", version=version, operation="WRITE", engine="Spark")
                for version in (3, 4)
            ),
            events.CommitOverwritten(
                pipeline="clicks",
                sink="rows",
                version=4,
                operation="WRITE",
                engine="Spark",
                first_seq=3,
                last_seq=3,
                files=1,
                table_version=6,
            ),
        ],
        counted={
            "table_foreign_commits_total{pipeline=clicks}": 2,
            "table_commits_overwritten_total{pipeline=clicks}": 1,
        },
    ),
    "a run that failed and was then abandoned": Case(
        emitted=[
            *(claimed(), 5.0, events.RunFailed(**RUN, objects=2, error="no")),
            events.AttemptAbandoned(**RUN, reason="no"),
        ],
        counted={**stage("claim", 0.02), **duration("retried", 5.0, queue="clicks-queue", handler="clicks")},
    ),
    "a released run": Case(
        emitted=[claimed(), 5.0, events.AttemptAbandoned(**RUN, reason="a stop")],
        counted={**stage("claim", 0.02), **duration("interrupted", 5.0, queue="clicks-queue", handler="clicks")},
    ),
    "a run that timed out or lost its claim, visible only in the events of its objects": Case(
        emitted=[
            *(claimed(), 5.0),
            *(
                events.ObjectFailed(**RUN, object_uri=uri, outcome="retry", reason="timed out after 5 s")
                for uri in ("s3://b/1", "s3://b/2")
            ),
        ],
        counted={**stage("claim", 0.02), **duration("retried", 5.0, queue="clicks-queue", handler="clicks")},
    ),
    "an abandoned attempt of another worker": Case(
        emitted=[events.AttemptAbandoned(**RUN, reason="its lease ran out")], counted={}
    ),
    "an object handler": Case(
        emitted=[started(), 2.0, events.ObjectFinished(**OBJECT, rows=0, lines_quarantined=0)],
        counted=duration("finished", 2.0, queue="photos-queue", handler="photos"),
    ),
    "a failed object handler": Case(
        emitted=[started(), 1.0, object_failed("retry"), started(), 2.0, object_failed("dead")],
        counted={
            **duration("retried", 1.0, queue="photos-queue", handler="photos"),
            **duration("failed", 2.0, queue="photos-queue", handler="photos"),
        },
    ),
    "an object handler whose object was deleted": Case(emitted=[started(), 1.0, object_failed("gone")], counted={}),
    "a released object handler": Case(
        emitted=[started(), 1.0, events.ObjectInterrupted(**OBJECT, reason="a stop")],
        counted=duration("interrupted", 1.0, queue="photos-queue", handler="photos"),
    ),
}

SET_DIRECTLY = {  # without an event
    *("queue_messages", "queue_oldest_message_age_seconds", "queue_oldest_visible_message_age_seconds"),
    *("dead_letters", "dead_letter_oldest_age_seconds"),
    *("worker_in_flight_messages", "worker_slots", "worker_last_poll_timestamp_seconds", "loop_lag_seconds"),
    *("objects", "objects_overdue", "objects_missing", "objects_warned"),
    *("object_oldest_unprocessed_age_seconds", "commit_to_publish_lag_seconds"),
    *("monitor_up", "monitor_poll_failures_total"),
}


def counted(case: Case) -> dict[str, float]:
    meters, clock = Meters(), FakeClock()
    bus = Bus(MetricsListener(meters, queues=QUEUES, clock=clock))
    for emitted in case.emitted:
        if isinstance(emitted, float):
            clock.advance(emitted)
        else:
            bus.emit(emitted)
    return {name: value for name, value in scraped(meters).items() if "_bucket{" not in name}


@pytest.mark.parametrize("name", CASES)
def test_events_change_exactly_the_expected_metrics(name: str) -> None:
    assert counted(CASES[name]) == pytest.approx(dict(CASES[name].counted))


def test_every_metric_counted_from_events_has_a_case() -> None:
    stems = {name.split("{")[0] for case in CASES.values() for name in case.counted}
    counted_from_events = {stem.removesuffix("_count").removesuffix("_sum") for stem in stems}
    assert counted_from_events == METRICS.keys() - SET_DIRECTLY


NOT_AT_START = {"replays_total"}  # counted by replayers, which start without the worker's event


def test_every_counter_of_a_queue_that_events_change_starts_at_zero() -> None:
    by_queue = {metric.name for metric in METRICS.values() if metric.kind == "counter" and "queue" in metric.labels}
    assert by_queue - SET_DIRECTLY - NOT_AT_START == COUNTED_BY_QUEUE


@pytest.mark.parametrize("name", sorted(SET_DIRECTLY))
def test_a_metric_set_directly_is_scraped(name: str) -> None:
    metric, meters = METRICS[name], Meters()
    labels = tuple(metric.values[label][0] if label in metric.values else "x" for label in metric.labels)
    label_text = ",".join(f"{label}={value}" for label, value in sorted(zip(metric.labels, labels, strict=True)))
    match metric.kind:
        case "gauge":
            meters.replace(name, {labels: 7.5})
            expected = {f"{name}{{{label_text}}}": 7.5}
        case "counter":
            meters.count(name, labels, 7.0)
            expected = {f"{name}{{{label_text}}}": 7.0}
        case "histogram":
            meters.observe(name, labels, 7.5)
            expected = {f"{name}_count{{{label_text}}}": 1.0, f"{name}_sum{{{label_text}}}": 7.5}
    assert {line: value for line, value in scraped(meters).items() if "_bucket{" not in line} == expected


def test_a_duration_counts_in_each_bucket_whose_bound_it_does_not_exceed() -> None:
    meters = Meters()
    bus = Bus(MetricsListener(meters))
    for seconds in (0.005, 30.0, 3_600.0, 20_000.0):
        bus.emit(events.MessageFinished(**WORK, enqueued_at=0.0, duration_seconds=seconds))
    found = scraped(meters)

    def bucket(bound: str) -> float:
        return found[f"handler_duration_seconds_bucket{{handler=h,le={bound},outcome=finished,queue=q}}"]

    assert [bucket(bound) for bound in ("0.005", "10.0", "30.0", "1800.0", "3600.0", "14400.0", "+Inf")] == [
        *(1, 1, 2, 2, 3, 3, 4),
    ]


@given(st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_events_with_any_values_can_be_counted_and_scraped(data: st.DataObject) -> None:
    meters = Meters()
    bus = Bus(MetricsListener(meters))
    kinds = [kind for kind in event_types() if bus.wants(kind)]
    for _ in range(5):
        bus.emit(data.draw(events_of(data.draw(st.sampled_from(kinds)))))
    scraped(meters)


def test_the_listener_wants_only_events_that_it_counts() -> None:
    listener = MetricsListener(Meters())
    assert not listener.wants(events.MessageStarted)
    assert listener.wants(events.MessageFinished)


def test_the_number_of_remembered_starts_is_bounded() -> None:
    meters, clock = Meters(), FakeClock()
    bus = Bus(MetricsListener(meters, clock=clock))
    for number in range(REMEMBERED_MAX + 1):
        bus.emit(events.ObjectStarted(pipeline="photos", object_uri="s3://b/k", attempt_id=f"a{number}", attempt=1))
    for number in (0, REMEMBERED_MAX):
        bus.emit(events.ObjectInterrupted(pipeline="photos", object_uri="s3://b/k", attempt_id=f"a{number}", reason=""))
    found = scraped(meters)
    assert found["handler_duration_seconds_count{handler=photos,outcome=interrupted,queue=}"] == 1

"""The catalogue of all metrics: name, type, labels and help text.

Names are an interface: dashboards and alerts depend on them. `docs/run/metrics.md` lists them, and a test compares it
with this table. Names here lack the prefix, which every export adds.

Label values are bounded: either they are listed here, or the label names something declared (queue, handler, pipeline,
worker). No label names a message, a key, an object or a tenant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from penstock.events import MERGE_EFFECTS, QuarantineReason

PREFIX = "penstock_"
OTHER = "other"  # for a value missing from its label's list, and for the series that takes everything beyond the bound

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["messages", "seconds", "bytes", ""]

MINUTE, HOUR = 60.0, 3_600.0
WORK_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR),
)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STAGE_SECONDS = (
    *(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR),
)

_NO_LISTS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``values`` lists the values of a label; a label missing there names something declared.

    ``bounds`` are the upper bounds of a histogram's buckets, ascending, without the last bucket, which has none.
    """

    name: str  # without the prefix; a counter's name ends in _total
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: Unit = ""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_LISTS)
    bounds: tuple[float, ...] = ()


def _gauge(name: str, labels: tuple[str, ...], help_: str, unit: Unit = "", **values: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="gauge", labels=labels, help=help_, unit=unit, values=values)


def _counter(name: str, labels: tuple[str, ...], help_: str, unit: Unit = "", **values: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="counter", labels=labels, help=help_, unit=unit, values=values)


_QUEUE = ("queue",)
_PIPELINE = ("pipeline",)
_WORKER = ("queue", "worker")
_SOURCE = ("source",)
_SOURCES = ("broker", "cloudwatch", "ledger", "tables")

_METRICS = (
    _gauge(
        "queue_messages",
        ("queue", "state"),
        "Messages in the queue.",
        "messages",
        state=("visible", "in_flight", "delayed"),
    ),
    _gauge(
        "queue_oldest_message_age_seconds",
        ("queue", "source"),
        "Age of the oldest message, including those in flight and delayed, as SQS measures it.",
        "seconds",
        source=("exact", "cloudwatch"),
    ),
    _gauge(
        "queue_oldest_visible_message_age_seconds",
        ("queue", "source"),
        "Age of the oldest visible message.",
        "seconds",
        source=("exact", "estimated"),
    ),
    _counter("messages_received_total", _QUEUE, "Messages received, including redeliveries.", "messages"),
    _counter("messages_redelivered_total", _QUEUE, "Messages received that had been delivered before.", "messages"),
    _counter(
        "messages_settled_total",
        ("queue", "outcome"),
        "Deliveries settled, by outcome.",
        "messages",
        outcome=("acked", "released", "retried", "dead_lettered", "lease_lost"),
    ),
    _counter(
        "settlement_failures_total",
        ("queue", "operation"),
        "Failed tries to settle a delivery.",
        operation=("ack", "release", "dead_letter"),
    ),
    Metric(
        name="handler_duration_seconds",
        kind="histogram",
        labels=("queue", "handler", "outcome"),
        help="Duration of handler calls and pipeline runs.",
        unit="seconds",
        values={"outcome": ("finished", "retried", "failed", "interrupted")},
        bounds=WORK_SECONDS,
    ),
    _counter(
        "heartbeats_total",
        ("queue", "result"),
        "Calls that extend leases or claims.",
        result=("ok", "retried", "failed"),
    ),
    _gauge("worker_in_flight_messages", _WORKER, "Messages in flight in the worker.", "messages"),
    _gauge("worker_slots", _WORKER, "Messages that the worker can process at once."),
    _gauge(
        "worker_last_poll_timestamp_seconds",
        _WORKER,
        "Time of the broker's last answer for the queue, in epoch seconds.",
        "seconds",
    ),
    Metric(
        name="loop_lag_seconds",
        kind="histogram",
        labels=("worker",),
        help="Delay of the worker's threads and event loop.",
        unit="seconds",
        bounds=LAG_SECONDS,
    ),
    _counter(
        "shutdowns_total",
        ("outcome",),
        "Shutdowns of workers, by outcome.",
        outcome=("drained", "interrupted", "forced"),
    ),
    _counter(
        "expired_leases_total",
        _QUEUE,
        "Messages received whose previous lease expired: the only trace of a killed worker.",
    ),
    _gauge("dead_letters", ("queue", "tier"), "Dead letters waiting.", "messages", tier=("dlq", "dead")),
    _gauge(
        "dead_letter_oldest_age_seconds",
        ("queue", "tier"),
        "Age of the oldest dead letter since it was dead-lettered.",
        "seconds",
        tier=("dlq", "dead"),
    ),
    _counter(
        "replays_total",
        ("queue", "result"),
        "Decisions of replayers about dead letters.",
        result=("sent", "already_sent", "waiting", "released", "set_aside"),
    ),
    _gauge(
        "objects",
        ("pipeline", "state"),
        "Objects in the ledger.",
        state=("unprocessed", "processing", "processed", "dead", "gone", "superseded", "retracted"),
    ),
    _gauge(
        "object_oldest_unprocessed_age_seconds",
        _PIPELINE,
        "Age of the oldest unprocessed object since the ledger first recorded it.",
        "seconds",
    ),
    _gauge("objects_overdue", _PIPELINE, "Objects that wait to be processed for longer than objects.overdue_after."),
    _gauge(
        "objects_warned",
        _PIPELINE,
        "Objects of whose lines more than 5% are bad and neither replayed nor dismissed.",
    ),
    _gauge(
        "objects_missing", _PIPELINE, "Objects missing at the latest reconcile whose messages are not processed yet."
    ),
    _gauge(
        "commit_to_publish_lag_seconds",
        _PIPELINE,
        "Age of the oldest committed batch that is not published yet.",
        "seconds",
    ),
    Metric(
        name="batch_duration_seconds",
        kind="histogram",
        labels=("pipeline", "stage"),
        help="Duration of the stages of batches.",
        unit="seconds",
        values={"stage": ("claim", "run", "commit", "publish")},
        bounds=STAGE_SECONDS,
    ),
    _gauge(
        "monitor_up", _SOURCE, "1 if the monitor's latest poll of the source succeeded, otherwise 0.", source=_SOURCES
    ),
    _counter("monitor_poll_failures_total", _SOURCE, "Failed polls of the monitor.", source=_SOURCES),
    _counter("batch_rows_total", _PIPELINE, "Rows of committed batches."),
    _counter("batch_bytes_total", _PIPELINE, "Stored bytes of the objects of committed batches.", "bytes"),
    _counter("replaced_objects_total", _PIPELINE, "Objects that changed, and whose earlier rows were replaced."),
    _counter("replaced_rows_total", _PIPELINE, "Rows that left a table because their object had changed."),
    _counter("grown_objects_total", _PIPELINE, "Objects that had grown: only the appended lines were read."),
    _counter("appended_rows_total", _PIPELINE, "Rows of the lines that were appended to these objects."),
    _counter(
        "merged_rows_total",
        ("pipeline", "effect"),
        "Rows of batches that were merged by key, by what became of them.",
        effect=MERGE_EFFECTS,
    ),
    _counter(
        "quarantined_lines_total",
        ("pipeline", "reason"),
        "Lines that could not be read, by reason.",
        reason=tuple(reason.value for reason in QuarantineReason),
    ),
    _counter("table_foreign_commits_total", _PIPELINE, "Commits of other writers to the tables."),
    _counter("table_commits_overwritten_total", _PIPELINE, "Commits that another writer replaced."),
    _counter("unknown_field_values_total", _PIPELINE, "Values of fields that no column takes."),
    _counter("wrong_type_values_total", _PIPELINE, "Values of another type than their column, kept in _rescued."),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _METRICS})

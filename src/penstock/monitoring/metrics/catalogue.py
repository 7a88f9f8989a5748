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
        "Age of the oldest message, in flight and delayed ones included, as SQS counts it.",
        "seconds",
        source=("exact", "cloudwatch"),
    ),
    _gauge(
        "queue_oldest_visible_message_age_seconds",
        ("queue", "source"),
        "Age of the oldest message that nobody works on.",
        "seconds",
        source=("exact", "estimated"),
    ),
    _counter(
        "messages_received_total", _QUEUE, "Messages that receives brought, again or for the first time.", "messages"
    ),
    _counter("messages_redelivered_total", _QUEUE, "Messages received that were handed over before.", "messages"),
    _counter(
        "messages_settled_total",
        ("queue", "outcome"),
        "How deliveries ended.",
        "messages",
        outcome=("acked", "released", "retried", "dead_lettered", "lease_lost"),
    ),
    _counter(
        "settle_failures_total",
        ("queue", "operation"),
        "Settlements that the broker did not take, each try counted.",
        operation=("ack", "release", "dead_letter"),
    ),
    Metric(
        name="process_duration_seconds",
        kind="histogram",
        labels=("queue", "handler", "outcome"),
        help="How long handlers and pipelines worked.",
        unit="seconds",
        values={"outcome": ("finished", "retried", "failed", "given_back")},
        bounds=WORK_SECONDS,
    ),
    _counter(
        "heartbeats_total",
        ("queue", "result"),
        "Calls that extend leases, and leases found lost by them.",
        result=("ok", "retried", "failed", "lost"),
    ),
    _gauge("worker_in_flight_messages", _WORKER, "Messages that the worker holds.", "messages"),
    _gauge("worker_slots", _WORKER, "Messages that the worker can hold at once."),
    _gauge(
        "worker_last_poll_timestamp_seconds",
        _WORKER,
        "When the broker last answered the worker for the queue, in epoch seconds.",
        "seconds",
    ),
    Metric(
        name="loop_lag_seconds",
        kind="histogram",
        labels=("worker",),
        help="How late the worker's threads and its event loop come to what is due.",
        unit="seconds",
        bounds=LAG_SECONDS,
    ),
    _counter("shutdowns_total", ("outcome",), "How workers ended.", outcome=("drained", "given_back", "forced")),
    _counter(
        "orphaned_leases_total",
        _QUEUE,
        "Messages received whose lease before ran out unsettled: the only trace that a killed worker leaves.",
    ),
    _gauge("dead_letters", ("queue", "tier"), "Dead letters that wait.", "messages", tier=("dlq", "dead")),
    _gauge(
        "dead_letter_oldest_age_seconds",
        ("queue", "tier"),
        "Age of the oldest dead letter, since it died.",
        "seconds",
        tier=("dlq", "dead"),
    ),
    _counter(
        "replays_total",
        ("queue", "result"),
        "What replayers decided on dead letters.",
        result=("sent", "already_sent", "held", "put_back", "set_aside"),
    ),
    _gauge(
        "objects",
        ("pipeline", "state"),
        "Objects in the ledger.",
        state=("unprocessed", "processing", "processed", "dead", "gone", "superseded"),
    ),
    _gauge(
        "object_oldest_unprocessed_age_seconds",
        _PIPELINE,
        "Age of the oldest object that is not processed, since the ledger heard of it.",
        "seconds",
    ),
    _gauge("objects_overdue", _PIPELINE, "Objects that wait to be processed for longer than overdue_after_seconds."),
    _gauge("objects_missing", _PIPELINE, "Objects that the latest reconcile found stored and never processed."),
    _gauge(
        "commit_to_publish_lag_seconds",
        _PIPELINE,
        "How long the oldest committed batch that is not visible yet has waited.",
        "seconds",
    ),
    Metric(
        name="batch_duration_seconds",
        kind="histogram",
        labels=("pipeline", "stage"),
        help="How long the stages of batches took.",
        unit="seconds",
        values={"stage": ("claim", "run", "commit", "publish")},
        bounds=STAGE_SECONDS,
    ),
    _gauge("monitor_up", _SOURCE, "Whether the monitor's latest look at it succeeded: 1, or 0.", source=_SOURCES),
    _counter("monitor_looks_failed_total", _SOURCE, "Looks of the monitor that failed.", source=_SOURCES),
    _counter("batch_rows_total", _PIPELINE, "Rows of committed batches."),
    _counter("batch_bytes_total", _PIPELINE, "Bytes of the objects of committed batches, as stored.", "bytes"),
    _counter(
        "quarantined_lines_total",
        ("pipeline", "reason"),
        "Lines that could not be read.",
        reason=("invalid UTF-8", "invalid encoding", "malformed", "wrong type"),
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _METRICS})

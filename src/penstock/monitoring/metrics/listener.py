"""Count events in the meters.

A bus listener that costs each message one dictionary look-up and one addition. Thread-safe. The table in the
constructor maps events to counters; `docs/run/metrics.md` describes it.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from itertools import product
from typing import Any

from penstock import events
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Meters

REMEMBERED_MAX = 10_000  # of open items: attempts on objects, and leases that were found lost

COUNTED_BY_QUEUE = frozenset(  # these start at 0 with their worker
    {
        *("messages_received_total", "messages_redelivered_total", "messages_settled_total", "expired_leases_total"),
        *("settlement_failures_total", "heartbeats_total"),
    }
)

FINISHED, RETRIED, FAILED, INTERRUPTED = "finished", "retried", "failed", "interrupted"  # outcomes of work

_ENDS: Mapping[type[Settlement], str] = {Ack: "acked", DeadLetter: "dead_lettered"}
_OBJECT_OUTCOMES = {"retry": RETRIED, "dead": FAILED}  # other outcomes are neither failures nor work


class MetricsListener(events.SelectiveListener):
    """Counts events. ``queues`` maps each pipeline and object handler, whose events lack it, to its queue."""

    def __init__(self, meters: Meters, *, queues: Mapping[str, str] | None = None, clock: Clock | None = None) -> None:
        self._meters = meters
        self._queues = {} if queues is None else dict(queues)
        self._clock = SystemClock() if clock is None else clock
        self._losing = threading.Lock()
        self._lost = _BoundedMemory()  # guarded by _losing: (queue, message id, attempt) of leases found lost
        self._runs = _BoundedMemory()  # start of a batch's attempt, by attempt id
        self._calls = _BoundedMemory()  # start of a handler call for an object, by attempt and object
        self._heard: Mapping[type[events.Event], Callable[[Any], None]] = {
            events.MessagesReceived: self._on_received,
            events.SettlementsApplied: self._on_settled,
            events.MessageFinished: self._on_finished,
            events.MessageFailed: self._on_failed,
            events.MessageInterrupted: self._on_interrupted,
            events.SettlementFailed: self._on_settle_failed,
            events.LeasesExtended: self._on_extended,
            events.LeaseLost: self._on_lease_lost,
            events.HeartbeatFailed: self._on_heartbeat_failed,
            events.WorkerStarted: self._on_started,
            events.WorkerStopped: self._on_stopped,
            events.DeadLetterReplayed: self._on_replayed,
            events.BatchClaimed: self._on_claimed,
            events.BatchWritten: self._on_written,
            events.BatchCommitted: self._on_committed,
            events.BatchPublished: self._on_published,
            events.ForeignCommit: self._on_foreign_commit,
            events.CommitOverwritten: self._on_overwritten,
            events.RunFailed: self._on_run_failed,
            events.AttemptAbandoned: self._on_abandoned,
            events.ObjectStarted: self._on_object_started,
            events.ObjectFinished: self._on_object_finished,
            events.ObjectFailed: self._on_object_failed,
            events.ObjectInterrupted: self._on_object_interrupted,
            events.LinesQuarantined: self._on_quarantined,
            events.UnknownFieldsFound: self._on_unknown_fields,
            events.WrongTypesRescued: self._on_wrong_types,
        }

    def wants(self, kind: type[events.Event]) -> bool:
        return kind in self._heard

    def __call__(self, event: events.Event) -> None:
        self._heard[type(event)](event)

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_received(self, event: events.MessagesReceived) -> None:
        queue = (event.queue,)
        self._meters.count("messages_received_total", queue, len(event.message_ids))
        if event.redelivered:
            self._meters.count("messages_redelivered_total", queue, event.redelivered)
        if event.expired:
            self._meters.count("expired_leases_total", queue, event.expired)

    def _on_settled(self, event: events.SettlementsApplied) -> None:
        kinds = Counter(map(type, event.settlements))  # mostly one
        for kind, times in kinds.items():
            if kind is not Release:
                self._meters.count("messages_settled_total", (event.queue, _ENDS[kind]), times)
        if kinds[Release]:
            releases = Counter(each.uncounted for each in event.settlements if isinstance(each, Release))
            for uncounted, times in releases.items():
                self._meters.count(
                    "messages_settled_total", (event.queue, "released" if uncounted else "retried"), times
                )

    def _on_finished(self, event: events.MessageFinished) -> None:
        # Inlined `_worked`: this is a worker's most frequent event.
        self._meters.observe("handler_duration_seconds", (event.queue, event.handler, FINISHED), event.duration_seconds)

    def _on_failed(self, event: events.MessageFailed) -> None:
        self._worked(event.queue, event.handler, FAILED if event.final else RETRIED, event.duration_seconds)

    def _on_interrupted(self, event: events.MessageInterrupted) -> None:
        self._worked(event.queue, event.handler, INTERRUPTED, event.duration_seconds)

    def _worked(self, queue: str, handler: str, outcome: str, seconds: float) -> None:
        self._meters.observe("handler_duration_seconds", (queue, handler, outcome), seconds)

    # -- leases --------------------------------------------------------------------------------------------------

    def _on_settle_failed(self, event: events.SettlementFailed) -> None:
        self._meters.count("settlement_failures_total", (event.queue, event.operation))
        if event.lost:
            self._count_lost(event.queue, event.message_id, event.attempt)

    def _on_extended(self, event: events.LeasesExtended) -> None:
        self._meters.count("heartbeats_total", (event.queue, "ok"))

    def _on_lease_lost(self, event: events.LeaseLost) -> None:
        self._count_lost(event.queue, event.message_id, event.attempt)

    def _count_lost(self, queue: str, message_id: str, attempt: int) -> None:
        """Count a lost lease once: heartbeat and settlement both find it, in different threads."""
        with self._losing:
            known = (queue, message_id, attempt) in self._lost
            self._lost.put((queue, message_id, attempt), 0.0)
        if not known:
            self._meters.count("messages_settled_total", (queue, "lease_lost"))

    def _on_heartbeat_failed(self, event: events.HeartbeatFailed) -> None:
        self._meters.count("heartbeats_total", (event.queue, "failed" if event.last else "retried"))

    # -- workers and replayers -----------------------------------------------------------------------------------

    def _on_started(self, event: events.WorkerStarted) -> None:
        """Start all counters at 0, so that queries for an increase see the first event, too."""
        for metric in self._meters.catalogue.values():
            if metric.name in COUNTED_BY_QUEUE:
                for queue in event.queues:
                    self._begin(metric, queue)
            elif metric.name == "shutdowns_total":
                self._begin(metric)

    def _begin(self, metric: Metric, *declared: str) -> None:
        listed = [metric.values[label] for label in metric.labels if label in metric.values]
        for values in product(*listed):
            self._meters.count(metric.name, (*declared, *values), 0)

    def _on_stopped(self, event: events.WorkerStopped) -> None:
        self._meters.count("shutdowns_total", (event.outcome,))

    def _on_replayed(self, event: events.DeadLetterReplayed) -> None:
        self._meters.count("replays_total", (event.queue or "", event.result))

    # -- batches -------------------------------------------------------------------------------------------------

    def _on_claimed(self, event: events.BatchClaimed) -> None:
        self._runs.put(event.attempt_id, self._clock.monotonic())
        self._stage(event.pipeline, "claim", event.seconds)

    def _on_written(self, event: events.BatchWritten) -> None:
        self._stage(event.pipeline, "run", event.seconds)
        if self._runs.take(event.attempt_id) is not None:
            self._worked(self._queue_of(event.pipeline), event.pipeline, FINISHED, event.seconds)

    def _on_committed(self, event: events.BatchCommitted) -> None:
        pipeline = (event.pipeline,)
        self._stage(event.pipeline, "commit", event.seconds)
        self._meters.count("batch_rows_total", pipeline, event.rows)
        self._meters.count("batch_bytes_total", pipeline, event.bytes)
        if event.replaced_objects:
            self._meters.count("replaced_objects_total", pipeline, event.replaced_objects)
            self._meters.count("replaced_rows_total", pipeline, event.replaced_rows)
        if event.grown_objects:
            self._meters.count("grown_objects_total", pipeline, event.grown_objects)
            self._meters.count("appended_rows_total", pipeline, event.appended_rows)

    def _on_published(self, event: events.BatchPublished) -> None:
        self._stage(event.pipeline, "publish", event.seconds)
        for effect, rows in event.merged.items():
            self._meters.count("merged_rows_total", (event.pipeline, effect), rows)

    def _on_foreign_commit(self, event: events.ForeignCommit) -> None:
        self._meters.count("table_foreign_commits_total", (event.pipeline,))

    def _on_overwritten(self, event: events.CommitOverwritten) -> None:
        self._meters.count("table_commits_overwritten_total", (event.pipeline,))

    def _on_run_failed(self, event: events.RunFailed) -> None:
        self._run_ended(event.pipeline, event.attempt_id, RETRIED)

    def _on_abandoned(self, event: events.AttemptAbandoned) -> None:
        self._run_ended(event.pipeline, event.attempt_id, INTERRUPTED)

    def _run_ended(self, pipeline: str, attempt_id: str, outcome: str) -> None:
        """Record a run that wrote nothing, with the outcome of the first event that ends it."""
        began_at = self._runs.take(attempt_id)
        if began_at is not None:
            self._worked(self._queue_of(pipeline), pipeline, outcome, self._clock.monotonic() - began_at)

    def _stage(self, pipeline: str, stage: str, seconds: float) -> None:
        self._meters.observe("batch_duration_seconds", (pipeline, stage), seconds)

    # -- objects -------------------------------------------------------------------------------------------------

    def _on_object_started(self, event: events.ObjectStarted) -> None:
        if event.attempt_id not in self._runs:  # in a batch the run is measured, not its objects
            self._calls.put((event.attempt_id, event.object_uri), self._clock.monotonic())

    def _on_object_finished(self, event: events.ObjectFinished) -> None:
        self._on_object_ended(event, FINISHED)

    def _on_object_failed(self, event: events.ObjectFailed) -> None:
        # For a batch that has not written yet: it timed out or lost its claim, and no other event reports that.
        self._run_ended(event.pipeline, event.attempt_id, RETRIED)
        self._on_object_ended(event, _OBJECT_OUTCOMES.get(event.outcome))

    def _on_object_interrupted(self, event: events.ObjectInterrupted) -> None:
        self._on_object_ended(event, INTERRUPTED)

    def _on_object_ended(self, event: events.ObjectEvent, outcome: str | None) -> None:
        began_at = self._calls.take((event.attempt_id, event.object_uri))
        if began_at is not None and outcome is not None:
            seconds = self._clock.monotonic() - began_at
            self._worked(self._queue_of(event.pipeline), event.pipeline, outcome, seconds)

    def _on_quarantined(self, event: events.LinesQuarantined) -> None:
        for reason, lines in event.reasons.items():
            self._meters.count("quarantined_lines_total", (event.pipeline, reason), lines)

    def _on_unknown_fields(self, event: events.UnknownFieldsFound) -> None:
        values = sum(event.fields.values()) + event.others
        self._meters.count("unknown_field_values_total", (event.pipeline,), values)

    def _on_wrong_types(self, event: events.WrongTypesRescued) -> None:
        values = sum(event.fields.values()) + event.others
        self._meters.count("wrong_type_values_total", (event.pipeline,), values)

    def _queue_of(self, handler: str) -> str:
        return self._queues.get(handler, "")


class _BoundedMemory:
    """Numbers by key, up to a limit; a new one replaces the oldest. Thread-safe."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[Hashable, float] = OrderedDict()  # each operation below is atomic in CPython

    def __contains__(self, key: Hashable) -> bool:
        return key in self._numbers

    def put(self, key: Hashable, number: float) -> None:
        self._numbers[key] = number
        if len(self._numbers) > REMEMBERED_MAX:
            try:
                self._numbers.popitem(last=False)
            except KeyError:  # other threads were faster, and it is empty
                return

    def take(self, key: Hashable) -> float | None:
        """Remove and return a number; None if the key is unknown."""
        return self._numbers.pop(key, None)

"""Figures for pages: queues, pipelines, workers and a whole app, with nothing wrong unless it is given."""

from collections.abc import Mapping
from typing import Any

from penstock.app.held_messages import HeldMessage
from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import PipelineStatus, Status

NOW = 1_700_000_000.0
NO_OBJECTS = dict.fromkeys(ObjectState, 0)


def queue(name: str = "orders", **given: Any) -> QueueStatus:
    values: Mapping[str, Any] = {
        "visible": 0,
        "in_flight": 0,
        "delayed": 0,
        "oldest_visible_message_age_seconds": None,
        "oldest_visible_message_age_source": "exact",
        "oldest_message_age_seconds": None,
        "oldest_message_age_source": "exact",
        "dead_letters": 0,
        "dead_letters_set_aside": 0,
        "paused": False,
        "breaker": None,
        "unserved": None,
        "workers": (),
    }
    return QueueStatus(queue=name, **{**values, **given})


def pipeline(**given: Any) -> PipelineStatus:
    values: Mapping[str, Any] = {
        "objects": NO_OBJECTS,
        "objects_overdue": 0,
        "oldest_unprocessed_age_seconds": None,
        "batches_committed": 0,
        "reconciled": None,
        "objects_replaced": 0,
        "batches_unpublished": 0,
        "table": None,
        "table_version": None,
        "disagreement": None,
    }
    return PipelineStatus(pipeline="clicks", **{**values, **given})


def status(**given: Any) -> Status:
    values: Mapping[str, Any] = {
        "table": None,
        "table_version": None,
        "objects": NO_OBJECTS,
        "batches_committed": 0,
        "batches_unpublished": 0,
        "messages_visible": 0,
        "messages_in_flight": 0,
        "messages_delayed": 0,
        "oldest_visible_message_age_seconds": None,
        "dead_letters": 0,
        "workers": (),
    }
    return Status(**{**values, **given})


def worker(name: str = "w", **given: Any) -> WorkerRecord:
    values: Mapping[str, Any] = {
        "host": "h",
        "namespace": "",
        "pid": 1,
        "version": "1",
        "started_at": NOW - 600,
        "state": "serving",
        "queues": ("orders",),
        "in_flight": 0,
        "beat_at": NOW,
        "concurrency": 4,
    }
    return WorkerRecord(worker=name, **{**values, **given})


def held(queue: str, count: int, *, seconds: float = 5.0) -> tuple[HeldMessage, ...]:
    return tuple(HeldMessage(queue=queue, message_id=f"{queue}-{n}", since=NOW - seconds) for n in range(count))

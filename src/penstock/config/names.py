"""The names of settings: sections, variables, former names, and suggestions for names that do not exist."""

import difflib
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

SETTINGS_FILE = "penstock.toml"
PREFIX = "PENSTOCK_"

SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "worker": "Workers: which queues they serve, how much at once, and how they stop.",
        "objects": "Object handlers and pipelines: batches, retries, reconcile, archive.",
        "tables": "Tables of pipelines: compaction, catalogs.",
        "dead_letters": "Dead letters: automatic replay, archive.",
        "spark": "Spark.",
        "aws": "AWS: SQS and S3.",
        "log": "The log.",
        "metrics": "Metrics, and where they are served and sent.",
        "tracing": "Traces.",
        "alerts": "When a queue is lagging, and who is notified of failures.",
        "web": "The dashboard: where it is served, and who may use it.",
    }
)
"""The sections of penstock.toml, each with a comment for it."""

FORMER: Mapping[str, str] = MappingProxyType(
    {
        "state": "data_dir",
        "queues": "worker_queues",
        "concurrency": "worker_concurrency",
        "processes": "worker_processes",
        "lease_seconds": "worker_lease",
        "stop_timeout_seconds": "worker_stop_timeout",
        "drain_seconds": "worker_drain",
        "fetch_max": "worker_max_fetch",
        "idempotency_retention_seconds": "worker_idempotency_retention",
        "breaker_failures": "worker_breaker_failures",
        "breaker_probe_seconds_max": "worker_max_breaker_probe",
        "ecs_task_protection": "worker_ecs_task_protection",
        "max_objects": "objects_max_batch_objects",
        "max_bytes": "objects_max_batch_bytes",
        "max_attempts": "objects_max_attempts",
        "max_quarantine_ratio": "objects_max_quarantine_ratio",
        "retry_base_seconds": "objects_retry_base",
        "retry_cap_seconds": "objects_max_retry_wait",
        "reconcile_every_seconds": "objects_reconcile_every",
        "reconcile_older_than_seconds": "objects_reconcile_older_than",
        "archive": "objects_archive",
        "archive_after_days": "objects_archive_after",
        "overdue_after_seconds": "objects_overdue_after",
        "replay": "dead_letters_replay",
        "replays_max": "dead_letters_max_replays",
        "replay_base_seconds": "dead_letters_replay_base",
        "replay_cap_seconds": "dead_letters_max_replay_wait",
        "replay_queues": "dead_letters_replay_queues",
        "service": "log_service",
        "service_version": "log_service_version",
        "environment": "log_environment",
        "metrics_export_seconds": "metrics_export_every",
        "cloudwatch_namespace": "metrics_cloudwatch_namespace",
        "monitor_address": "metrics_monitor_address",
        "monitor_seconds": "metrics_monitor_every",
        "traces": "tracing_enabled",
        "late_after_seconds": "alerts_lagging_after",
        "late_queues": "alerts_lagging_queues",
        "sentry_dsn": "alerts_sentry_dsn",
        "rollbar_token": "alerts_rollbar_token",
        "notify_urls": "alerts_notify_urls",
    }
)
"""The fields of former versions, each with the field that replaced it."""

# Kubernetes sets these for each service whose name is penstock or begins with it.
_OF_KUBERNETES = re.compile(
    r"PENSTOCK(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)


def section_of(field: str) -> str:
    """Return the section of a field; empty if it has none."""
    return next((section for section in SECTIONS if field.startswith(f"{section}_")), "")


def name_of(field: str) -> str:
    """Return the name of a setting within its section: "concurrency"."""
    section = section_of(field)
    return field.removeprefix(f"{section}_") if section else field


def dotted(field: str) -> str:
    """Return the name of a setting for texts: "worker.concurrency"."""
    section = section_of(field)
    return f"{section}.{name_of(field)}" if section else field


def variable(field: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{field.upper()}"


def in_file(field: str) -> str:
    """Return how penstock.toml names a setting: "concurrency in the section [worker]"."""
    section = section_of(field)
    return f"{name_of(field)} in the section [{section}]" if section else f"{field} above the first [section]"


def matching(name: str, fields: Collection[str]) -> str | None:
    """Return the field that has this name, in full, without its section, or formerly; None if none or several have."""
    if name in FORMER:
        return FORMER[name]
    found = [field for field in fields if name in (field, name_of(field))]
    return found[0] if len(found) == 1 else None


def suggested(name: str, fields: Collection[str]) -> str | None:
    """Return the field that a user probably means by a name that does not exist; None if there is no likely one.

    The name may be a former one, one without its section or in a wrong section, or misspelled.
    """
    name = name.lower()
    bare = {section_name for section in SECTIONS if (section_name := name.removeprefix(f"{section}_")) != name}
    for spelling in (name, *sorted(bare)):
        if (field := matching(spelling, fields)) is not None:
            return field
    close = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
    if close:
        return close[0]
    by_name = {name_of(field): field for field in fields} | dict(FORMER)
    for spelling in (name, *sorted(bare)):
        close = difflib.get_close_matches(spelling, by_name, n=1, cutoff=0.75)
        if close:
            return by_name[close[0]]
    return None


def is_of_kubernetes(variable_name: str) -> bool:
    """Return True if Kubernetes sets this variable for a service called penstock or penstock-..."""
    return _OF_KUBERNETES.fullmatch(variable_name.upper()) is not None

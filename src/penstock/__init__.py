"""Penstock: reliable queue consumers, and exactly-once ingestion of S3 objects into a table with Spark.

Public names are imported on first use, so that a process that only sends messages loads no database driver, Spark or
Arrow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import cleanup
    from penstock.app.app import App
    from penstock.app.handlers import Handlers
    from penstock.app.pipelines.declaration import ObjectSource
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.app.pipelines.published import PublishedBatch
    from penstock.errors import Interrupted, PenstockError, Reject, Retry
    from penstock.handlers.context import BatchContext, Context, Item
    from penstock.messaging.message import Message
    from penstock.messaging.schema import Queue
    from penstock.pipeline.merging.declaration import Merge
    from penstock.pipeline.objects.declaration import ObjectContext
    from penstock.pipeline.objects.stream import IncomingObject
    from penstock.pipeline.spark.source.own_reader import SourceObject
    from penstock.sinks.delta.declaration import DeltaSink
    from penstock.sinks.iceberg.declaration import IcebergSink

_HOMES = {
    "App": "penstock.app.app",
    "BatchContext": "penstock.handlers.context",
    "Context": "penstock.handlers.context",
    "DeltaSink": "penstock.sinks.delta.declaration",
    "Handlers": "penstock.app.handlers",
    "IcebergSink": "penstock.sinks.iceberg.declaration",
    "IncomingObject": "penstock.pipeline.objects.stream",
    "Interrupted": "penstock.errors",
    "Item": "penstock.handlers.context",
    "Merge": "penstock.pipeline.merging.declaration",
    "Message": "penstock.messaging.message",
    "ObjectContext": "penstock.pipeline.objects.declaration",
    "ObjectSource": "penstock.app.pipelines.declaration",
    "PenstockError": "penstock.errors",
    "Pipeline": "penstock.app.pipelines.pipeline",
    "PublishedBatch": "penstock.app.pipelines.published",
    "Queue": "penstock.messaging.schema",
    "Reject": "penstock.errors",
    "Retry": "penstock.errors",
    "SourceObject": "penstock.pipeline.spark.source.own_reader",
}

_MODULES = {"cleanup": "penstock.app.cleanup"}  # public modules

__all__ = [
    "App",
    "BatchContext",
    "Context",
    "DeltaSink",
    "Handlers",
    "IcebergSink",
    "IncomingObject",
    "Interrupted",
    "Item",
    "Merge",
    "Message",
    "ObjectContext",
    "ObjectSource",
    "PenstockError",
    "Pipeline",
    "PublishedBatch",
    "Queue",
    "Reject",
    "Retry",
    "SourceObject",
    "cleanup",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)

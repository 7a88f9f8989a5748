"""The queues that a worker would serve here, for `penstock doctor`: what is fed from each, with how many attempts."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.config import Settings
from penstock.errors import UsageError
from penstock.storage.address import S3Address, is_s3, s3_address

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A queue that something of an app is fed from."""

    queue: str
    attempts_max: int  # of a message, before it is a dead letter
    source: S3Address | None  # whose objects are announced there


def served_by(app: "App | None", settings: Settings) -> Sequence[Served]:
    """Those that a worker would serve here. ``app`` None: the queues that the settings name, and their attempts."""
    if app is None:
        return [Served(queue=name, attempts_max=settings.max_attempts, source=None) for name in settings.queues]
    return [
        _of(service, settings)
        for service in app.services
        if not settings.queues or service.queue_name in settings.queues
    ]


def _of(service: "Service", settings: Settings) -> Served:
    from penstock.app.object_service import ObjectService
    from penstock.app.pipelines.service import PipelineService
    from penstock.app.service import FunctionService

    attempts, source = settings.max_attempts, ""
    match service:
        case FunctionService():
            attempts = service.declaration.retry.max_attempts
        case ObjectService():
            attempts, source = service.declaration.attempts_max, service.source
        case PipelineService():
            declared = service.pipeline.declaration
            attempts, source = declared.max_attempts or settings.max_attempts, str(declared.source.folder)
    where: S3Address | None = None
    with suppress(UsageError):
        where = s3_address(source) if is_s3(source) else None
    return Served(queue=service.queue_name, attempts_max=attempts, source=where)

"""What an error hook is called with."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """What is known of a failure. None: it has no such thing."""

    process: str  # its kind: worker, replayer, monitor, ingest, ...
    handler: str  # or the pipeline
    worker: str
    fingerprint: str  # handler|type|file:function
    error: str
    final: bool  # nothing tries it again
    occurrences: int  # of this fingerprint since it was reported last, this one included
    traceback: str | None  # without local variables
    queue: str | None = None
    message_id: str | None = None
    attempt: int | None = None
    object_uri: str | None = None
    attempt_id: str | None = None
    subject: str | None = None  # what it is, in a few words, where it is not that the handler failed


ErrorHook = Callable[[BaseException | None, ErrorContext], None]

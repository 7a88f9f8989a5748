"""Declare handlers, object handlers, pipelines and lifespans.

A module collects its own in `Handlers`; an `App` includes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.app.cleanup import Cleanup, Keep, check_apart, check_fits
from penstock.app.object_service import ObjectService, check_functions, check_source
from penstock.app.pipelines.declaration import ObjectSource, Transform, check_one_table, declared
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import FunctionService, Service
from penstock.errors import UsageError
from penstock.handlers.declaration import BatchOptions, HandlerDeclaration, Isolation, RetryPolicy
from penstock.handlers.durations import Duration, Size, bytes_of, seconds_of
from penstock.handlers.schedule import schedule_of
from penstock.handlers.ticker import check_tick
from penstock.ledger.rules import HANDLER_CHARS_MAX
from penstock.messaging.backoff import RETRY_ATTEMPTS_MAX, RETRY_BASE_SECONDS, RETRY_CAP_SECONDS
from penstock.messaging.declarations import OnStop, checks_options
from penstock.messaging.schema import Queue
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration
from penstock.sinks.declaration import SinkDeclaration

Function = TypeVar("Function", bound=Callable[..., Any])
BATCH_WAIT_SECONDS = 1.0
PIPELINE_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """A generator function, plain or async, that yields resources once and lives as long as the worker."""

    name: str
    function: Callable[..., Any]


class Handlers:
    """A group of handlers, pipelines and lifespans, declared with decorators while a module is imported.

    Decorators return the function unchanged, so it can be called and tested directly. An `App` is itself such a group.
    """

    def __init__(self) -> None:
        super().__init__()
        self._services: dict[str, Service] = {}  # by queue
        self._lifespans: list[Lifespan] = []

    @property
    def services(self) -> tuple[Service, ...]:
        """All declared services, in order of declaration."""
        return tuple(self._services.values())

    @property
    def declarations(self) -> tuple[HandlerDeclaration, ...]:
        """The declarations of the message handlers among the services."""
        return tuple(service.declaration for service in self.services if isinstance(service, FunctionService))

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines among the services."""
        return tuple(service.pipeline for service in self.services if isinstance(service, PipelineService))

    @property
    def lifespans(self) -> tuple[Lifespan, ...]:
        """The lifespans, in order of declaration."""
        return tuple(self._lifespans)

    @checks_options("@app.handler")
    def handler(
        self,
        queue: Queue[Any] | str,
        *,
        name: str | None = None,
        max_attempts: int = RETRY_ATTEMPTS_MAX,
        retry_base: Duration = RETRY_BASE_SECONDS,
        max_retry_wait: Duration = RETRY_CAP_SECONDS,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        idempotency: Callable[[Any], str] | None = None,
        cleanup: Callable[..., Any] | None = None,
        batch: int | None = None,
        max_wait: Duration = BATCH_WAIT_SECONDS,
        isolation: Isolation = "none",
        on_stop: OnStop = "finish",
        every: Duration | None = None,
        cron: str | None = None,
        newer_wait: Duration = 3_600.0,
        breaker_failures: int | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a function as the handler of a queue.

        The function is called with the body (the `Message` if the queue has no model) and, if it takes two arguments, a
        `Context`. Returning acks the message. `Reject` dead-letters it. `Retry` and any other exception count as an
        attempt; the next one follows after exponential backoff with full jitter: uniform(0, min(``max_retry_wait``,
        ``retry_base`` x 2^n)).

        Args:
            queue: The queue or its name.
            name: The handler's name. Default: the function's name.
            max_attempts: The message is dead-lettered after this many attempts.
            retry_base: Upper limit of the first backoff; it doubles with each attempt.
            max_retry_wait: Upper limit of every backoff, applied before the jitter.
            timeout: The attempt ends after this time, and the message is released or dead-lettered. None: no limit.
            concurrency: Maximum number of concurrent calls in one worker. None: all slots of the worker.
            idempotency: Function from body to key. One completion is recorded per key; needs a ledger.
            cleanup: Called before a retry, like the function, to remove leftovers of earlier attempts.
            batch: Maximum batch size. The function takes a list of `Item` and returns None, or a list with None or an
                exception per item.
            max_wait: Maximum time to collect a batch.
            isolation: "process" runs every call in a child process, which can be killed.
            on_stop: With "release", `Context.checkpoint` releases the message as soon as the worker stops.
            every: Send one message per interval, independent of the number of workers.
            cron: Send one message per tick of this cron expression (UTC), independent of the number of workers.
            newer_wait: How long a message with an unknown newer schema version waits for a newer worker.
            breaker_failures: Pause the queue after this many consecutive messages that fail with the same error. 0:
                never. None: the setting ``worker.breaker_failures``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            UsageError: If options contradict each other, or the queue already has a handler.
        """
        contract = _queue_of("@app.handler", queue)

        def declare(function: Function) -> Function:
            declaration = HandlerDeclaration(
                name=name or _name_of(function),
                queue=contract,
                function=function,
                retry=RetryPolicy(
                    max_attempts=max_attempts,
                    base_seconds=seconds_of("retry_base", retry_base),
                    cap_seconds=seconds_of("max_retry_wait", max_retry_wait),
                    newer_wait_seconds=seconds_of("newer_wait", newer_wait),
                ),
                timeout_seconds=None if timeout is None else seconds_of("timeout", timeout),
                concurrency=concurrency,
                idempotency=idempotency,
                cleanup=cleanup,
                batch=None
                if batch is None
                else BatchOptions(messages_max=batch, wait_seconds=seconds_of("max_wait", max_wait)),
                isolation=isolation,
                on_stop=on_stop,
                schedule=schedule_of(every, cron),
                breaker_failures=breaker_failures,
            )
            if declaration.schedule is not None:
                check_tick(declaration)
            self.add(FunctionService(declaration=declaration))
            return function

        return declare

    @checks_options("@app.object_handler")
    def object_handler(
        self,
        queue: Queue[Any] | str,
        *,
        source: str,
        name: str | None = None,
        max_attempts: int = 4,
        retry_base: Duration = RETRY_BASE_SECONDS,
        max_retry_wait: Duration = RETRY_CAP_SECONDS,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        on_stop: OnStop = "finish",
        cleanup: Callable[..., Any] | None = None,
        encoding: str = "utf-8",
        max_object_bytes: Size = "1 GiB",
        max_inflated_bytes: Size = "4 GiB",
        source_cleanup: Cleanup | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a function as the handler of the objects named by a queue's notifications.

        The function is called with an `IncomingObject` and, if it takes two arguments, an `ObjectContext`. It runs once
        per object version, recorded in the ledger under ``name``. An object that cannot be read is retried and then
        marked as failed, independently of other objects. An object that was deleted or overwritten before it was read
        is recorded as such.

        Args:
            queue: The queue or its name.
            source: The folder or s3://BUCKET/PREFIX of the objects. Nothing outside it is read.
            name: The handler's name. Default: the function's name.
            max_attempts: The object is marked as failed after this many attempts.
            retry_base: Upper limit of the first backoff; it doubles with each attempt.
            max_retry_wait: Upper limit of every backoff, applied before the jitter.
            timeout: The attempt ends after this time.
            concurrency: Maximum number of concurrent calls in one worker.
            on_stop: With "release", `ObjectContext.checkpoint` releases the message as soon as the worker stops.
            cleanup: Called before a retry, like the function, to remove leftovers of earlier attempts.
            encoding: The encoding of text.
            max_object_bytes: Maximum size of an object.
            max_inflated_bytes: Maximum size after decompression.
            source_cleanup: How to tag, move or delete processed objects; see ``penstock.cleanup``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            UsageError: If options contradict each other, or the queue already has a handler.
        """
        queue_name = _queue_of("@app.object_handler", queue).name

        def declare(function: Function) -> Function:

            declaration = ObjectHandlerDeclaration(
                name=name or _name_of(function),
                function=function,
                attempts_max=max_attempts,
                timeout_seconds=None if timeout is None else seconds_of("timeout", timeout),
                on_stop=on_stop,
                cleanup=cleanup,
                encoding=encoding,
                object_bytes_max=bytes_of("max_object_bytes", max_object_bytes),
                inflated_bytes_max=bytes_of("max_inflated_bytes", max_inflated_bytes),
            )
            check_functions(declaration)
            check_source(declaration.name, source)
            chosen = Keep() if source_cleanup is None else source_cleanup
            check_fits(chosen, source)
            self.add(
                ObjectService(
                    declaration=declaration,
                    queue_name=queue_name,
                    source=source,
                    concurrency=concurrency,
                    retry_base_seconds=seconds_of("retry_base", retry_base),
                    retry_cap_seconds=seconds_of("max_retry_wait", max_retry_wait),
                    source_cleanup=chosen,
                )
            )
            return function

        return declare

    @checks_options("app.pipeline")
    def pipeline(
        self,
        name: str,
        *,
        source: ObjectSource,
        sink: SinkDeclaration,
        transform: Transform | None = None,
        merge: Merge | None = None,
        provenance: bool = True,
        max_batch_objects: int | None = None,
        max_batch_bytes: Size | None = None,
        max_wait: Duration = PIPELINE_WAIT_SECONDS,
        max_attempts: int | None = None,
        max_quarantine_ratio: float | None = None,
    ) -> Pipeline:
        """Declare a Spark pipeline that writes each object version of a source to a sink exactly once.

        Args:
            name: The pipeline's name.
            source: The objects and their queue.
            sink: The table to write, such as DeltaSink(...).
            transform: Function from DataFrame to DataFrame, applied to each batch.
            merge: Merge(key=..., order_by=...): the table has the last row of each key. Default: rows are added.
            provenance: Add the columns _object and _offset (_row for formats without lines).
            max_batch_objects: Maximum number of objects in a batch. None: the app's setting, as for the following.
            max_batch_bytes: Maximum size of a batch.
            max_wait: Maximum time to wait for more objects of a batch.
            max_attempts: An object is marked as failed after this many attempts.
            max_quarantine_ratio: An object fails if more than this share of its lines cannot be read.

        Returns:
            The pipeline.

        Raises:
            UsageError: If an option is invalid, or the source's queue already has a handler.
        """
        declaration = declared(
            name,
            source=source,
            sink=sink,
            transform=transform,
            merge=merge,
            provenance=provenance,
            max_batch_objects=max_batch_objects,
            max_batch_bytes=max_batch_bytes,
            max_wait=max_wait,
            max_attempts=max_attempts,
            max_quarantine_ratio=max_quarantine_ratio,
        )
        pipeline = Pipeline(declaration)
        self.add(PipelineService(pipeline=pipeline))
        return pipeline

    def lifespan(self, function: Function) -> Function:
        """Declare a generator function, plain or async, that provides resources to the worker's handlers.

        The function creates the resources before the worker serves, yields them once as a mapping (see
        `Context.resources`), and releases them afterwards. Lifespans end in reverse order of declaration.
        """
        self._lifespans.append(Lifespan(name=_name_of(function), function=function))
        return function

    def include(self, group: "Handlers") -> None:
        """Add all services and lifespans of a group. Raises `UsageError` as `add` does."""
        for service in group.services:
            self.add(service)
        self._lifespans.extend(group.lifespans)

    def declaration_of(self, function: Callable[..., Any]) -> HandlerDeclaration:
        """Return the declaration of a function. Raises `UsageError` if it is not a message handler of this group."""
        for declaration in self.declarations:
            if declaration.function is function:
                return declaration
        raise UsageError(
            f"{_name_of(function)} is not a message handler of this app; test object handlers with a TestWorker."
        )

    def queue_name_of(self, name: str) -> str | None:
        """Return the queue of the handler or pipeline with this name, or None."""
        return next((service.queue_name for service in self.services if service.name == name), None)

    def add(self, service: Service) -> None:
        """Add a service.

        Raises:
            UsageError: If its queue or name is taken, its name is too long for a ledger, a cleanup conflicts with
                another source, or another pipeline writes the same table and rows may be replaced there.
        """
        queue = service.queue_name
        if (chars := len(service.name)) > HANDLER_CHARS_MAX:
            raise UsageError(
                f"The name {service.name[:60]}... has {chars:,} characters, and at most {HANDLER_CHARS_MAX} are "
                "allowed; give a shorter one with name=..."
            )
        if queue in self._services:
            raise UsageError(
                f"The queue {queue} has the handler {self._services[queue].name} and cannot have {service.name} too: "
                "one queue has one handler."
            )
        if any(other.name == service.name for other in self.services):
            raise UsageError(f"There are two handlers with the name {service.name}; give one of them another name=...")
        readers = [
            declared.reader
            for declared in (*self.services, service)
            if isinstance(declared, ObjectService | PipelineService)
        ]
        check_apart(readers)
        pipelines = [one.pipeline.declaration for one in (*self.services, service) if isinstance(one, PipelineService)]
        check_one_table(pipelines)
        self._services[queue] = service


def _queue_of(decorator: str, queue: Any) -> Queue[Any]:
    """Return the queue. Raises `UsageError` for any other value, such as the decorated function itself."""
    if isinstance(queue, Queue):
        return queue
    if isinstance(queue, str):
        return Queue[Any](queue)
    if callable(queue):
        raise UsageError(
            f'{decorator} above {_name_of(queue)} has no queue, so nothing would be served: write {decorator}("QUEUE").'
        )
    raise UsageError(f"{decorator} needs a Queue or the name of one, not {queue!r}.")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)

"""Handlers as values: a module collects its own, and an `App` includes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.app.cleanup import Cleanup, Keep, check_apart, check_fits
from penstock.app.object_service import ObjectService, check_source
from penstock.app.pipelines.declaration import DeltaSink, ObjectSource, Transform, declared
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import FunctionService, Service
from penstock.errors import UsageError
from penstock.handlers.declaration import BatchOptions, HandlerDeclaration, Isolation, RetryPolicy
from penstock.handlers.durations import Duration, Size, bytes_of, seconds_of
from penstock.handlers.schedule import schedule_of
from penstock.handlers.ticker import check_tick
from penstock.ledger.rules import HANDLER_CHARS_MAX
from penstock.messaging.declarations import OnStop, checks_options
from penstock.messaging.schema import Queue

Function = TypeVar("Function", bound=Callable[..., Any])
BATCH_WAIT_SECONDS = 1.0
PIPELINE_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """What lives as long as the worker: a generator function, plain or async, that yields its resources once."""

    name: str
    function: Callable[..., Any]


class Handlers:
    """A group of handlers. Decorators leave the functions as they are, so they can be called and tested as such."""

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}  # by queue
        self._lifespans: list[Lifespan] = []

    @property
    def services(self) -> tuple[Service, ...]:
        """What was declared, in that order."""
        return tuple(self._services.values())

    @property
    def declarations(self) -> tuple[HandlerDeclaration, ...]:
        """The functions among the services."""
        return tuple(one.declaration for one in self.services if isinstance(one, FunctionService))

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines among the services."""
        return tuple(one.pipeline for one in self.services if isinstance(one, PipelineService))

    @property
    def lifespans(self) -> tuple[Lifespan, ...]:
        """The lifespans, in their order."""
        return tuple(self._lifespans)

    @checks_options("@app.handler")
    def handler(
        self,
        queue: Queue[Any] | str,
        *,
        name: str | None = None,
        max_attempts: int = 5,
        retry_base: Duration = 1.0,
        retry_cap: Duration = 300.0,
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
        """Declare the function below as the handler of a queue.

        It is called with the body (the `Message`, where the queue has no model) and, if it takes two arguments, a
        `Context`. Returning acks. `Reject` gives the message up; `Retry` and any other exception cost an attempt and
        wait by exponential backoff with full jitter: uniform(0, min(``retry_cap``, ``retry_base`` x 2^n)). After
        ``max_attempts`` the message is a dead letter.

        ``timeout``: then the attempt is over and the lease given up. ``concurrency``: calls at once in one worker.
        ``idempotency``: body -> key; one recorded completion a key (needs a ledger). ``cleanup``: called, as
        the function is, before a further attempt, to throw away what a broken one left. ``batch``: the function takes a
        list of up to so many `Item`s, gathered for at most ``max_wait``, and returns None or a list with None or an
        exception for each. ``isolation="process"``: every call in a child process that can be killed.
        ``on_stop="give_back"``: `Context.checkpoint` gives back as soon as the worker stops. ``every`` or ``cron``
        (UTC): one message a tick is sent, whatever the number of workers. ``newer_wait``: how long a message of a
        schema version that this code does not know waits for a newer worker. ``breaker_failures``: so many messages in
        a row that fail alike pause the queue; 0: never; None: what the settings say.

        Raises `UsageError` for options that do not go together, and for a second handler of one queue.
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
                    cap_seconds=seconds_of("retry_cap", retry_cap),
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
        retry_base: Duration = 1.0,
        retry_cap: Duration = 300.0,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        on_stop: OnStop = "finish",
        cleanup: Callable[..., Any] | None = None,
        encoding: str = "utf-8",
        max_object_bytes: Size = "1 GiB",
        max_inflated_bytes: Size = "4 GiB",
        source_cleanup: Cleanup | None = None,
    ) -> Callable[[Function], Function]:
        """Declare the function below as the handler of the objects that the queue's notifications name.

        It is called with an `IncomingObject` and, if it takes two arguments, an `ObjectContext`; once an object
        version, recorded in the ledger under ``name``. ``source`` is the folder the objects lie in; nothing outside it
        is read. An object that cannot be read is tried again and then dead, beside its siblings; one that is gone or
        was overwritten ends as that. ``cleanup`` is called before an attempt that follows a broken one.
        ``source_cleanup`` tags, moves or deletes the objects that are processed, as ``penstock.cleanup`` says.

        Raises `UsageError` for options that do not go together, and for a second handler of one queue.
        """
        queue_name = _queue_of("@app.object_handler", queue).name

        def declare(function: Function) -> Function:
            from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration

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
                    retry_cap_seconds=seconds_of("retry_cap", retry_cap),
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
        sink: DeltaSink,
        transform: Transform | None = None,
        provenance: bool = True,
        max_objects: int | None = None,
        max_bytes: Size | None = None,
        max_wait: Duration = PIPELINE_WAIT_SECONDS,
        max_attempts: int | None = None,
        max_quarantine_ratio: float | None = None,
    ) -> Pipeline:
        """Declare a pipeline on Spark: the objects of ``source``, each version once, through ``transform`` (DataFrame
        -> DataFrame) into ``sink``.

        A batch takes up to ``max_objects`` and ``max_bytes``, and waits up to ``max_wait`` while more keep coming.
        An object is dead after ``max_attempts``, and fails where more than ``max_quarantine_ratio`` of its lines cannot
        be read. Numbers that are not given are those of the app's settings. ``provenance`` adds the columns _object
        and _offset. Raises `UsageError` for what does not fit, and for a second handler of the source's queue.
        """
        declaration = declared(
            name,
            source=source,
            sink=sink,
            transform=transform,
            provenance=provenance,
            max_objects=max_objects,
            max_bytes=max_bytes,
            max_wait=max_wait,
            max_attempts=max_attempts,
            max_quarantine_ratio=max_quarantine_ratio,
        )
        made = Pipeline(declaration)
        self.add(PipelineService(pipeline=made))
        return made

    def lifespan(self, function: Function) -> Function:
        """Declare a generator function, plain or async, that makes resources before the worker serves, yields them
        once as a mapping (found in `Context.resources`), and puts them away afterwards; in reverse order of
        declaration."""
        self._lifespans.append(Lifespan(name=_name_of(function), function=function))
        return function

    def include(self, group: "Handlers") -> None:
        """Take the handlers of a group over. Raises `UsageError` where two serve one queue."""
        for service in group.services:
            self.add(service)
        self._lifespans.extend(group.lifespans)

    def declaration_of(self, function: Callable[..., Any]) -> HandlerDeclaration:
        """What was declared of a function. Raises `UsageError` for one that is no handler here."""
        for declaration in self.declarations:
            if declaration.function is function:
                return declaration
        raise UsageError(
            f"{_name_of(function)} is no handler of messages in this app; object handlers are tested with a TestWorker."
        )

    def queue_name_of(self, name: str) -> str | None:
        """Return the queue of the handler or pipeline with this name; None if there is none."""
        return next((one.queue_name for one in self.services if one.name == name), None)

    def add(self, service: Service) -> None:
        """Serve this too. Raises `UsageError` where its queue or its name is taken, or where a cleanup would take away
        what another one reads, or its name is too long for a ledger."""
        queue = service.queue_name
        if (chars := len(service.name)) > HANDLER_CHARS_MAX:
            raise UsageError(
                f"The name {service.name[:60]}... has {chars:,} characters, and {HANDLER_CHARS_MAX} is the most; "
                "give a shorter one with name=..."
            )
        if queue in self._services:
            raise UsageError(
                f"The queue {queue} has the handler {self._services[queue].name} and cannot have {service.name} too: "
                "one queue has one handler."
            )
        if any(other.name == service.name for other in self.services):
            raise UsageError(f"There are two handlers of the name {service.name}; give one a name=... of its own.")
        readers = [one.reader for one in (*self.services, service) if isinstance(one, ObjectService | PipelineService)]
        check_apart(readers)
        self._services[queue] = service


def _queue_of(decorator: str, queue: Any) -> Queue[Any]:
    """Return the queue. Raises `UsageError` for what is none, such as the function itself."""
    if isinstance(queue, Queue):
        return queue
    if isinstance(queue, str):
        return Queue[Any](queue)
    if callable(queue):
        raise UsageError(
            f"{decorator} above {_name_of(queue)} names no queue, so nothing would be served: write "
            f'{decorator}("QUEUE").'
        )
    raise UsageError(f"{decorator} needs a Queue or the name of one, not {queue!r}.")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)

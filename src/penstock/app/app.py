"""`App`: declared handlers and pipelines, with the broker and the ledger they use.

An app is a value that users create, not a process-wide global.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import WeakSet

from penstock.app.context import EventForwarder
from penstock.app.handlers import Handlers
from penstock.app.kill import killing_probe
from penstock.app.naming import calling_module, checked_name, worker_id
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service
from penstock.app.sources import source_at
from penstock.app.transactions import Transactional
from penstock.config import Settings, dotted, load_settings, matching, shown, variable
from penstock.errors import UsageError
from penstock.events import Listener
from penstock.handlers.durations import Duration, seconds_of
from penstock.messaging.broker import SEND_CHUNK, Broker, names_dead_letters
from penstock.messaging.declarations import checks_options
from penstock.messaging.forks import leave_to_parent, renew_in_copies
from penstock.messaging.message import (
    DEDUPLICATION_ATTRIBUTE,
    IDENTITY_ATTRIBUTES,
    NO_ATTRIBUTES,
    ORIGIN_ATTRIBUTE,
    Attributes,
    Outgoing,
)
from penstock.messaging.schema import BodyCodec, Queue
from penstock.messaging.threads import AsideThreads
from penstock.messaging.tracing import Tracing
from penstock.monitoring.errors.hook import ErrorHook

if TYPE_CHECKING:
    from penstock.app.outbox import MessageOptions
    from penstock.pipeline.spark.runtime import GivenSpark

# All apps of this process. Only tests use it: a handler under test may send through any of them.
_apps: "WeakSet[App]" = WeakSet()
_new_app_hooks: "list[Callable[[App], None]]" = []  # only for tests: the last hook is called with each new app
TYPO_SIMILARITY_MIN = 0.85  # of two names: orders-eu is probably another queue than orders
SENDING_THREADS_MAX = 32  # shared by `send_async` and `send_many_async`


def _setting_hint(name: str) -> str | None:
    """Return a hint on where to set an option that is a setting; None for other options."""
    field = matching(name, Settings.model_fields)
    if field is None:
        return None
    return f"{dotted(field)} is a setting: App.from_config({field}=...), {variable(field)} or penstock.toml."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    codec: BodyCodec[Any]
    attributes: Attributes


class App(Handlers, Transactional):
    """The handlers and pipelines that a worker serves, and the sender for their queues.

    Users create it, usually one per process, at the import of a module. Sending is thread-safe. After a fork, the child
    process gets a worker id and a broker connection of its own.

    Args:
        broker: An address, or an open `Broker`. Default: the setting ``broker``.
        ledger: An address, or an open `penstock.ledger.Ledger`. Default: the setting ``ledger``. Opened only if needed:
            by idempotent handlers, object handlers and pipelines.
        spark: The session of its pipelines, or a function that returns one, called when Spark is needed. It is neither
            changed nor stopped. Default: the setting ``spark.session``.
        settings: The settings to use. Default: Penstock's defaults, without reading the environment or penstock.toml;
            see `from_config`.
        on_error: Called with ``(exception, context)`` for each failure.
        listeners: Called with every event.
        name: Part of the identity of everything that the ledger records. Default: the setting ``app_name``, else the
            module that creates the app.

    Raises:
        UsageError: An option is unknown, or the name is empty, too long or not printable.
    """

    @checks_options("App", hint=_setting_hint)
    def __init__(
        self,
        *,
        broker: str | Broker | None = None,
        ledger: str | Any | None = None,
        spark: "GivenSpark | None" = None,
        settings: Settings | None = None,
        on_error: ErrorHook | None = None,
        listeners: Sequence[Listener] = (),
        name: str | None = None,
    ) -> None:
        super().__init__()
        given = {
            "broker": broker if isinstance(broker, str) else None,
            "ledger": ledger if isinstance(ledger, str) else None,
        }
        base = settings or Settings.model_construct()
        self.settings = base.model_copy(update={name: value for name, value in given.items() if value is not None})
        given_name = self.settings.app_name if name is None else checked_name(name)
        self.is_named = given_name is not None
        self.name = calling_module() if given_name is None else given_name
        self.spark = spark
        self.on_error = on_error
        self.listeners = tuple(listeners)
        self.worker = worker_id()
        self.incidents = EventForwarder()  # forwards the broker's events; a worker connects it to its listeners
        self._lock = threading.Lock()
        self._sending = AsideThreads("send", threads_max=SENDING_THREADS_MAX)
        self._broker: Broker | None = None if broker is None or isinstance(broker, str) else broker  # under the lock
        self._ledger: Any | None = None if ledger is None or isinstance(ledger, str) else ledger  # as above
        self._opened_elsewhere = self._broker is not None  # as above
        self._opened: Settings | None = None  # as above: the settings that the broker was opened with
        self._inherited: Settings | None = None  # as above; after a fork: the parent's `_opened`
        self._stand_in: Any = None  # as above: a test's broker
        self._tracing: Tracing | None = None  # as above
        self._senders: dict[Queue[Any] | str, _Sender] = {}  # as above
        _apps.add(self)
        renew_in_copies(self)
        for hook in _new_app_hooks[-1:]:
            hook(self)

    def begin_in_copy(self) -> None:
        """Take a new worker id and reopen the broker on first use. Called in the child after `os.fork`."""
        self.worker = worker_id()
        self._lock = threading.Lock()
        if not self._opened_elsewhere and self._broker is not None:
            leave_to_parent(self._broker)
            self._broker, self._inherited = None, self._opened

    @classmethod
    def from_config(
        cls,
        *,
        spark: "GivenSpark | None" = None,
        on_error: ErrorHook | None = None,
        listeners: Sequence[Listener] = (),
        name: str | None = None,
        **given: Any,
    ) -> Self:
        """Return an app configured from the environment and penstock.toml.

        Args:
            spark: As for `App`.
            on_error: As for `App`.
            listeners: As for `App`.
            name: As for `App`.
            **given: Settings that override both sources.

        Raises:
            ConfigurationError: If a setting is invalid.
        """
        return cls(settings=load_settings(**given), spark=spark, on_error=on_error, listeners=listeners, name=name)

    @property
    def broker(self) -> Broker:
        """The broker, opened on first use."""
        from penstock.app.brokers import open_broker, with_absolute_path

        with self._lock:
            if self._broker is None:
                settings = self._inherited or self.settings
                self._broker = open_broker(settings, holder=self.worker, emit=self.incidents)
                self._opened = with_absolute_path(settings)
            if self.settings.tracing_enabled:
                self._broker = self._traces().broker(self._broker)
            return self._broker

    @property
    def tracing(self) -> Tracing:
        """The tracing according to the settings. Raises `ConfigurationError` if OpenTelemetry is missing."""
        with self._lock:
            return self._traces()

    @property
    def address(self) -> str | None:
        """The broker's address without its password; None if the app was given an open broker."""
        with self._lock:
            return None if self._opened_elsewhere else str(shown("broker", self.settings.broker))

    @property
    def ledger(self) -> Any:
        """The `penstock.ledger.Ledger`, opened on first use."""
        from penstock.app.backends import open_ledger

        with self._lock:
            if self._ledger is None:
                self._ledger = open_ledger(self.settings, probe=killing_probe(self.settings.kill_at))
            return self._ledger

    def swap(self, *, broker: Any, ledger: Any) -> tuple[Any, Any]:
        """Replace the broker and the ledger and return the previous pair. None: reopen from the settings. For tests."""
        with self._lock:
            before = (self._broker, self._ledger)
            self._broker, self._ledger = broker, ledger
            self._opened_elsewhere = broker is not None
            self._stand_in = broker
        return before

    @property
    def stand_in(self) -> Any:
        """The broker that a test put in place of the app's own, or None."""
        return self._stand_in

    def close(self) -> None:
        """Close the broker, the ledger and the relays' databases. The app can be used again afterwards."""
        with self._lock:
            broker, ledger, self._broker, self._ledger = self._broker, self._ledger, None, None
        for opened in (broker, ledger):
            if opened is not None:
                opened.close()
        for relay in self.relays:
            relay.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, service: Service) -> None:
        """Add a service as `Handlers.add` does, and bind a pipeline to this app."""
        super().add(service)
        if isinstance(service, PipelineService):
            service.pipeline.belongs_to(self)

    # Sending

    def send(
        self,
        queue: Queue[Any] | str,
        body: Any,
        *,
        delay: Duration | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> str:
        """Send one message to a queue, durably.

        Args:
            queue: The queue or its name.
            body: The message body, checked against the queue's model.
            delay: How long the message stays invisible: seconds, text such as "5 min", or a timedelta.
            group: The group (tenant) the message belongs to.
            deduplication_id: The broker drops a second message with this id within its deduplication window, if it has
                one.
            attributes: Additional message attributes.

        Returns:
            The message id.

        Raises:
            UsageError: If the body does not fit the queue's model, or an attribute has a name that Penstock uses.
            ConfigurationError: If the broker can never accept the message, or the queue does not exist.
            TemporaryError: If the broker is unavailable. The message may have been sent.
        """
        outgoing = self.outgoing(
            queue, body, delay=delay, group=group, deduplication_id=deduplication_id, attributes=attributes
        )
        return self.broker.send(_name(queue), [outgoing])[0]

    async def send_async(self, queue: Queue[Any] | str, body: Any, **options: Any) -> str:
        """Send one message as `send` does, without blocking the event loop."""
        return await self._sending.run(partial(self.send, queue, body, **options))

    def send_many(
        self,
        queue: Queue[Any] | str,
        bodies: Iterable[Any],
        *,
        delay: Duration | None = None,
        group: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> list[str]:
        """Send many messages to a queue, 1,000 per broker call.

        A call succeeds or fails as a whole, except on SQS: it sends up to ten messages per request and may refuse
        single messages. Messages sent before a failure stay sent.

        Args:
            queue: The queue or its name.
            bodies: The message bodies, checked against the queue's model.
            delay: How long the messages stay invisible: seconds, text such as "5 min", or a timedelta.
            group: The group (tenant) the messages belong to.
            attributes: Additional attributes of each message.

        Returns:
            The message ids, in the order of ``bodies``.

        Raises:
            UsageError: If a body does not fit the queue's model, or an attribute has a name that Penstock uses.
            ConfigurationError: If the broker can never accept a message, or the queue does not exist.
            TemporaryError: If the broker is unavailable. Messages of the current call may have been sent.
        """
        ids: list[str] = []
        chunk: list[Outgoing] = []
        for body in bodies:
            chunk.append(self.outgoing(queue, body, delay=delay, group=group, attributes=attributes))
            if len(chunk) == SEND_CHUNK:
                ids += self.broker.send(_name(queue), chunk)
                chunk = []
        if chunk:
            ids += self.broker.send(_name(queue), chunk)
        return ids

    async def send_many_async(self, queue: Queue[Any] | str, bodies: Iterable[Any], **options: Any) -> list[str]:
        """Send many messages as `send_many` does, without blocking the event loop."""
        return await self._sending.run(partial(self.send_many, queue, bodies, **options))

    def announce(self, queue: Queue[Any] | str, folder: str) -> int:
        """Enqueue a notification for every object below a folder or s3://BUCKET/PREFIX, except hidden files.

        For object handlers and pipelines, which process each object version once regardless of the number of
        notifications.

        Args:
            queue: The queue or its name.
            folder: A folder or s3://BUCKET/PREFIX.

        Returns:
            The number of notifications sent.

        Raises:
            UsageError: If the folder does not exist, or the address is invalid.
            TemporaryError: If the broker or the store is unavailable. Notifications sent before stay sent.
        """
        from penstock.app.pending import announce_all

        count = 0
        for chunk in source_at(folder, self.settings.aws).scan().chunks():
            announce_all(self.broker, _name(queue), chunk)
            count += len(chunk)
        return count

    def outgoing(
        self,
        queue: Queue[Any] | str,
        body: Any,
        *,
        delay: Duration | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> Outgoing:
        """Return the message that `send` would send."""
        sender = self._sender(queue)
        # Message ids are not copied from one message to the next: the inbox would drop the copies as duplicates.
        clash = sorted((sender.attributes.keys() | IDENTITY_ATTRIBUTES) & attributes.keys())
        if clash:
            raise UsageError(f"The attribute {clash[0]} is reserved for Penstock; leave it out, or rename it.")
        # A replay adds the origin. If it were refused, handlers that forward all attributes would fail in replays.
        added = {name: value for name, value in attributes.items() if name != ORIGIN_ATTRIBUTE}
        if deduplication_id:
            added[DEDUPLICATION_ATTRIBUTE] = deduplication_id  # for the inbox: the broker's window ends, or it has none
        return Outgoing(
            body=sender.codec.encode(body),
            # Unchanged if there is nothing to add: brokers recognise the same mapping and serialise it once for many
            # messages.
            attributes={**sender.attributes, **added} if added else sender.attributes,
            group=group,
            deduplication_id=deduplication_id,
            delay_seconds=0.0 if not delay else seconds_of("delay", delay),
        )

    def outgoing_in_trace(self, queue: Queue[Any] | str, body: Any, **options: "Unpack[MessageOptions]") -> Outgoing:
        """Return the message of `outgoing` with the caller's trace context, which the relay would not have."""
        outgoing = self.outgoing(queue, body, **options)
        carrier = self.tracing.carrier()
        return replace(outgoing, attributes={**carrier, **outgoing.attributes}) if carrier else outgoing

    def _traces(self) -> Tracing:
        """Return the tracing, created on first use. The caller holds the lock."""
        if self._tracing is None:
            from penstock.app.tracing import tracing_of

            self._tracing = tracing_of(self.settings, worker=self.worker)
        return self._tracing

    def _sender(self, queue: Queue[Any] | str) -> _Sender:
        sender = self._senders.get(queue)
        if sender is None:
            codec: BodyCodec[Any] = BodyCodec(self._contract(queue))
            sender = _Sender(codec=codec, attributes=codec.attributes())
            with self._lock:
                self._senders[queue] = sender
        return sender

    def _contract(self, queue: Queue[Any] | str) -> Queue[Any]:
        """Return the queue, or for a name the declared queue of that name if there is one."""
        if not isinstance(queue, str):
            return queue
        declared = [declaration.queue for declaration in self.declarations if declaration.queue.name == queue]
        if not declared:
            self._warn_of_likely_typo(queue)
        return declared[0] if declared else Queue(queue)

    def _warn_of_likely_typo(self, queue: str) -> None:
        """Warn of a name that resembles a queue of this app. Called once per name, and asks no broker."""
        served = [service.queue_name for service in self.services]
        if queue in served or names_dead_letters(queue) or ":" in queue:  # URLs and ARNs always resemble each other
            return
        close = get_close_matches(queue, served, n=1, cutoff=TYPO_SIMILARITY_MIN)
        if close and _without_digits(close[0]) != _without_digits(queue):  # else shard-1 and shard-2
            warnings.warn(
                f"This app has no handler for the queue {queue}. Did you mean {close[0]}? For a queue of another app, "
                f"give Queue({queue!r}) instead of its name.",
                UserWarning,
                stacklevel=6,  # the caller of `send`
            )


def apps_of_process() -> Sequence[App]:
    """Return every live app of this process. For tests."""
    return tuple(_apps)


@contextmanager
def on_new_app(hook: "Callable[[App], None]") -> Iterator[None]:
    """Call ``hook`` with each app that is created inside the block. For tests."""
    _new_app_hooks.append(hook)
    try:
        yield
    finally:
        _new_app_hooks.remove(hook)


def _name(queue: Queue[Any] | str) -> str:
    return queue if isinstance(queue, str) else queue.name


def _without_digits(name: str) -> str:
    return "".join(character for character in name if not character.isdigit())

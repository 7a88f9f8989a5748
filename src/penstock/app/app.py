"""`App`: handlers and pipelines, and the broker and ledger they stand on. A value, not a global."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from weakref import WeakSet

from penstock.app.context import EventForwarder
from penstock.app.handlers import Handlers
from penstock.app.naming import checked_name, module_that_calls, worker_id
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service
from penstock.app.transactions import Transactional
from penstock.config import Settings, load_settings, shown
from penstock.errors import UsageError
from penstock.events import Listener
from penstock.handlers.durations import Duration, seconds_of
from penstock.messaging.broker import Broker
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

SEND_CHUNK = 1_000  # messages handed to the broker in one call

# Every app of this process, for tests alone: a handler under test may send through any of them.
_apps: "WeakSet[App]" = WeakSet()
_new_app_hooks: "list[Callable[[App], None]]" = []  # for tests alone: the last one is called with each new app
SENDING_THREADS_MAX = 32  # of `send_async` and `send_many_async`


def _setting(name: str) -> str | None:
    """Return what to do about an option that is a setting."""
    if name not in Settings.model_fields:
        return None
    return f"{name} is a setting: App.from_config({name}=...), PENSTOCK_{name.upper()} or penstock.toml."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    codec: BodyCodec[Any]
    attributes: Attributes


class App(Handlers, Transactional):
    """What a worker serves, and what senders send through.

    ``broker`` and ``ledger`` are addresses, or things opened already; by default those of the settings. The ledger is
    opened only where something needs it: idempotent handlers, object handlers and pipelines. ``on_error(exception,
    context)`` hears of failures; ``listeners`` of every event. ``name`` is part of the identity of what the ledger
    records; without one it is the setting ``app_name``, or else the module that makes the app.
    """

    @checks_options("App", hint=_setting)
    def __init__(
        self,
        *,
        broker: str | Broker | None = None,
        ledger: "str | Any | None" = None,
        settings: Settings | None = None,
        on_error: ErrorHook | None = None,
        listeners: Sequence[Listener] = (),
        name: str | None = None,
    ) -> None:
        super().__init__()
        Transactional.__init__(self)
        given = {
            "broker": broker if isinstance(broker, str) else None,
            "ledger": ledger if isinstance(ledger, str) else None,
        }
        base = settings or Settings.model_construct()
        self.settings = base.model_copy(update={name: value for name, value in given.items() if value is not None})
        given_name = self.settings.app_name if name is None else checked_name(name)
        self.is_named = given_name is not None
        self.name = module_that_calls() if given_name is None else given_name
        self.on_error = on_error
        self.listeners = tuple(listeners)
        self.worker = worker_id()
        self.incidents = EventForwarder()  # what the broker tells of; a worker passes it on to its listeners
        self._lock = threading.Lock()
        self._sending = AsideThreads("send", threads_max=SENDING_THREADS_MAX)
        self._broker: Broker | None = None if broker is None or isinstance(broker, str) else broker  # under the lock
        self._ledger: Any | None = None if ledger is None or isinstance(ledger, str) else ledger  # as above
        self._opened_elsewhere = self._broker is not None  # as above
        self._opened: Settings | None = None  # as above: the settings that the broker was opened with
        self._inherited: Settings | None = None  # as above: the same, of the parent process, after a fork
        self._stand_in: Any = None  # as above: a test's broker
        self._tracing: Tracing | None = None  # as above
        self._senders: dict[Queue[Any] | str, _Sender] = {}  # as above
        _apps.add(self)
        renew_in_copies(self)
        for hook in _new_app_hooks[-1:]:
            hook(self)

    def begin_in_copy(self) -> None:
        """Get a worker id, and a connection to the same broker, of its own. Called in the child after `os.fork`."""
        self.worker = worker_id()
        self._lock = threading.Lock()
        if not self._opened_elsewhere and self._broker is not None:
            leave_to_parent(self._broker)
            self._broker, self._inherited = None, self._opened

    @classmethod
    def from_config(
        cls,
        *,
        on_error: ErrorHook | None = None,
        listeners: Sequence[Listener] = (),
        name: str | None = None,
        **given: Any,
    ) -> Self:
        """An app with the settings of environment and penstock.toml; ``given`` go before both."""
        return cls(settings=load_settings(**given), on_error=on_error, listeners=listeners, name=name)

    @property
    def broker(self) -> Broker:
        """The broker, opened when first asked for."""
        from penstock.app.backends import open_broker, with_whole_path

        with self._lock:
            if self._broker is None:
                settings = self._inherited or self.settings
                self._broker = open_broker(settings, holder=self.worker, tell=self.incidents)
                self._opened = with_whole_path(settings)
            if self.settings.traces:
                self._broker = self._traces().broker(self._broker)
            return self._broker

    @property
    def tracing(self) -> Tracing:
        """What traces, where the settings say so. Raises `ConfigurationError` where OpenTelemetry is missing."""
        with self._lock:
            return self._traces()

    @property
    def address(self) -> str | None:
        """The broker's, as people may see it; None where the app was given a broker and not an address."""
        with self._lock:
            return None if self._opened_elsewhere else str(shown("broker", self.settings.broker))

    @property
    def ledger(self) -> Any:
        """The `penstock.ledger.Ledger`, opened when first asked for."""
        from penstock.app.backends import open_ledger
        from penstock.app.kill import killing_probe

        with self._lock:
            if self._ledger is None:
                self._ledger = open_ledger(self.settings, probe=killing_probe(self.settings.kill_at))
            return self._ledger

    def swap(self, *, broker: Any, ledger: Any) -> tuple[Any, Any]:
        """Stand on these from now on (None: on those of the settings); answers what it stood on. For tests."""
        with self._lock:
            before = (self._broker, self._ledger)
            self._broker, self._ledger = broker, ledger
            self._opened_elsewhere = broker is not None
            self._stand_in = broker
        return before

    @property
    def stand_in(self) -> Any:
        """The broker that a test put in the place of the app's own, or None."""
        return self._stand_in

    def close(self) -> None:
        """Give back connections. The app can be used again."""
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
        """As `Handlers.add`; a pipeline knows from here on which app it can be run by."""
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
        """Put one message into the queue, durably; answers its id.

        ``delay``: invisible for so long. ``group``: the tenant it belongs to. ``deduplication_id``: a second send of
        the same id within the broker's window is dropped. Raises `UsageError` for a body that does not fit the queue's
        model, `TemporaryError` when the broker is away.
        """
        outgoing = self.outgoing(
            queue, body, delay=delay, group=group, deduplication_id=deduplication_id, attributes=attributes
        )
        return self.broker.send(_name(queue), [outgoing])[0]

    async def send_async(self, queue: Queue[Any] | str, body: Any, **options: Any) -> str:
        """As `send`, without blocking the event loop."""
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
        """Put many messages into the queue, in calls of a thousand; answers their ids, in order.

        Each call is taken as a whole or not at all; on SQS ten messages are, at most, and single ones of these may be
        refused. What was sent before a failure stays sent.
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
        """As `send_many`, without blocking the event loop."""
        return await self._sending.run(partial(self.send_many, queue, bodies, **options))

    def announce(self, queue: Queue[Any] | str, folder: str) -> int:
        """Send a notification for everything below a folder or s3://BUCKET/PREFIX; answers how many. For object
        handlers and pipelines, which take each version once however often it is announced. What is hidden is left."""
        from penstock.app.pending import announce_all
        from penstock.app.sources import source_at

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
        """The message that `send` would send."""
        sender = self._sender(queue)
        # A message's identity is its own: passed on to others, the inbox would take them for it and drop them.
        clash = sorted((sender.attributes.keys() | IDENTITY_ATTRIBUTES) & attributes.keys())
        if clash:
            raise UsageError(f"The attribute {clash[0]} is Penstock's own; leave it out, or give another name.")
        # A replay adds the origin. If it were refused, handlers that pass on all attributes would fail in replays.
        added = {name: value for name, value in attributes.items() if name != ORIGIN_ATTRIBUTE}
        if deduplication_id:
            added[DEDUPLICATION_ATTRIBUTE] = deduplication_id  # for the inbox: brokers forget it, or never looked
        return Outgoing(
            body=sender.codec.encode(body),
            # As it is where nothing is added: brokers know one mapping again, and write it once for many messages.
            attributes={**sender.attributes, **added} if added else sender.attributes,
            group=group,
            deduplication_id=deduplication_id,
            delay_seconds=0.0 if not delay else seconds_of("delay", delay),
        )

    def outgoing_in_trace(
        self,
        queue: Queue[Any] | str,
        body: Any,
        *,
        delay: Duration | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> Outgoing:
        """As `outgoing`, with the trace that the caller is in: whoever sends it later is in none of the caller's."""
        outgoing = self.outgoing(
            queue, body, delay=delay, group=group, deduplication_id=deduplication_id, attributes=attributes
        )
        carrier = self.tracing.carrier()
        return replace(outgoing, attributes={**carrier, **outgoing.attributes}) if carrier else outgoing

    def _traces(self) -> Tracing:
        """Under the lock."""
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
        """A queue named by text is the declared one of that name, if there is one."""
        if not isinstance(queue, str):
            return queue
        declared = [declaration.queue for declaration in self.declarations if declaration.queue.name == queue]
        return declared[0] if declared else Queue(queue)


def apps_of_process() -> Sequence[App]:
    """Return every app that this process has made and still uses. For tests."""
    return tuple(_apps)


@contextmanager
def on_new_app(hook: "Callable[[App], None]") -> Iterator[None]:
    """Call ``hook`` with each app that is made while the block lasts. For tests."""
    _new_app_hooks.append(hook)
    try:
        yield
    finally:
        _new_app_hooks.remove(hook)


def _name(queue: Queue[Any] | str) -> str:
    return queue if isinstance(queue, str) else queue.name

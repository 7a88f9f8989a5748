"""Connect the automatic replayer to an app: which DLQs it serves, to which queues, and with which policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.brokers import capabilities_of, check_queues
from penstock.app.queues import check_known, check_shared
from penstock.app.service import ServiceContext
from penstock.config import ReplayQueue, Settings
from penstock.dead_letters.policy import ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.dead_letters.replayer import ReplayContext, ReplayHandler, ReplayLogCleanup, keep_seconds
from penstock.dead_letters.sample import SampleSettings
from penstock.errors import ConfigurationError, QueueMissing, UsageError
from penstock.messaging.broker import Broker, listed_name, names_dead_letters, names_final_dlq
from penstock.messaging.clock import Clock
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer

if TYPE_CHECKING:
    from penstock.app.app import App

_NO_OVERRIDES = ReplayQueue()
MESSAGES_MAX = 100  # per batch; each needs a log entry, a message and a mark
_BYTES_MAX = 16 * 1024**2  # per batch


def with_sample(settings: Settings, sample: SampleSettings) -> Settings:
    """Return the settings, with the AWS sample's values for those that are not set here."""
    from_sample = {
        "dead_letters_max_replays": sample.replays_max,
        "dead_letters_replay_base": sample.base_seconds,
        "dead_letters_max_replay_wait": sample.cap_seconds,
    }
    are_set = settings.model_fields_set
    update = {name: value for name, value in from_sample.items() if value is not None and name not in are_set}
    return settings.model_copy(update=update)


def replay_policy(settings: Settings, queue: str) -> ReplayPolicy | None:
    """Return the policy of one queue, given by name, URL or ARN; None if its dead letters are not replayed."""
    by_queue = settings.dead_letters_replay_queues
    own = by_queue.get(queue) or by_queue.get(listed_name(queue)) or _NO_OVERRIDES
    if own.off:
        return None
    return ReplayPolicy(
        replays_max=settings.dead_letters_max_replays if own.max_replays is None else own.max_replays,
        base_seconds=settings.dead_letters_replay_base if own.replay_base is None else own.replay_base,
        cap_seconds=settings.dead_letters_max_replay_wait if own.max_replay_wait is None else own.max_replay_wait,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedQueue:
    """A DLQ, its final DLQ, and the queues that its messages return to."""

    queue: str
    final_dlq: str
    sources: tuple[ReplayTarget, ...]


def replayed_queues(app: "App", queues: Iterable[str] | None = None) -> Sequence[str]:
    """Return the queues to replay: the named ones, else those of the settings, else all with a handler.

    Raises `UsageError` for the name of a DLQ, and `ConfigurationError` if there is no queue at all.
    """
    named = list(queues or app.settings.worker_queues)
    for queue in named:
        if _is_dlq(queue):
            raise UsageError(
                f"{queue} is a dead-letter queue by its name; name the queue whose dead letters are to be replayed."
            )
    found = named or _handled(app)
    if not found:
        raise ConfigurationError(
            "There is no queue whose dead letters can be replayed: the app has no handlers, and no queue is named; "
            "name some with --queues."
        )
    return found


def dlqs_to_serve(app: "App", queues: Iterable[str] | None = None) -> Sequence[ReplayedQueue]:
    """Return `replayed_dlqs` for a process that only replays.

    Raises `ConfigurationError` if there are none, and `UsageError` for a queue that has no handler and that the broker
    does not know.
    """
    check_shared(app.settings)
    names = replayed_queues(app, queues)
    if app.broker.capabilities.creates_queues:  # otherwise `check_dlqs` reports missing queues
        for name in set(names).difference(_handled(app)):
            check_known(app.broker, name)
    dlqs = replayed_dlqs(app, names)
    if not dlqs:
        raise ConfigurationError(
            f"No dead letters of {', '.join(names)} are replayed automatically: the settings turn replays off, or they "
            "go directly to the final DLQ."
        )
    return dlqs


def replayed_dlqs(app: "App", queues: Sequence[str]) -> Sequence[ReplayedQueue]:
    """Return the DLQs of these queues, one entry per DLQ.

    If other queues of the app share a DLQ, their messages are replayed to them too. Raises `ConfigurationError` if a
    DLQ has a handler, or if messages in the final DLQ would be replayed again.
    """
    broker, settings = app.broker, app.settings
    handled = _handled(app)
    _check_named(broker, settings, known={*queues, *handled})
    wanted = [queue for queue in queues if not _is_dlq(queue) and replay_policy(settings, queue) is not None]
    dlqs = {queue: broker.dead_letter_queue(queue) for queue in dict.fromkeys([*wanted, *handled])}
    served = dict.fromkeys(dlqs[queue] for queue in wanted if not names_final_dlq(dlqs[queue]))
    taken = sorted({listed_name(dlq) for dlq in served} & {listed_name(queue) for queue in handled})
    if taken:
        raise ConfigurationError(
            f"The dead letters in {taken[0]} have a handler in this app, so a replayer would compete with it; set "
            "off = true for their queue in dead_letters.replay_queues, or remove the handler."
        )
    found = [
        ReplayedQueue(
            queue=dlq,
            final_dlq=broker.dead_letter_queue(dlq),
            sources=tuple(_sources(broker, settings, [queue for queue, where in dlqs.items() if where == dlq])),
        )
        for dlq in served
    ]
    for each in found:
        if listed_name(each.final_dlq) in {listed_name(queue) for queue in (each.queue, *dlqs)}:
            raise ConfigurationError(
                f"The dead letters in {each.queue} that fail again would go to {each.final_dlq} and be replayed for "
                "ever; give their DLQ another dead-letter queue."
            )
    return found


def check_dlqs(dlqs: Sequence[ReplayedQueue], settings: Settings, *, clock: Clock) -> None:
    """Raise `ConfigurationError` for a queue that does not exist, before anything is received.

    Only brokers that do not create queues are checked.
    """
    if capabilities_of(settings).creates_queues:
        return
    for dlq in dlqs:
        try:
            check_queues([source.queue for source in dlq.sources], settings, clock=clock, waits=True)
            check_queues([dlq.queue], settings, clock=clock, waits=True)
        except QueueMissing as error:
            raise ConfigurationError(f"Dead letters cannot be replayed: {error}") from error
        try:
            check_queues([dlq.final_dlq], settings, clock=clock, waits=True)
        except QueueMissing as error:
            raise ConfigurationError(
                f"The dead letters in {dlq.queue} that fail again have no final DLQ: there is no queue "
                f"{dlq.final_dlq}; create it, or give {dlq.queue} a redrive policy that names another."
            ) from error


def replay_consumers(dlqs: Sequence[ReplayedQueue], context: ServiceContext) -> Sequence[Consumer]:
    """Return the consumers that serve these DLQs. Each has one batch in flight, so that handlers keep their slots."""
    if not dlqs:
        return ()
    broker = context.broker
    retentions: Mapping[str, float | None] = {dlq.queue: broker.retention_seconds(dlq.queue) for dlq in dlqs}
    log = context.ledger().replays
    older_than_seconds = keep_seconds(retentions.values())
    forgetting = ReplayLogCleanup(
        lambda limit: log.forget(older_than_seconds=older_than_seconds, limit=limit),
        clock=context.clock,
        random=context.random,
    )
    return [
        Consumer(
            queue=dlq.queue,
            handler=ReplayHandler(
                ReplayContext(
                    sources=ReplayTargets(dlq.sources),
                    retention_seconds=retentions[dlq.queue],
                    broker=broker,
                    log=log,
                    bus=context.bus,
                    clock=context.clock,
                    random=context.random,
                    probe=context.probe,
                    ledger_watch=context.outage,
                ),
                forgetting,
            ),
            gate=context.outage.gate(dlq.queue),
            limits=Limits(messages_max=MESSAGES_MAX, bytes_max=_BYTES_MAX, wait_seconds=0.0),
            in_flight_max=1,
            fetch_max=MESSAGES_MAX,
        )
        for dlq in dlqs
    ]


def _check_named(broker: Broker, settings: Settings, *, known: set[str]) -> None:
    """Raise `ConfigurationError` for an unknown queue in the settings.

    With a typo there, the intended queue would get the default policy.
    """
    for queue in sorted(settings.dead_letters_replay_queues.keys() - known):
        if _is_dlq(queue):
            raise ConfigurationError(
                f"The setting dead_letters.replay_queues.{queue} names a DLQ; name the queue that it belongs to."
            )
        # On SQS a worker may lack the permission to list queues, and the settings may also name queues of other apps.
        if broker.capabilities.creates_queues and queue not in broker.queue_names():
            raise ConfigurationError(
                f"The setting dead_letters.replay_queues.{queue} names no queue: neither the app nor the broker has it."
            )


def _is_dlq(queue: str) -> bool:
    return names_dead_letters(listed_name(queue))


def _handled(app: "App") -> Sequence[str]:
    return [service.queue_name for service in app.services]


def _sources(broker: Broker, settings: Settings, queues: Iterable[str]) -> Iterable[ReplayTarget]:
    for queue in queues:
        policy = replay_policy(settings, queue)
        if policy is not None:
            yield ReplayTarget(queue=queue, policy=policy, retention_seconds=broker.retention_seconds(queue))

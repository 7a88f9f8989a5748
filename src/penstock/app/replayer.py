"""Connect the automatic replayer to an app: which DLQs it serves, to which queues, and with which policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.backends import check_queues, is_sqs
from penstock.app.queues import check_known, check_shared
from penstock.app.service import ServiceContext
from penstock.config import ReplayQueue, Settings
from penstock.dead_letters.policy import ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.dead_letters.replayer import ReplayContext, ReplayHandler, ReplayLogCleanup, keep_seconds
from penstock.dead_letters.sample import SampleSettings
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.broker import Broker, listed_name, names_dead_letters, names_second_tier
from penstock.messaging.clock import Clock
from penstock.worker.batcher import Limits
from penstock.worker.line import Line

if TYPE_CHECKING:
    from penstock.app.app import App


_AS_ALL = ReplayQueue()


def with_sample(settings: Settings, sample: SampleSettings) -> Settings:
    """Return the settings, with the AWS sample's values for those that are not set here."""
    theirs = {
        "replays_max": sample.replays_max,
        "replay_base_seconds": sample.base_seconds,
        "replay_cap_seconds": sample.cap_seconds,
    }
    ours = settings.model_fields_set
    update = {name: value for name, value in theirs.items() if value is not None and name not in ours}
    return settings.model_copy(update=update)


def replay_policy(settings: Settings, queue: str) -> ReplayPolicy | None:
    """Return the policy of one queue, given by name, URL or ARN; None if its dead letters are not replayed."""
    own = settings.replay_queues.get(queue) or settings.replay_queues.get(listed_name(queue)) or _AS_ALL
    if own.off:
        return None
    return ReplayPolicy(
        replays_max=settings.replays_max if own.replays_max is None else own.replays_max,
        base_seconds=settings.replay_base_seconds if own.base_seconds is None else own.base_seconds,
        cap_seconds=settings.replay_cap_seconds if own.cap_seconds is None else own.cap_seconds,
    )


LETTERS_MAX = 100  # per batch; each needs a log entry, a message and a mark
_BYTES_MAX = 16 * 1024**2  # per batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedQueue:
    """A DLQ, its final DLQ, and the queues that its messages return to."""

    queue: str
    second_tier: str
    sources: tuple[ReplayTarget, ...]


def replayed_queues(app: "App", queues: Iterable[str] | None = None) -> Sequence[str]:
    """Return the queues to replay: the named ones, else those of the settings, else all with a handler.

    Raises `UsageError` for the name of a DLQ, and `ConfigurationError` if there is no queue at all.
    """
    named = list(queues or app.settings.queues)
    for queue in named:
        if _is_tier(queue):
            raise UsageError(
                f"{queue} holds dead letters by its name; name the queue whose dead letters are to come back to it."
            )
    found = named or _handled(app)
    if not found:
        raise ConfigurationError(
            "There is no queue whose dead letters could come back: the app has no handlers, and none is named; name "
            "some with --queues."
        )
    return found


def tiers_to_serve(app: "App", queues: Iterable[str] | None = None) -> Sequence[ReplayedQueue]:
    """Return `first_tiers` for a process that only replays.

    Raises `ConfigurationError` if there are none, and `UsageError` for a queue that has no handler and that the broker
    does not know.
    """
    check_shared(app.settings)
    names = replayed_queues(app, queues)
    if app.broker.capabilities.creates_queues:  # otherwise `check_tiers` reports missing queues
        for name in set(names).difference(_handled(app)):
            check_known(app.broker, name)
    tiers = first_tiers(app, names)
    if not tiers:
        raise ConfigurationError(
            f"No dead letters of {', '.join(names)} come back by themselves: the settings say off, or they go straight "
            "to the second tier."
        )
    return tiers


def first_tiers(app: "App", queues: Sequence[str]) -> Sequence[ReplayedQueue]:
    """Return the DLQs of these queues, one entry per DLQ.

    If other queues of the app share a DLQ, their messages are replayed to them too. Raises `ConfigurationError` if a
    DLQ has a handler, or if messages in the final DLQ would be replayed again.
    """
    broker, settings = app.broker, app.settings
    handled = _handled(app)
    _check_named(broker, settings, known={*queues, *handled})
    wanted = [queue for queue in queues if not _is_tier(queue) and replay_policy(settings, queue) is not None]
    tiers = {queue: broker.dead_letter_queue(queue) for queue in dict.fromkeys([*wanted, *handled])}
    served = dict.fromkeys(tiers[queue] for queue in wanted if not names_second_tier(tiers[queue]))
    taken = sorted({listed_name(tier) for tier in served} & {listed_name(queue) for queue in handled})
    if taken:
        raise ConfigurationError(
            f"The dead letters in {taken[0]} have a handler in this app, which a replayer would take them from; set "
            "off = true for their queue in replay_queues, or let the handler go."
        )
    found = [
        ReplayedQueue(
            queue=tier,
            second_tier=broker.dead_letter_queue(tier),
            sources=tuple(_sources(broker, settings, [queue for queue, where in tiers.items() if where == tier])),
        )
        for tier in served
    ]
    for each in found:
        if listed_name(each.second_tier) in {listed_name(queue) for queue in (each.queue, *tiers)}:
            raise ConfigurationError(
                f"The dead letters in {each.queue} that no replay helps would go to {each.second_tier} and come back "
                "for ever; let another queue be the dead-letter queue of their dead-letter queue."
            )
    return found


def check_tiers(tiers: Sequence[ReplayedQueue], settings: Settings, *, clock: Clock) -> None:
    """Raise `ConfigurationError` for a queue that does not exist, before anything is received.

    Only SQS is checked; other brokers create queues on use.
    """
    if not is_sqs(settings.broker):
        return
    from penstock.brokers.sqs.client import QueueMissing

    for tier in tiers:
        try:
            check_queues([source.queue for source in tier.sources], settings, clock=clock, waits=True)
            check_queues([tier.queue], settings, clock=clock, waits=True)
        except QueueMissing as error:
            raise ConfigurationError(f"Dead letters cannot be replayed: {error}") from error
        try:
            check_queues([tier.second_tier], settings, clock=clock, waits=True)
        except QueueMissing as error:
            raise ConfigurationError(
                f"The dead letters in {tier.queue} that no replay helps have no place to go: there is no queue "
                f"{tier.second_tier}; create it, or give {tier.queue} a redrive policy that names another."
            ) from error


def replay_lines(tiers: Sequence[ReplayedQueue], host: ServiceContext) -> Sequence[Line]:
    """Return the lines that serve these DLQs. Each has one batch in flight, so that handlers keep their slots."""
    if not tiers:
        return ()
    broker = host.broker
    retentions: Mapping[str, float | None] = {tier.queue: broker.retention_seconds(tier.queue) for tier in tiers}
    log = host.ledger().replays
    older_than_seconds = keep_seconds(retentions.values())
    forgetting = ReplayLogCleanup(
        lambda limit: log.forget(older_than_seconds=older_than_seconds, limit=limit),
        clock=host.clock,
        random=host.random,
    )
    return [
        Line(
            queue=tier.queue,
            handler=ReplayHandler(
                ReplayContext(
                    sources=ReplayTargets(tier.sources),
                    retention_seconds=retentions[tier.queue],
                    broker=broker,
                    log=log,
                    bus=host.bus,
                    clock=host.clock,
                    random=host.random,
                    probe=host.probe,
                    ledger_watch=host.outage,
                ),
                forgetting,
            ),
            gate=host.outage.gate(tier.queue),
            limits=Limits(messages_max=LETTERS_MAX, bytes_max=_BYTES_MAX, wait_seconds=0.0),
            in_flight_max=1,
            fetch_max=LETTERS_MAX,
        )
        for tier in tiers
    ]


def _check_named(broker: Broker, settings: Settings, *, known: set[str]) -> None:
    """Raise `ConfigurationError` for an unknown queue in the settings.

    With a typo there, the intended queue would get the default policy.
    """
    for queue in sorted(settings.replay_queues.keys() - known):
        if _is_tier(queue):
            raise ConfigurationError(
                f"The setting replay_queues.{queue} names a queue of dead letters; name the queue whose they are."
            )
        # On SQS a worker may lack the permission to list queues, and the settings may also name queues of other apps.
        if broker.capabilities.creates_queues and queue not in broker.queue_names():
            raise ConfigurationError(
                f"The setting replay_queues.{queue} names no queue: the app has none of that name, nor has the broker."
            )


def _is_tier(queue: str) -> bool:
    return names_dead_letters(listed_name(queue))


def _handled(app: "App") -> Sequence[str]:
    return [service.queue_name for service in app.services]


def _sources(broker: Broker, settings: Settings, queues: Iterable[str]) -> Iterable[ReplayTarget]:
    for queue in queues:
        policy = replay_policy(settings, queue)
        if policy is not None:
            yield ReplayTarget(queue=queue, policy=policy, retention_seconds=broker.retention_seconds(queue))

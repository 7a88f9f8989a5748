"""The AWS checks of `penstock doctor`: credentials, clock, the queues that an app serves, the buckets it uses."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ulid import ULID

from penstock.app.backends import aws_of, is_sqs
from penstock.app.paths import STATE_FOLDER
from penstock.app.replayer import replay_policy
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.doctor import s3, sqs
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded
from penstock.storage.address import S3Address, is_s3, s3_address
from penstock.storage.aws import Aws, require_aws

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.scope import Scope
    from penstock.app.service import Service
    from penstock.brokers.sqs.facts import QueueFacts, SqsInspector


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueue:
    """A queue that a handler or pipeline of an app consumes."""

    queue: str
    attempts_max: int  # attempts of a message before it is dead-lettered
    source: S3Address | None  # the source whose objects it has notifications for


def served_by(app: "App | None", settings: Settings) -> Sequence[ServedQueue]:
    """Return the queues that a worker would serve here; with ``app`` None, those of the settings."""
    if app is None:
        return [ServedQueue(queue=name, attempts_max=settings.max_attempts, source=None) for name in settings.queues]
    return [
        _of(service, settings)
        for service in app.services
        if not settings.queues or service.queue_name in settings.queues
    ]


def _of(service: "Service", settings: Settings) -> ServedQueue:
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
    return ServedQueue(queue=service.queue_name, attempts_max=attempts, source=where)


CLOCK_APART_SECONDS_MAX = 60.0  # S3 refuses requests from 15 minutes on; its date is in whole seconds
ARRIVAL_SECONDS_MAX = 20.0
_QUEUE_HINT = "docs/run/sqs.md says why; `penstock init --aws` writes queues whose numbers fit."
_FAILED_HINT = (
    "Look at the queue's name, region and account; `penstock init --aws` writes queues, and rights to use them."
)
_CLOCK_HINT = "Let this host follow a time server: AWS refuses requests of a clock that is 15 minutes off."


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsScene:
    """The AWS resources to check."""

    aws: Aws
    broker_is_sqs: bool
    served: Sequence[ServedQueue]
    replayed: frozenset[str]  # queues whose dead letters workers replay automatically
    tables: Sequence[S3Address]
    lease_seconds: float
    try_notification: bool

    @property
    def is_empty(self) -> bool:
        return not (self.broker_is_sqs or self.tables or any(one.source for one in self.served))


def scene_of(scope: "Scope", app: "App | None", *, try_notification: bool = False) -> AwsScene:
    """Return the AWS resources of a scope; with ``app`` None, those of its settings.

    Raises `ConfigurationError` for an invalid address of the broker.
    """
    settings = scope.settings
    in_sqs = is_sqs(settings.broker)
    aws = settings.aws if scope.table is None else scope.table.aws
    served = served_by(app, settings)
    replayed = [one.queue for one in served if settings.replay and replay_policy(settings, one.queue) is not None]
    return AwsScene(
        aws=aws_of(settings.broker, aws) if in_sqs else aws,
        broker_is_sqs=in_sqs,
        served=served,
        replayed=frozenset(replayed),
        tables=[s3_address(where.table.uri) for where in scope.tables.values() if is_s3(where.table.uri)],
        lease_seconds=settings.lease_seconds,
        try_notification=try_notification,
    )


def aws_checks(scene: AwsScene, *, clock: Clock | None = None) -> Iterator[Finding]:
    """Yield the findings; none if AWS is not used. Skip the checks that depend on a failed one."""
    if scene.is_empty:
        return
    clock = clock or SystemClock()
    reach = guarded("aws", partial(_access, scene, clock))
    yield reach
    if reach.verdict is FindingLevel.FAILED:
        return
    looked = _FoundQueues(scene, clock)
    yield from looked.queues()
    yield from looked.sources()
    for table in scene.tables:
        yield guarded("s3 table", partial(_table, table, scene.aws))
    yield from looked.clocks()


class _FoundQueues:
    """The checks of queues and sources. The facts of each queue are kept for the check of its source's bucket."""

    def __init__(self, scene: AwsScene, clock: Clock) -> None:
        self._scene = scene
        self._clock = clock
        self._queues: dict[str, QueueFacts] = {}
        self._ahead_seconds: list[float] = []

    def queues(self) -> Iterator[Finding]:
        if not self._scene.broker_is_sqs:
            return
        if not self._scene.served:
            yield Finding(
                check="sqs queue",
                verdict=FindingLevel.WARNING,
                found="which queues are served is not known here, so none was looked at",
                hint="Give --app, such as --app shop:app, or set queues.",
            )
            return
        from penstock.brokers.sqs.facts import looking

        with looking(self._scene.aws, clock=self._clock) as look:
            for served in self._scene.served:
                yield from self._queue(look, served)

    def sources(self) -> Iterator[Finding]:
        for served in self._scene.served:
            if served.source is not None:
                yield from self._source(served, served.source)

    def clocks(self) -> Iterator[Finding]:
        if self._ahead_seconds:
            yield guarded("aws clock", partial(clocks, max(self._ahead_seconds, key=abs)), hint=_CLOCK_HINT)

    def _queue(self, look: "SqsInspector", served: ServedQueue) -> Iterator[Finding]:
        def found() -> tuple[FindingLevel, str]:
            facts = look.queue(served.queue)
            self._queues[served.queue] = facts
            self._heard(facts.clock_ahead_seconds)
            return sqs.queue(facts, lease_seconds=self._scene.lease_seconds, announces=served.source is not None)

        def letters() -> tuple[FindingLevel, str]:
            there, why = _dead_letters(look, served.queue)
            first.extend([] if there is None else [there])
            return sqs.dead_letters(self._queues[served.queue], there, attempts_max=served.attempts_max, why=why)

        def second() -> tuple[FindingLevel, str]:
            there, why = _dead_letters(look, first[0].name)
            return sqs.second_tier(self._queues[served.queue], first[0], there, why=why)

        first: list[QueueFacts] = []

        looked = guarded("sqs queue", found)
        yield replace(looked, hint=_FAILED_HINT) if looked.verdict is FindingLevel.FAILED else looked
        if served.queue in self._queues:
            yield guarded("sqs dead", letters, hint=_QUEUE_HINT)
            if first and served.queue in self._scene.replayed:
                yield guarded("sqs second", second, hint=_QUEUE_HINT)
            if served.source is not None:
                yield guarded(
                    "sqs policy",
                    partial(sqs.bucket_may_send, self._queues[served.queue], served.source.bucket),
                    hint=_QUEUE_HINT,
                )

    def _source(self, served: ServedQueue, address: S3Address) -> Iterator[Finding]:
        from penstock.objects.s3_facts import SourceFacts, inspect_source

        seen: list[SourceFacts] = []

        def found() -> tuple[FindingLevel, str]:
            seen.append(inspect_source(address, self._scene.aws, clock=self._clock))
            self._heard(seen[0].clock_ahead_seconds)
            return s3.source(address, seen[0])

        yield guarded("s3 source", found)
        queue = self._queues.get(served.queue)
        if not seen or queue is None:
            return
        yield guarded(
            "s3 notice",
            partial(s3.notices, address, seen[0].notices, queue=served.queue, arn=queue.arn),
            hint="What is not announced is found by `penstock ingest`, and by `app.announce`.",
        )
        if self._scene.try_notification:
            yield guarded("s3 test", partial(self._try_notification, served.queue, address))

    def _try_notification(self, queue: str, address: S3Address) -> tuple[FindingLevel, str]:
        """Let S3 itself test the notifications: it refuses a configuration without a valid destination."""
        from penstock.brokers.sqs.facts import looking
        from penstock.objects.s3_facts import put_notices_again

        with looking(self._scene.aws, clock=self._clock) as look:
            waiting = look.queue(queue).visible
            since = datetime.fromtimestamp(int(self._clock.now()), UTC)
            put_notices_again(address.bucket, self._scene.aws)
            tried = f"{address.bucket}: its notifications were written again as they are, and S3 refused no place"
            if waiting:
                return (
                    FindingLevel.OK,
                    (
                        f"{tried}; about {waiting:,} messages wait in {queue}, so the test event was not looked for "
                        "among them: each look costs each of them a receive"
                    ),
                )
            if look.await_test_event(queue, bucket=address.bucket, since=since, seconds=ARRIVAL_SECONDS_MAX):
                return FindingLevel.OK, f"{tried}; its test event arrived in {queue}"
        return (
            FindingLevel.WARNING,
            (
                f"{tried}; no test event was seen in {queue} within {ARRIVAL_SECONDS_MAX:g} s: a worker took it, or "
                "the notifications lead elsewhere"
            ),
        )

    def _heard(self, ahead_seconds: float | None) -> None:
        if ahead_seconds is not None:
            self._ahead_seconds.append(ahead_seconds)


def _dead_letters(look: "SqsInspector", queue: str) -> "tuple[QueueFacts | None, str]":
    """Return the DLQ of a queue; or None, and the reason why there is none."""
    try:
        return look.dead_letters(queue), ""
    except ConfigurationError as error:
        return None, str(error)


def clocks(ahead_seconds: float) -> tuple[FindingLevel, str]:
    """Compare clocks: requests are signed with this host's time. Claims of objects use the ledger's clock."""
    apart = abs(ahead_seconds)
    if apart <= CLOCK_APART_SECONDS_MAX:
        return FindingLevel.OK, f"AWS's clock and this host's are {apart:.0f} s apart"
    way = "ahead of" if ahead_seconds > 0 else "behind"
    return FindingLevel.WARNING, f"AWS's clock is {apart:.0f} s {way} this host's"


def _access(scene: AwsScene, clock: Clock) -> tuple[FindingLevel, str]:
    require_aws()
    from importlib.metadata import version

    from penstock.storage.aws import access

    aws = scene.aws
    found = access(aws)
    packages = ", ".join(f"{name} {version(name)}" for name in ("boto3", "obstore"))
    words = f"{packages}; credentials by {found.provider}, region {found.region or 'not set'}"
    if aws.endpoint_url is not None:
        words = f"{words}, at {aws.endpoint_url}"
    if found.region is None and scene.broker_is_sqs:
        return FindingLevel.FAILED, f"{words}: set aws_region or AWS_REGION, or write sqs://REGION for the broker"
    _try_access(scene, clock)
    return FindingLevel.OK, words


def _try_access(scene: AwsScene, clock: Clock) -> None:
    """Access one resource of the app.

    Raises if there is no response or the credentials are refused; other errors are left to that resource's own check.
    """
    addresses = [*scene.tables, *(one.source for one in scene.served if one.source is not None)]
    if addresses:
        from penstock.objects.s3_facts import check_identity

        check_identity(addresses[0], scene.aws)
    if scene.broker_is_sqs and scene.served:
        from penstock.brokers.sqs.facts import looking

        with looking(scene.aws, clock=clock) as look:
            look.check_identity(scene.served[0].queue)


def _table(address: S3Address, aws: Aws) -> tuple[FindingLevel, str]:
    from penstock.objects.s3_facts import try_table
    from penstock.sinks.delta.folder import LOG_FOLDER, check_free
    from penstock.storage.s3_files import S3Files

    try_table(address, aws, name=f"{STATE_FOLDER}/doctor-{ULID()}")
    root = S3Files(address, aws)
    if f"{LOG_FOLDER}/" not in root.names():
        check_free(root)
    return FindingLevel.OK, f"{address}: wrote a file, was refused to write it twice, read, listed and deleted it"

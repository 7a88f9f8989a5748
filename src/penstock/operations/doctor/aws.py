"""The AWS checks of `penstock doctor`: credentials, clock, the queues that an app serves, the buckets it uses."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from ulid import ULID

from penstock.app.brokers import broker_aws
from penstock.app.object_service import ObjectService
from penstock.app.paths import STATE_FOLDER
from penstock.app.pipelines.service import PipelineService
from penstock.app.replayer import replay_policy
from penstock.app.service import FunctionService
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.wording import worded
from penstock.objects.globs import cut
from penstock.objects.s3_facts import SourceFacts, check_identity, inspect_source, put_notices_again, try_table
from penstock.operations.doctor import s3, sqs
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded
from penstock.sinks.registry import is_installed, open_sink
from penstock.storage.address import S3Address, is_s3, s3_address
from penstock.storage.aws import Aws, access, require_aws
from penstock.storage.s3_files import S3Files

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.scope import Scope
    from penstock.app.service import Service
    from penstock.brokers.sqs.facts import QueueFacts, SqsInspector

CLOCK_APART_SECONDS_MAX = 60.0  # S3 refuses requests from 15 minutes on; its date is in whole seconds
ARRIVAL_SECONDS_MAX = 20.0
_QUEUE_HINT = "See docs/run/sqs.md; `penstock init --aws` writes queues with suitable values."
_FAILED_HINT = (
    "Check the queue's name, region and account; `penstock init --aws` writes queues and the permissions to use them."
)
_CLOCK_HINT = "Synchronise this host's clock with NTP: AWS refuses requests if it is 15 minutes off."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueue:
    """A queue that a handler or pipeline of an app consumes."""

    queue: str
    attempts_max: int  # attempts of a message before it is dead-lettered
    source: S3Address | None  # the source whose objects it has notifications for


def served_by(app: "App | None", settings: Settings) -> Sequence[ServedQueue]:
    """Return the queues that a worker would serve here; with ``app`` None, those of the settings."""
    if app is None:
        return [
            ServedQueue(queue=name, attempts_max=settings.objects_max_attempts, source=None)
            for name in settings.worker_queues
        ]
    return [
        _of(service, settings)
        for service in app.services
        if not settings.worker_queues or service.queue_name in settings.worker_queues
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsResources:
    """The AWS resources to check."""

    aws: Aws
    broker_is_sqs: bool
    served: Sequence[ServedQueue]
    replayed: frozenset[str]  # queues whose dead letters workers replay automatically
    tables: Sequence[tuple[S3Address, str]]  # each with the scheme of its format
    lease_seconds: float
    try_notification: bool

    @property
    def is_empty(self) -> bool:
        return not (self.broker_is_sqs or self.tables or any(queue.source for queue in self.served))


def resources_of(scope: "Scope", app: "App | None", *, try_notification: bool = False) -> AwsResources:
    """Return the AWS resources of a scope; with ``app`` None, those of its settings.

    Raises `ConfigurationError` for an invalid address of the broker.
    """
    settings = scope.settings
    aws = settings.aws if scope.table is None else scope.table.aws
    of_broker = broker_aws(settings, aws)
    served = served_by(app, settings)
    replayed = [
        queue.queue
        for queue in served
        if settings.dead_letters_replay and replay_policy(settings, queue.queue) is not None
    ]
    return AwsResources(
        aws=of_broker or aws,
        broker_is_sqs=of_broker is not None,
        served=served,
        replayed=frozenset(replayed),
        tables=[
            (s3_address(paths.table.uri), paths.scheme) for paths in scope.tables.values() if is_s3(paths.table.uri)
        ],
        lease_seconds=settings.worker_lease,
        try_notification=try_notification,
    )


def aws_checks(resources: AwsResources, *, clock: Clock | None = None) -> Iterator[Finding]:
    """Yield the findings; none if AWS is not used. Skip the checks that depend on a failed one."""
    if resources.is_empty:
        return
    clock = clock or SystemClock()
    access_finding = guarded("aws", partial(_access, resources, clock))
    yield access_finding
    if access_finding.level is FindingLevel.FAILED:
        return
    checked = _ResourceChecks(resources, clock)
    yield from checked.queues()
    yield from checked.sources()
    for table, scheme in resources.tables:
        yield guarded("s3 table", partial(_table, table, resources.aws, scheme=scheme))
    yield from checked.clocks()


def clocks(ahead_seconds: float) -> tuple[FindingLevel, str]:
    """Compare clocks: requests are signed with this host's time. Claims of objects use the ledger's clock."""
    apart = abs(ahead_seconds)
    if apart <= CLOCK_APART_SECONDS_MAX:
        return FindingLevel.OK, f"AWS's clock and this host's differ by {apart:.0f} s"
    way = "ahead of" if ahead_seconds > 0 else "behind"
    return FindingLevel.WARNING, f"AWS's clock is {apart:.0f} s {way} this host's"


def _of(service: "Service", settings: Settings) -> ServedQueue:

    attempts, source = settings.objects_max_attempts, ""
    match service:
        case FunctionService():
            attempts = service.declaration.retry.max_attempts
        case ObjectService():
            attempts, source = service.declaration.attempts_max, service.source
        case PipelineService():
            declared = service.pipeline.declaration
            attempts, source = declared.max_attempts or settings.objects_max_attempts, str(declared.source.folder)
    where: S3Address | None = None
    with suppress(UsageError):
        where = s3_address(cut(source).folder) if is_s3(source) else None
    return ServedQueue(queue=service.queue_name, attempts_max=attempts, source=where)


class _ResourceChecks:
    """The checks of queues and sources. The facts of each queue are kept for the check of its source's bucket."""

    def __init__(self, resources: AwsResources, clock: Clock) -> None:
        self._resources = resources
        self._clock = clock
        self._queues: dict[str, QueueFacts] = {}
        self._ahead_seconds: list[float] = []

    def queues(self) -> Iterator[Finding]:
        if not self._resources.broker_is_sqs:
            return
        if not self._resources.served:
            yield Finding(
                check="sqs queue",
                level=FindingLevel.WARNING,
                found="the served queues are unknown here, so none was checked",
                hint="Give --app, such as --app shop:app, or set queues.",
            )
            return
        from penstock.brokers.sqs.facts import inspecting

        with inspecting(self._resources.aws, clock=self._clock) as inspector:
            for served in self._resources.served:
                yield from self._queue(inspector, served)

    def sources(self) -> Iterator[Finding]:
        for served in self._resources.served:
            if served.source is not None:
                yield from self._source(served, served.source)

    def clocks(self) -> Iterator[Finding]:
        if self._ahead_seconds:
            yield guarded("aws clock", partial(clocks, max(self._ahead_seconds, key=abs)), hint=_CLOCK_HINT)

    def _queue(self, inspector: "SqsInspector", served: ServedQueue) -> Iterator[Finding]:
        def inspect_queue() -> tuple[FindingLevel, str]:
            facts = inspector.queue(served.queue)
            self._queues[served.queue] = facts
            self._record_clock(facts.clock_ahead_seconds)
            return sqs.queue(facts, lease_seconds=self._resources.lease_seconds, announces=served.source is not None)

        def inspect_dlq() -> tuple[FindingLevel, str]:
            found_dlq, why = _find_dlq(inspector, served.queue)
            first.extend([] if found_dlq is None else [found_dlq])
            return sqs.check_dlq(self._queues[served.queue], found_dlq, attempts_max=served.attempts_max, why=why)

        def inspect_final_dlq() -> tuple[FindingLevel, str]:
            found_dlq, why = _find_dlq(inspector, first[0].name)
            return sqs.check_final_dlq(self._queues[served.queue], first[0], found_dlq, why=why)

        first: list[QueueFacts] = []

        checked = guarded("sqs queue", inspect_queue)
        yield replace(checked, hint=_FAILED_HINT) if checked.level is FindingLevel.FAILED else checked
        if served.queue in self._queues:
            yield guarded("sqs dead", inspect_dlq, hint=_QUEUE_HINT)
            if first and served.queue in self._resources.replayed:
                yield guarded("sqs second", inspect_final_dlq, hint=_QUEUE_HINT)
            if served.source is not None:
                yield guarded(
                    "sqs policy",
                    partial(sqs.bucket_may_send, self._queues[served.queue], served.source.bucket),
                    hint=_QUEUE_HINT,
                )

    def _source(self, served: ServedQueue, address: S3Address) -> Iterator[Finding]:

        seen: list[SourceFacts] = []

        def check_source() -> tuple[FindingLevel, str]:
            seen.append(inspect_source(address, self._resources.aws, clock=self._clock))
            self._record_clock(seen[0].clock_ahead_seconds)
            return s3.source(address, seen[0])

        yield guarded("s3 source", check_source)
        queue = self._queues.get(served.queue)
        if not seen or queue is None:
            return
        yield guarded(
            "s3 notice",
            partial(s3.notifications, address, seen[0].notices, queue=served.queue, arn=queue.arn),
            hint="Objects without a notification are found by `penstock ingest`, and by `app.announce`.",
        )
        if self._resources.try_notification:
            yield guarded("s3 test", partial(self._try_notification, served.queue, address))

    def _try_notification(self, queue: str, address: S3Address) -> tuple[FindingLevel, str]:
        """Let S3 itself test the notifications: it refuses a configuration without a valid destination."""
        from penstock.brokers.sqs.facts import inspecting

        with inspecting(self._resources.aws, clock=self._clock) as inspector:
            waiting = inspector.queue(queue).visible
            since = datetime.fromtimestamp(int(self._clock.now()), UTC)
            put_notices_again(address.bucket, self._resources.aws)
            tried = f"{address.bucket}: its notifications were written again unchanged; S3 accepted every destination"
            if waiting:
                wait = worded(waiting, "{} message waits", "{} messages wait")
                return (
                    FindingLevel.OK,
                    (
                        f"{tried}; about {wait} in {queue}, so the test event was not searched for: that would receive "
                        "each of them once more"
                    ),
                )
            if inspector.await_test_event(queue, bucket=address.bucket, since=since, seconds=ARRIVAL_SECONDS_MAX):
                return FindingLevel.OK, f"{tried}; its test event arrived in {queue}"
        return (
            FindingLevel.WARNING,
            (
                f"{tried}; no test event arrived in {queue} within {ARRIVAL_SECONDS_MAX:g} s: a worker received it, or "
                "the notifications go elsewhere"
            ),
        )

    def _record_clock(self, ahead_seconds: float | None) -> None:
        if ahead_seconds is not None:
            self._ahead_seconds.append(ahead_seconds)


def _find_dlq(inspector: "SqsInspector", queue: str) -> "tuple[QueueFacts | None, str]":
    """Return the DLQ of a queue; or None, and the reason why there is none."""
    try:
        return inspector.dead_letters(queue), ""
    except ConfigurationError as error:
        return None, str(error)


def _access(resources: AwsResources, clock: Clock) -> tuple[FindingLevel, str]:
    require_aws()

    aws = resources.aws
    found = access(aws)
    packages = ", ".join(f"{name} {version(name)}" for name in ("boto3", "obstore"))
    text = f"{packages}; credentials from {found.provider}, region {found.region or 'not set'}"
    if aws.endpoint_url is not None:
        text = f"{text}, at {aws.endpoint_url}"
    if found.region is None and resources.broker_is_sqs:
        return FindingLevel.FAILED, f"{text}: set aws.region or AWS_REGION, or use sqs://REGION as the broker"
    _try_access(resources, clock)
    return FindingLevel.OK, text


def _try_access(resources: AwsResources, clock: Clock) -> None:
    """Access one resource of the app.

    Raises if there is no response or the credentials are refused; other errors are left to that resource's own check.
    """
    addresses = [
        *(address for address, _ in resources.tables),
        *(queue.source for queue in resources.served if queue.source is not None),
    ]
    if addresses:
        check_identity(addresses[0], resources.aws)
    if resources.broker_is_sqs and resources.served:
        from penstock.brokers.sqs.facts import inspecting

        with inspecting(resources.aws, clock=clock) as inspector:
            inspector.check_identity(resources.served[0].queue)


def _table(address: S3Address, aws: Aws, *, scheme: str) -> tuple[FindingLevel, str]:

    try_table(address, aws, name=f"{STATE_FOLDER}/doctor-{ULID()}")
    if is_installed(scheme):
        open_sink(S3Files(address, aws), pipeline="doctor", scheme=scheme).check_location()
    return FindingLevel.OK, f"{address}: wrote a file, could not overwrite it, then read, listed and deleted it"

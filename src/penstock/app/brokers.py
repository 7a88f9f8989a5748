"""Open the broker that the settings name.

This is the only module that knows the schemes of broker addresses. Each kind of broker is one `_BrokerKind`: its
capabilities, known before the broker is opened; the function that opens it; and features of some kinds only, such as a
file, AWS settings, queues that have to exist beforehand, or ages from CloudWatch. To add a kind, add its capabilities
to `penstock.brokers.capabilities` and its entry to ``_KINDS``.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.redis_address import is_redis, parse_redis_address
from penstock.app.tracing import tracing_of
from penstock.brokers import capabilities
from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings, shown
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Listener, ignore
from penstock.messaging.broker import Broker, BrokerCapabilities
from penstock.messaging.clock import Clock
from penstock.storage.aws import Aws, require_aws
from penstock.worker.settings import budget

if TYPE_CHECKING:
    from penstock.brokers.sqs.cloudwatch import CloudWatch

SQS_ADDRESS = "sqs://"  # in the region that the AWS settings name
_SQLITE = "sqlite:///"
_MEMORY = "memory://"
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")


def open_broker(settings: Settings, *, holder: str, emit: Listener = ignore) -> Broker:
    """Return the broker at ``settings.broker``, traced if tracing is enabled.

    ``emit`` receives the broker's events. Raises `ConfigurationError` for an invalid address.
    """
    kind = _kind_of(settings.broker)
    if kind is None:
        raise ConfigurationError(
            f"The broker {shown('broker', settings.broker)!r} is not known: write sqlite:///FILE, redis://HOST:PORT "
            "(or rediss://, unix://, redis+cluster://), sqs:// (or sqs://REGION), or memory:// for a queue that ends "
            "with the process."
        )
    return tracing_of(settings, worker=holder).broker(kind.open(settings, holder, emit))


def capabilities_of(settings: Settings) -> BrokerCapabilities:
    """Return the capabilities of the broker, without opening it.

    An unknown address has those of an embedded broker; opening it raises.
    """
    kind = _kind_of(settings.broker)
    return capabilities.EMBEDDED if kind is None else kind.capabilities


def has_workers_elsewhere(settings: Settings) -> bool:
    """Return True if workers of other hosts may use this broker. This host has no locks or records of them."""
    return not settings.one_host and not capabilities_of(settings).is_local


def broker_file(settings: Settings) -> Path | None:
    """Return the absolute path of the broker's file; None if the broker is not a file."""
    kind = _kind_of(settings.broker)
    return None if kind is None or kind.file is None else kind.file(settings.broker).absolute()


def file_broker(path: Path) -> str:
    """Return the address of a broker in this file."""
    return f"{_SQLITE}{path}"


def broker_exists(settings: Settings) -> bool:
    """Return True if the broker can be opened without creating it.

    A server counts as existing: only a connection can check it.
    """
    path = broker_file(settings)
    return not capabilities_of(settings).in_process if path is None else path.is_file()


def with_absolute_path(settings: Settings) -> Settings:
    """Return the settings with an absolute path of the queue file: a forked process may open it from another folder."""
    path = broker_file(settings)
    if path is None or settings.broker == _SQLITE:
        return settings
    return settings.model_copy(update={"broker": file_broker(path)})


def broker_aws(settings: Settings, aws: Aws | None = None) -> Aws | None:
    """Return the AWS settings of the broker, with the address's region if it names one; None if it is not on AWS.

    ``aws`` replaces the AWS settings in ``settings``. Raises `ConfigurationError` for an invalid address.
    """
    kind = _kind_of(settings.broker)
    return None if kind is None or kind.aws is None else kind.aws(settings.broker, aws or settings.aws)


def check_queues(queues: Iterable[str], settings: Settings, *, clock: Clock, waits: bool = False) -> None:
    """Raise `QueueMissing` for the first queue that does not exist, before anything is received from the others.

    Only brokers that do not create queues are checked. ``waits`` ignores `TemporaryError`, for callers that wait for an
    unavailable broker.
    """
    kind = _kind_of(settings.broker)
    if kind is None or kind.check_queues is None:
        return
    ignored: Sequence[type[Exception]] = (TemporaryError,) if waits else ()
    with suppress(*ignored):
        kind.check_queues(queues, settings, clock)


def cloudwatch_of(settings: Settings, *, clock: Clock) -> "CloudWatch | None":
    """Return CloudWatch if it has the ages of the broker's messages. Does not connect; each query is billed."""
    kind = _kind_of(settings.broker)
    return None if kind is None or kind.cloudwatch is None else kind.cloudwatch(settings, clock)


def file_in_folder(file: str, subject: str) -> Path:
    """Return the path of a broker's or ledger's file, and create its folder if it is missing.

    ``subject`` names it in errors. Raises `ConfigurationError`.
    """
    if not file:
        raise ConfigurationError(f"The {subject}'s address names no file: write {_SQLITE}FILE.")
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The {subject}'s folder {path.parent} cannot be created: {error.strerror}."
        ) from error
    return path


def require_redis() -> None:
    """Raise `ConfigurationError`, naming the pip extra, if the Redis client is missing. Imports nothing."""
    if find_spec("redis") is None:
        raise ConfigurationError(
            "The broker is in Redis, and the package redis cannot be found here: run pip install 'penstock[redis]'."
        )


def _open_sqlite(settings: Settings, holder: str, emit: Listener) -> Broker:  # noqa: ARG001 - emits no events

    return SqliteBroker(file_in_folder(settings.broker.removeprefix(_SQLITE), "broker"), holder=holder)


def _file_of(address: str) -> Path:
    return Path(address.removeprefix(_SQLITE))


def _open_memory(settings: Settings, holder: str, emit: Listener) -> Broker:  # noqa: ARG001 - has one holder, no events

    return MemoryBroker()


def _open_redis(settings: Settings, holder: str, emit: Listener) -> Broker:
    found = parse_redis_address(settings.broker)
    require_redis()
    from penstock.brokers.redis import RedisStreamsBroker

    return RedisStreamsBroker(found.url, holder=holder, prefix=found.prefix, emit=emit)


def _open_sqs(settings: Settings, holder: str, emit: Listener) -> Broker:
    aws = _sqs_aws(settings.broker, settings.aws)
    require_aws()
    from penstock.brokers.sqs.broker import POLL_SECONDS, SqsBroker

    # A poll is never interrupted, so it must fit into the drain time of a stopping worker: whole seconds, at least one.
    # It has to end before messages are released, or it would receive them again.
    stopping = budget(stop_timeout_seconds=settings.worker_stop_timeout, drain_seconds=settings.worker_drain)
    tail_seconds = math.floor(stopping.drain_seconds)
    return SqsBroker(aws, holder=holder, poll_seconds=max(min(POLL_SECONDS, tail_seconds), 1), emit=emit)


def _sqs_aws(address: str, aws: Aws) -> Aws:
    region = address.removeprefix(SQS_ADDRESS).rstrip("/")
    if not region:
        return aws
    if not _REGION.fullmatch(region):
        raise ConfigurationError(
            f"The broker's address {shown('broker', address)!r} cannot be read: write sqs:// or sqs://REGION, as in "
            "sqs://eu-west-1; queues are named elsewhere, and another server by aws_endpoint_url."
        )
    return replace(aws, region=region)


def _check_sqs_queues(queues: Iterable[str], settings: Settings, clock: Clock) -> None:
    from penstock.brokers.sqs.facts import inspecting

    with inspecting(_sqs_aws(settings.broker, settings.aws), clock=clock) as inspector:
        for queue in queues:
            inspector.check_exists(queue)


def _sqs_cloudwatch(settings: Settings, clock: Clock) -> "CloudWatch":
    from penstock.brokers.sqs.cloudwatch import CloudWatch

    return CloudWatch(_sqs_aws(settings.broker, settings.aws), clock=clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokerKind:
    """One kind of broker. The optional functions are None for brokers without that feature."""

    has_scheme: Callable[[str], bool]  # True for an address with its scheme, even if the rest is invalid
    capabilities: BrokerCapabilities
    open: Callable[[Settings, str, Listener], Broker]
    file: Callable[[str], Path] | None = None
    aws: Callable[[str, Aws], Aws] | None = None
    check_queues: Callable[[Iterable[str], Settings, Clock], None] | None = None
    cloudwatch: "Callable[[Settings, Clock], CloudWatch] | None" = None


_KINDS = (
    _BrokerKind(
        has_scheme=lambda address: address.startswith(_SQLITE),
        capabilities=capabilities.SQLITE,
        open=_open_sqlite,
        file=_file_of,
    ),
    _BrokerKind(has_scheme=is_redis, capabilities=capabilities.REDIS, open=_open_redis),
    _BrokerKind(
        has_scheme=lambda address: address.startswith(SQS_ADDRESS),
        capabilities=capabilities.SQS,
        open=_open_sqs,
        aws=_sqs_aws,
        check_queues=_check_sqs_queues,
        cloudwatch=_sqs_cloudwatch,
    ),
    _BrokerKind(has_scheme=lambda address: address == _MEMORY, capabilities=capabilities.MEMORY, open=_open_memory),
)


def _kind_of(address: str) -> _BrokerKind | None:
    return next((kind for kind in _KINDS if kind.has_scheme(address)), None)

"""From the addresses in the settings to a broker and a ledger."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.redis_address import is_redis, parsed
from penstock.app.sqs_address import aws_of, is_sqs
from penstock.app.tracing import tracing_of
from penstock.config import Settings, shown
from penstock.errors import ConfigurationError
from penstock.events import Listener, tell_nobody
from penstock.messaging.broker import Broker
from penstock.messaging.steps import Probe, no_probe
from penstock.storage.aws import require_aws
from penstock.worker.settings import budget

if TYPE_CHECKING:
    from penstock.ledger import Ledger

SQLITE = "sqlite:///"
MEMORY = "memory://"


def open_broker(settings: Settings, *, holder: str, tell: Listener = tell_nobody) -> Broker:
    """The broker at ``settings.broker``, traced if they say so; ``tell`` hears of incidents there.

    Raises `ConfigurationError` for an address that is none.
    """
    return tracing_of(settings, worker=holder).broker(_broker(settings, holder=holder, tell=tell))


def with_whole_path(settings: Settings) -> Settings:
    """Return the settings with an absolute path of the queue file: a forked process may open it from another folder."""
    if not settings.broker.startswith(SQLITE) or settings.broker == SQLITE:
        return settings
    path = Path(settings.broker.removeprefix(SQLITE)).absolute()
    return settings.model_copy(update={"broker": f"{SQLITE}{path}"})


def open_ledger(settings: Settings, *, probe: Probe = no_probe) -> "Ledger":
    """The ledger at ``settings.ledger``, its tables brought up to date."""
    from penstock.ledger import Ledger

    if settings.ledger.startswith(SQLITE):
        _made(settings.ledger.removeprefix(SQLITE), "ledger")
    return Ledger.open(settings.ledger, probe=probe)


def system_of(settings: Settings) -> str:
    """What OpenTelemetry's conventions call the broker of the settings, as `Capabilities.system` does."""
    if is_sqs(settings.broker):
        return "aws_sqs"
    if is_redis(settings.broker):
        return "redis"
    return "sqlite" if settings.broker.startswith(SQLITE) else "memory"


def has_workers_elsewhere(settings: Settings) -> bool:
    """Whether workers of other hosts may be on this broker: no lock or record of this host tells of them."""
    return not settings.one_host and (is_redis(settings.broker) or is_sqs(settings.broker))


def has_ledger_apart(settings: Settings) -> bool:
    """Whether the ledger is of this host alone while other hosts may work on the same queues."""
    return has_local_ledger(settings) and has_workers_elsewhere(settings)


def has_local_ledger(settings: Settings) -> bool:
    """Whether the ledger is a file of this host."""
    return settings.ledger.startswith(SQLITE)


def require_shared_ledger(settings: Settings, *, recorded: Sequence[str]) -> None:
    """Raise `ConfigurationError` where each host would have its own truth about what these handlers and pipelines did:
    the ledger is a file of this host, the broker may be that of many, and nobody said that there is one host."""
    if not recorded or not has_ledger_apart(settings):
        return
    raise ConfigurationError(
        f"Other hosts may work on the queues of the broker {shown('broker', settings.broker)}, and the ledger "
        f"{shown('ledger', settings.ledger)} is a file of this host: what {', '.join(recorded)} did once would be done "
        "once a host. Name a ledger that all of them share (mysql://... or postgresql://...); or, if every worker runs "
        "on this host, set one_host = true (PENSTOCK_ONE_HOST=true)."
    )


def require_redis() -> None:
    """Raise `ConfigurationError`, naming the extra, where the client for Redis is missing. Imports nothing."""
    if find_spec("redis") is None:
        raise ConfigurationError(
            "The broker is in Redis, and the package redis cannot be found here: run pip install 'penstock[redis]'."
        )


def _broker(settings: Settings, *, holder: str, tell: Listener) -> Broker:
    if settings.broker.startswith(SQLITE):
        from penstock.brokers.sqlite import SqliteBroker

        return SqliteBroker(_made(settings.broker.removeprefix(SQLITE), "broker"), holder=holder)
    if settings.broker == MEMORY:
        from penstock.brokers.memory import MemoryBroker

        return MemoryBroker()
    if is_redis(settings.broker):
        return _redis_broker(settings.broker, holder=holder, tell=tell)
    if is_sqs(settings.broker):
        return _sqs_broker(settings, holder=holder, tell=tell)
    raise ConfigurationError(
        f"The broker {shown('broker', settings.broker)!r} is not known: write sqlite:///FILE, redis://HOST:PORT (or "
        "rediss://, unix://, redis+cluster://), sqs:// (or sqs://REGION), or memory:// for a queue that ends with the "
        "process."
    )


def _redis_broker(address: str, *, holder: str, tell: Listener) -> Broker:
    found = parsed(address)
    require_redis()
    from penstock.brokers.redis_streams import RedisStreamsBroker

    return RedisStreamsBroker(found.url, holder=holder, prefix=found.prefix, tell=tell)


def _sqs_broker(settings: Settings, *, holder: str, tell: Listener) -> Broker:
    aws = aws_of(settings.broker, settings.aws)
    require_aws()
    from penstock.brokers.sqs import SqsBroker
    from penstock.brokers.sqs.broker import POLL_SECONDS

    # A poll is never cut short, so a worker that stops has to have the time for one: whole seconds, at least one. It is
    # over before anything is given back, which it would receive again.
    stopping = budget(stop_timeout_seconds=settings.stop_timeout_seconds, drain_seconds=settings.drain_seconds)
    tail_seconds = math.floor(stopping.drain_seconds)
    return SqsBroker(aws, holder=holder, poll_seconds=max(min(POLL_SECONDS, tail_seconds), 1), tell=tell)


def _made(file: str, what: str) -> Path:
    """The file's path, its folder made if need be."""
    if not file:
        raise ConfigurationError(f"The {what}'s address names no file: write {SQLITE}FILE.")
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The {what}'s folder {path.parent} cannot be made: {error.strerror}.") from error
    return path

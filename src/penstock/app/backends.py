"""Open the broker and the ledger that the settings name.

Parse and check the addresses of Redis and SQS before anything connects. redis-py ignores some address parameters that
it does not know and fails on others at the first connection, so every supported parameter is listed here. Messages
never repeat a password.

Check that the ledger is shared if workers of several hosts may use the broker, and that the queues exist: on SQS,
workers do not create queues.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from penstock.app.tracing import tracing_of
from penstock.config import Settings, shown
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Listener, tell_nobody
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, no_probe
from penstock.storage.aws import Aws, require_aws
from penstock.worker.settings import budget

if TYPE_CHECKING:
    from penstock.ledger import Ledger


SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
PREFIX_DEFAULT = "penstock"

_PREFIX = "prefix"  # Penstock's own parameter: the prefix of all key names
_PREFIX_FORM = re.compile(r"[A-Za-z0-9_.:-]{1,100}")  # no braces: a cluster hashes the part of a key between them
_ALWAYS = frozenset({_PREFIX, "client_name", "password", "username"})
_TLS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "ssl_password",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A checked Redis address. ``url`` lacks Penstock's own parameter; ``prefix`` begins the names of all keys."""

    url: str
    prefix: str


def is_redis(address: str) -> bool:
    """Return True if the scheme is one of Redis, even if the rest of the address is invalid."""
    scheme, found, _ = address.partition("://")
    return bool(found) and scheme in SCHEMES


def parsed(address: str) -> RedisAddress:
    """Return the checked address. Raises `ConfigurationError` for the first mistake."""
    try:
        parts = urlsplit(address)
    except ValueError as error:  # brackets without an IPv6 address
        raise _unreadable(address) from error
    if parts.scheme == "unix":
        _check_socket(address, parts)
    else:
        _check_host(address, parts)
        _check_number(address, parts)
    try:
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:  # a parameter without a value
        raise _unreadable(address) from error
    _check_parameters(address, parts.scheme, given)
    rest = urlencode([(name, value) for name, value in given if name != _PREFIX])
    url = address.partition("?")[0] + (f"?{rest}" if rest else "")
    return RedisAddress(url=url, prefix=dict(given).get(_PREFIX, PREFIX_DEFAULT))


def _check_socket(address: str, parts: SplitResult) -> None:
    if parts.hostname or not parts.path.strip("/"):
        raise _slip(address, "names no socket", "write unix:///FOLDER/redis.sock, with three slashes")


def _check_host(address: str, parts: SplitResult) -> None:
    if parts.fragment or "@" in parts.path + parts.query:
        raise _slip(address, "cannot be read", "write %2F, %3F, %23 and %40 for / ? # and @ in a password")
    if not parts.hostname:
        raise _slip(address, "names no host", f"write {parts.scheme}://HOST:PORT")
    try:
        fits = parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise _slip(address, "names a port that is none", "write one from 1 to 65535, or leave it out for 6379")


def _check_number(address: str, parts: SplitResult) -> None:
    number = parts.path.removeprefix("/")
    if number and not _is_number(number):
        raise _slip(address, f"names a database {number!r}", "Redis numbers its databases: write /0, or nothing")
    if parts.scheme.endswith("+cluster") and number.strip("0"):
        raise _slip(address, f"names database {number}, and a cluster has but 0", "keep apart by ?prefix=NAME")


def _check_parameters(address: str, scheme: str, given: list[tuple[str, str]]) -> None:
    known = _ALWAYS | (_TLS if scheme.startswith("rediss") else set()) | (set() if "+" in scheme else {"db"})
    for name, value in given:
        if name not in known:
            raise _slip(address, f"has a parameter {name} that is not known", _meant(name, known))
        if name == "db" and not _is_number(value):
            raise _slip(address, f"names a database {value!r}", "Redis numbers its databases: write db=0, or nothing")
        if name == _PREFIX and not _PREFIX_FORM.fullmatch(value):
            raise _slip(
                address, "has a prefix that cannot be one", "write up to 100 letters, digits and any of - _ . :"
            )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _meant(name: str, known: Set[str]) -> str:
    if name in _TLS:
        return "it belongs to TLS, which rediss:// asks for"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"those there are: {', '.join(sorted(known))}"


def _unreadable(address: str) -> ConfigurationError:
    return _slip(address, "cannot be read", "write redis://HOST:PORT/NUMBER")


def _slip(address: str, what: str, instead: str) -> ConfigurationError:
    end = "" if instead.endswith("?") else "."
    return ConfigurationError(f"The broker {shown('broker', address)} {what}; {instead}{end}")


SQS = "sqs://"

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")


def is_sqs(address: str) -> bool:
    """Return True if the scheme is that of SQS, even if the rest of the address is invalid."""
    return address.startswith(SQS)


def aws_of(address: str, aws: Aws) -> Aws:
    """Return the AWS settings, with the address's region if it names one.

    Raises `ConfigurationError` if it is invalid.
    """
    region = address.removeprefix(SQS).rstrip("/")
    if not region:
        return aws
    if not _REGION.fullmatch(region):
        raise ConfigurationError(
            f"The broker's address {shown('broker', address)!r} cannot be read: write sqs:// or sqs://REGION, as in "
            "sqs://eu-west-1; queues are named elsewhere, and another server by aws_endpoint_url."
        )
    return replace(aws, region=region)


SQLITE = "sqlite:///"
MEMORY = "memory://"


def open_broker(settings: Settings, *, holder: str, tell: Listener = tell_nobody) -> Broker:
    """Return the broker at ``settings.broker``, traced if the settings ask for it.

    ``tell`` receives the broker's events. Raises `ConfigurationError` for an invalid address.
    """
    return tracing_of(settings, worker=holder).broker(_broker(settings, holder=holder, tell=tell))


def with_whole_path(settings: Settings) -> Settings:
    """Return the settings with an absolute path of the queue file: a forked process may open it from another folder."""
    if not settings.broker.startswith(SQLITE) or settings.broker == SQLITE:
        return settings
    path = Path(settings.broker.removeprefix(SQLITE)).absolute()
    return settings.model_copy(update={"broker": f"{SQLITE}{path}"})


def open_ledger(settings: Settings, *, probe: Probe = no_probe) -> "Ledger":
    """Open the ledger at ``settings.ledger`` and migrate its tables to the current version."""
    from penstock.ledger import Ledger

    if settings.ledger.startswith(SQLITE):
        _made(settings.ledger.removeprefix(SQLITE), "ledger")
    return Ledger.open(settings.ledger, probe=probe)


def system_of(settings: Settings) -> str:
    """Return OpenTelemetry's name for the broker in the settings, the same as `Capabilities.system`."""
    if is_sqs(settings.broker):
        return "aws_sqs"
    if is_redis(settings.broker):
        return "redis"
    return "sqlite" if settings.broker.startswith(SQLITE) else "memory"


def has_workers_elsewhere(settings: Settings) -> bool:
    """Return True if workers of other hosts may use this broker. This host has no locks or records of them."""
    return not settings.one_host and (is_redis(settings.broker) or is_sqs(settings.broker))


def has_ledger_apart(settings: Settings) -> bool:
    """Return True if the ledger is local to this host although other hosts may serve the same queues."""
    return has_local_ledger(settings) and has_workers_elsewhere(settings)


def has_local_ledger(settings: Settings) -> bool:
    """Return True if the ledger is a file on this host."""
    return settings.ledger.startswith(SQLITE)


def require_shared_ledger(settings: Settings, *, recorded: Sequence[str]) -> None:
    """Raise `ConfigurationError` if each host would have its own record of these handlers and pipelines.

    That is the case if the ledger is a file on this host, the broker may be shared, and the setting one_host is off.
    """
    if not recorded or not has_ledger_apart(settings):
        return
    raise ConfigurationError(
        f"Other hosts may work on the queues of the broker {shown('broker', settings.broker)}, and the ledger "
        f"{shown('ledger', settings.ledger)} is a file of this host: what {', '.join(recorded)} did once would be done "
        "once a host. Name a ledger that all of them share (mysql://... or postgresql://...); or, if every worker runs "
        "on this host, set one_host = true (PENSTOCK_ONE_HOST=true)."
    )


def require_redis() -> None:
    """Raise `ConfigurationError`, naming the pip extra, if the Redis client is missing. Imports nothing."""
    if find_spec("redis") is None:
        raise ConfigurationError(
            "The broker is in Redis, and the package redis cannot be found here: run pip install 'penstock[redis]'."
        )


def _broker(settings: Settings, *, holder: str, tell: Listener) -> Broker:
    if settings.broker.startswith(SQLITE):
        from penstock.brokers.sqlite.broker import SqliteBroker

        return SqliteBroker(_made(settings.broker.removeprefix(SQLITE), "broker"), holder=holder)
    if settings.broker == MEMORY:
        from penstock.brokers.memory.broker import MemoryBroker

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
    from penstock.brokers.redis import RedisStreamsBroker

    return RedisStreamsBroker(found.url, holder=holder, prefix=found.prefix, tell=tell)


def _sqs_broker(settings: Settings, *, holder: str, tell: Listener) -> Broker:
    aws = aws_of(settings.broker, settings.aws)
    require_aws()
    from penstock.brokers.sqs import SqsBroker
    from penstock.brokers.sqs.broker import POLL_SECONDS

    # A poll is never interrupted, so it must fit into the drain time of a stopping worker: whole seconds, at least one.
    # It has to end before messages are released, or it would receive them again.
    stopping = budget(stop_timeout_seconds=settings.stop_timeout_seconds, drain_seconds=settings.drain_seconds)
    tail_seconds = math.floor(stopping.drain_seconds)
    return SqsBroker(aws, holder=holder, poll_seconds=max(min(POLL_SECONDS, tail_seconds), 1), tell=tell)


def _made(file: str, what: str) -> Path:
    """Return the file's path and create its folder if it is missing."""
    if not file:
        raise ConfigurationError(f"The {what}'s address names no file: write {SQLITE}FILE.")
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The {what}'s folder {path.parent} cannot be made: {error.strerror}.") from error
    return path


def check_queues(queues: Iterable[str], settings: Settings, *, clock: Clock, waits: bool = False) -> None:
    """Raise `ConfigurationError` for the first queue that does not exist, before anything is received from the others.

    Only SQS is checked. ``waits`` ignores `TemporaryError`, for callers that wait for an unavailable SQS.
    """
    if not is_sqs(settings.broker):
        return
    from penstock.brokers.sqs.facts import looking

    borne: Sequence[type[Exception]] = (TemporaryError,) if waits else ()
    with suppress(*borne), looking(aws_of(settings.broker, settings.aws), clock=clock) as look:
        for queue in queues:
            look.check_is_there(queue)

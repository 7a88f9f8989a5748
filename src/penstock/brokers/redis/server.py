"""The connection to the server: the scripts, commands, and the translation of errors.

Nothing is retried here: redis-py's own retries would send an XADD twice and read twice (measured). A failed call
raises, and the caller decides when to call again.

Each Lua script beside this file is named after its operation and is sent with `common.lua` before it.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UnknownOutcome
from penstock.messaging.addresses import masked
from penstock.messaging.forks import OwnSockets

NAMES = (
    "send",
    "take",
    "settle",
    "extend",
    "sweep",
    "doubts",
    "peek",
    "stats",
    "empty",
    "browse",
    "queued",
    "discard",
    "purge",
    "tidy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as sent to the server, with the SHA-1 by which the server then knows it."""

    name: str
    text: str
    sha: str


@cache
def scripts() -> Mapping[str, Script]:
    """Return the scripts by name."""
    folder = files(__package__).joinpath("lua")
    common = folder.joinpath("common.lua").read_text(encoding="utf-8")
    texts = {name: f"{common}\n{folder.joinpath(f'{name}.lua').read_text(encoding='utf-8')}" for name in NAMES}
    return {
        name: Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }


VERSION_MIN = (6, 2)
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 10.0  # after which an unresponsive server counts as unavailable; blocking calls end sooner
CONNECTIONS_MAX = 64
_SLIPS = {  # errors of servers whose address is wrong in some detail, and remedies
    "DB index is out of range": "it does not have that many databases; give a smaller number, or a prefix instead",
    "Cluster mode is not enabled": "it is not a cluster; write redis:// instead of redis+cluster://",
}
_CLUSTER = "+cluster"

Command = tuple[Any, ...]
Result = TypeVar("Result")


def script(name: str, keys: Sequence[str], *arguments: Any) -> Command:
    """Return the command that runs a script."""
    return ("EVALSHA", scripts()[name].sha, len(keys), *keys, *arguments)


class Server:
    """One server or cluster, shared by the parts of a broker. Thread-safe: each call uses its own pooled connection."""

    def __init__(self, url: str) -> None:
        self.shown_url = masked(url)
        self._own = OwnSockets("this view of the Redis broker")
        self._ready = False  # scripts loaded and version checked; written under the lock
        self._known = False  # the server has accepted us before; written under the lock, never unset
        self._closed = False  # written by the thread that calls close
        self._lock = threading.Lock()
        self._url = url
        self.is_cluster = url.partition("://")[0].endswith(_CLUSTER)
        # A cluster client asks the cluster for its slots on creation, so it is created on first use, under the lock.
        self._client: Any = None if self.is_cluster else self._made()

    def run(self, *commands: Command) -> list[Any]:
        """Return each command's reply or error, in one round trip except in clusters.

        Raises `TemporaryError` or `ConfigurationError` if the server cannot be reached at all. A cluster's nodes fail
        independently, so there each command has its own error.
        """
        with self.translated():
            self._make_ready()
            replies = self._sent(commands)
            missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if missing:  # the server was restarted or its scripts were flushed: these commands did nothing
                self._load()
                for at, reply in zip(missing, self._sent([commands[at] for at in missing]), strict=True):
                    replies[at] = reply
        return [self._translated(reply) if isinstance(reply, Exception) else reply for reply in replies]

    def call(self, *command: Any) -> Any:
        """Return the reply to one command. Raises the errors of `run`, and the command's own."""
        (reply,) = self.run(command)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def atomically(self, *commands: Command) -> list[Any]:
        """Run all of these scripts as one transaction, or none; in a cluster, one by one.

        Raises `UnknownOutcome` if the connection broke before the reply arrived.
        """
        with self.translated():
            self._make_ready()
            try:
                return self._transaction(commands)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if _was_never_sent(error):
                    raise
                raise UnknownOutcome(
                    f"the broker at {self.shown_url}: {error}; it is unknown whether it accepted the messages"
                ) from error
            except ResponseError as error:
                self._check_failover([error])
                raise

    def blocking(self) -> redis.Redis:
        """Return a client with a single connection of its own for blocking calls. The caller closes it."""
        pool = self._client.connection_pool
        return redis.Redis(
            connection_pool=redis.ConnectionPool(
                connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs
            )
        )

    def close(self) -> None:
        """Close the idle connections. Calls under way are not interrupted."""
        self._closed = True
        if not self.is_cluster:
            self._client.connection_pool.disconnect(inuse_connections=False)
        elif self._client is not None:
            self._client.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate redis-py's errors into Penstock's."""
        self._own.check()
        if self._closed:
            raise TemporaryError("this view of the Redis broker was closed: open another one")
        try:
            yield
        except PenstockError:
            raise
        except (RedisError, RedisClusterException, OSError) as error:
            raise self._translated(error) from error

    def _made(self) -> Any:
        scheme, _, rest = self._url.partition("://")
        options: Mapping[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": RESPONSE_SECONDS,
            "protocol": 2,
        }
        try:
            if self.is_cluster:
                return RedisCluster.from_url(f"{scheme.removesuffix(_CLUSTER)}://{rest}", **options)
            client = redis.Redis.from_url(self._url, max_connections=CONNECTIONS_MAX, **options)
            client.connection_pool.make_connection()  # rejects unknown options; does not connect
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"The broker's address {self.shown_url} cannot be read: {error}; write redis://HOST:PORT/DB."
            ) from None
        return client

    def _make_ready(self) -> None:
        if self._ready:
            return
        with self._lock:
            if not self._ready:
                self._client = self._client or self._made()
                self._check_version()
                self._load()
                self._ready = self._known = True

    def _check_version(self) -> None:
        try:
            info = self._client.info("server")
        except NoPermissionError:  # the scripts will report the missing right
            return
        version = str(info.get("redis_version") or next(iter(info.values()))["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < VERSION_MIN:
            raise ConfigurationError(
                f"The broker at {self.shown_url} is Redis {version}; it has to be at least "
                f"{'.'.join(map(str, VERSION_MIN))}: upgrade it."
            )

    def _load(self) -> None:
        for script in scripts().values():
            self._client.script_load(script.text)

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if self.is_cluster:
            return [self._apart(command) for command in commands]
        if len(commands) == 1:
            return [self._alone(commands[0])]
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        self._check_failover(replies)
        return replies

    def _apart(self, command: Command) -> Any:
        """Return a cluster's reply, or any error as a value, since nodes fail independently."""
        try:
            return self._alone(command)
        except (RedisError, RedisClusterException, OSError) as error:
            return error

    def _alone(self, command: Command) -> Any:
        try:
            return self._client.execute_command(*command)
        except ResponseError as error:
            self._check_failover([error])
            return error

    def _transaction(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1 or self.is_cluster:
            return [self._knowing_scripts(partial(self._client.execute_command, *command)) for command in commands]
        return self._knowing_scripts(partial(self._in_one, commands))

    def _in_one(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute()
        return replies

    def _knowing_scripts(self, call: Callable[[], Result]) -> Result:
        """Call; if the server does not know a script, and so did nothing, load the scripts and call again."""
        try:
            return call()
        except NoScriptError:
            self._load()
            return call()

    def _check_failover(self, replies: Sequence[Any]) -> None:
        """Drop the idle connections if the server became a replica: the address may lead to another server now."""
        if not self.is_cluster and any(map(_is_replica, replies)):
            self._client.connection_pool.disconnect(inuse_connections=False)

    def _translated(self, error: Exception) -> Exception:
        """Return Penstock's error for an error of redis-py."""
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, NoPermissionError | AuthorizationError | AuthenticationError):
            if self._known:  # it accepted us before, so its users or passwords are being changed
                return TemporaryError(f"the broker at {self.shown_url} refuses us: {error}")
            why = str(error).rstrip(".")  # some of Redis's messages end with a full stop
            return ConfigurationError(
                f"The broker at {self.shown_url} refuses us: {why}; check the user, the password and its rights."
            )
        if "WRONGTYPE" in str(error):
            return ConfigurationError(
                f"The broker at {self.shown_url} has a foreign value under a key of this broker: {error}; give "
                "this broker another prefix or another database."
            )
        for fragment, remedy in _SLIPS.items():
            if fragment in str(error):
                return ConfigurationError(f"The broker at {self.shown_url} cannot be used so: {remedy}.")
        return TemporaryError(f"the broker at {self.shown_url}: {str(error) or type(error).__name__}")


def _was_never_sent(error: Exception) -> bool:
    """Return True if the server refused the connection, for which redis-py raises the same errors."""
    refused = isinstance(error, BusyLoadingError | AuthenticationError | AuthorizationError)
    return refused or isinstance(error.__context__, ConnectionRefusedError | FileNotFoundError)


def _is_replica(reply: Any) -> bool:
    # For a command inside a script, Redis 6.2 has READONLY only in the text.
    return isinstance(reply, ReadOnlyError) or (isinstance(reply, ResponseError) and "READONLY" in str(reply))

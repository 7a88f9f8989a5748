"""Facts about a server, and a trial of every command the broker needs: for `penstock doctor`."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from penstock.brokers.redis.broker import SEND_MAX, RedisStreamsBroker
from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.server import Server
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import DEAD_LETTER_SUFFIX, ReceiveRequest
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

_LEASE_SECONDS = 10.0
_DELAY_SECONDS = 0.02
_WINDOW_SECONDS = 1.0  # for deduplication; its keys expire after that
_QUEUE, _ONCE = "try", "1"
_PARTS = ("queue", "ring", "ready", "delayed", "stream", "wake", f"once:{_ONCE}")  # of a queue's keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's own report; in a cluster, one node's. None: this user may not read it."""

    version: str | None
    is_primary: bool | None
    is_cluster: bool
    memory_bytes: int | None
    memory_bytes_max: int | None  # 0: no limit
    eviction: str | None  # maxmemory-policy
    appends: bool | None  # appendonly
    syncs: str | None  # appendfsync: always, everysec, no
    snapshots: str | None  # the setting save; empty: never
    replicas: int | None
    replicas_min: int | None  # min-replicas-to-write
    clock_ahead_seconds: float  # the server's clock minus ours
    round_trip_seconds: float


def inspect_server(url: str, *, clock: Clock) -> ServerFacts:
    """Query the server. Raise `TemporaryError` or `ConfigurationError` if that fails."""
    server = Server(url)
    try:
        server.call("TIME")  # connects and loads the scripts, which is not part of a round trip
        began, began_at = clock.monotonic(), clock.now()
        seconds, microseconds = server.call("TIME")
        took_seconds = clock.monotonic() - began
        info = _info(server)
        return ServerFacts(
            version=info.get("redis_version"),
            is_primary=None if "role" not in info else info["role"] == "master",
            is_cluster=server.is_cluster,
            memory_bytes=info.get("used_memory"),
            memory_bytes_max=info.get("maxmemory"),
            eviction=info.get("maxmemory_policy"),
            appends=None if "aof_enabled" not in info else bool(info["aof_enabled"]),
            syncs=_setting(server, "appendfsync"),
            snapshots=_setting(server, "save"),
            replicas=info.get("connected_slaves"),
            replicas_min=_number(_setting(server, "min-replicas-to-write")),
            clock_ahead_seconds=int(seconds) + int(microseconds) / 1e6 - (began_at + took_seconds / 2),
            round_trip_seconds=took_seconds,
        )
    finally:
        server.close()


def try_everything(url: str, *, prefix: str) -> None:
    """Send, receive, extend, inspect, and settle in every way, in queues under a prefix of their own, then remove
    those.

    Raises the broker's error at the first operation that this user may not perform.
    """
    own = f"{prefix}:doctor-{secrets.token_hex(4)}"
    broker = RedisStreamsBroker(url, holder="doctor", prefix=own, deduplication_window_seconds=_WINDOW_SECONDS)
    try:
        _try(broker)
    finally:
        _remove(url, own)
        broker.close()


def _try(broker: RedisStreamsBroker) -> None:
    broker.send(_QUEUE, [Outgoing(body=b"{}"), Outgoing(body=b"{}"), Outgoing(body=b"{}", deduplication_id=_ONCE)])
    acked, released, dead = [_one(broker) for _ in range(3)]
    if broker.extend([acked], lease_seconds=_LEASE_SECONDS):
        raise ConfigurationError("A lease cannot be extended there; this user needs the right to XCLAIM.")
    died = DeadLetter(reason="tried by penstock doctor")
    for failure in broker.settle([(acked, Ack()), (released, Release()), (dead, died)]):
        raise TemporaryError(f"a message cannot be settled there: {failure.reason}")
    _one(broker)
    broker.release_holder("doctor")
    _one(broker)
    broker.send(_QUEUE, [Outgoing(body=b"{}", delay_seconds=_DELAY_SECONDS)])
    broker.receive(_QUEUE, messages_max=1, lease_seconds=_LEASE_SECONDS, wait_seconds=2 * _DELAY_SECONDS)
    broker.send(_QUEUE, [Outgoing(body=b"{}")] * (SEND_MAX + 1))  # more than one script
    broker.stats(_QUEUE)
    (message,) = broker.browse(_QUEUE, messages_max=1)
    broker.discard(_QUEUE, [message.id])
    broker.queue_names()
    broker.pause(_QUEUE)
    broker.paused(_QUEUE)
    broker.resume(_QUEUE)
    for queue in (_QUEUE, f"{_QUEUE}{DEAD_LETTER_SUFFIX}"):
        broker.purge(queue)


def _one(broker: RedisStreamsBroker) -> Delivery:
    turn = broker.turn((), [ReceiveRequest(queue=_QUEUE, messages_max=1)], lease_seconds=_LEASE_SECONDS)
    if turn.receive_error is not None:
        raise turn.receive_error[1]
    if not turn.deliveries:
        raise TemporaryError("a message was sent to the broker and was not delivered at once: try again")
    return turn.deliveries[0]


def _remove(url: str, prefix: str) -> None:
    """Delete the keys that may be left, one by one as a cluster requires. Keys this user may not delete stay."""
    keys = QueueKeys(prefix)
    names = [keys.queues]
    for queue in (_QUEUE, f"{_QUEUE}{DEAD_LETTER_SUFFIX}"):
        base = keys.base(queue)
        names += [f"{base}:{part}" for part in _PARTS]
    server = Server(url)
    try:
        server.run(*[("UNLINK", name) for name in names])
    except PenstockError:  # the trial has already reported the reason
        pass
    finally:
        server.close()


def _info(server: Server) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = server.call("INFO")
    except (PenstockError, ResponseError):  # not permitted to this user, and not needed by the broker
        return {}
    return found


def _setting(server: Server, name: str) -> str | None:
    """Return a server setting; None if this user may not read it, as on most hosted servers."""
    try:
        found: Mapping[str, str] = server.call("CONFIG GET", name)
    except (PenstockError, ResponseError):
        return None
    return found.get(name)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)

"""The Redis checks of `penstock doctor`: permissions, memory, durability and clock."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.brokers import require_redis
from penstock.app.redis_address import RedisAddress, parse_redis_address
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.wording import counted
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded

if TYPE_CHECKING:
    from penstock.brokers.redis.facts import ServerFacts

CLOCK_APART_SECONDS_MAX = 2.0
ROUND_TRIP_SECONDS_MAX = 0.05
MEMORY_SHARE_MAX = 0.8
MIB = 1024**2
_FULL_ERROR = "used memory > 'maxmemory'"  # part of the server's error message
_FULL_REMEDY = "start more workers, give it more memory, or purge queues that are not needed"


def redis_checks(settings: Settings, *, clock: Clock | None = None) -> Iterator[Finding]:
    """Yield the findings about a reachable server."""
    address = parse_redis_address(settings.broker)
    require_redis()
    from penstock.brokers.redis.facts import inspect_server

    found: list[ServerFacts] = []

    def inspect() -> tuple[FindingLevel, str]:
        found.append(inspect_server(address.url, clock=clock or SystemClock()))
        return server(found[0])

    yield guarded("redis", inspect, hint="A worker makes one or two round trips per turn: run it closer to the server.")
    for facts in found:
        yield guarded("redis memory", partial(memory, facts))
        yield guarded(
            "redis disk",
            partial(durability, facts),
            hint="Set appendonly to yes, and appendfsync to everysec, or to always if no confirmed write may be lost.",
        )
        yield guarded("redis clock", partial(clocks, facts), hint="Synchronise both hosts with NTP.")
    yield guarded("redis rights", partial(permissions, address))


def server(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report version, role and round-trip time."""
    version = "(version hidden from this user)" if facts.version is None else facts.version
    trip_ms = facts.round_trip_seconds * 1_000
    text = f"Redis {version}{', a cluster (one node was checked)' if facts.is_cluster else ''}"
    if facts.is_primary is False:
        return (
            FindingLevel.FAILED,
            f"{text}; it is a replica and accepts no writes: set broker to the address of its primary",
        )
    near = facts.round_trip_seconds <= ROUND_TRIP_SECONDS_MAX
    return (FindingLevel.OK if near else FindingLevel.WARNING), f"{text}; a round trip takes {trip_ms:.1f} ms"


def memory(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report the memory in use, and the eviction policy that applies once it is full."""
    if facts.eviction is None or facts.memory_bytes_max is None:
        return (
            FindingLevel.WARNING,
            "this user cannot read the memory in use (INFO is denied); make sure that maxmemory-policy is noeviction",
        )
    used_bytes = facts.memory_bytes or 0
    used = f"{used_bytes / MIB:,.0f} MiB used"
    if not facts.memory_bytes_max:
        return (
            FindingLevel.OK,
            f"{used}, no limit (maxmemory is 0): when the host runs out of memory, the system kills the server",
        )
    share = used_bytes / facts.memory_bytes_max
    text = (
        f"{used} of {facts.memory_bytes_max / MIB:,.0f} MiB ({math.floor(share * 100)} %), "
        f"maxmemory-policy {facts.eviction}"
    )
    if facts.eviction.startswith("allkeys"):
        return (
            FindingLevel.FAILED,
            f"{text}: when it is full, messages are deleted; set maxmemory-policy to noeviction",
        )
    if share >= 1:
        return FindingLevel.FAILED, f"{text}: it is full, sends are refused, and processing continues; {_FULL_REMEDY}"
    if facts.eviction != "noeviction":
        return (
            FindingLevel.WARNING,
            f"{text}: when it is full, deduplication ids are forgotten; set maxmemory-policy to noeviction",
        )
    if share >= MEMORY_SHARE_MAX:
        return FindingLevel.WARNING, f"{text}: it is nearly full, and then sends are refused; {_FULL_REMEDY}"
    return FindingLevel.OK, f"{text}: when it is full, sends are refused, and processing continues"


def durability(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report the data loss of a crash or a failover."""
    level, persistence = _persistence(facts)
    return level, f"{persistence}{_replicas(facts)}"


def clocks(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Compare clocks: leases and delays use the server's, displayed ages this host's."""
    apart = abs(facts.clock_ahead_seconds)
    fits = apart <= CLOCK_APART_SECONDS_MAX
    way = "ahead of" if facts.clock_ahead_seconds > 0 else "behind"
    return (FindingLevel.OK if fits else FindingLevel.WARNING), f"the server's clock is {apart:.3f} s {way} this host's"


def permissions(address: RedisAddress) -> tuple[FindingLevel, str]:
    """Run every operation of a worker once."""
    from penstock.brokers.redis.facts import try_everything

    try:
        try_everything(address.url, prefix=address.prefix)
    except PenstockError as error:
        if _FULL_ERROR in str(error):
            return FindingLevel.FAILED, f"the server is full, so the permissions could not be checked; {_FULL_REMEDY}"
        return FindingLevel.FAILED, f"{error}; docs/run/redis.md lists the permissions that a user needs"
    return (
        FindingLevel.OK,
        "sent, received, extended, settled and browsed messages in a temporary queue, now deleted",
    )


def _persistence(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    if facts.appends is None:
        return FindingLevel.WARNING, "this user cannot read whether data is written to disk (INFO is denied)"
    if facts.appends:
        match facts.syncs:
            case "always":
                return FindingLevel.OK, "appendonly with appendfsync always: a crash loses no confirmed write"
            case "no":
                return FindingLevel.WARNING, "appendonly with appendfsync no: a power cut loses up to half a minute"
            case "everysec":
                return FindingLevel.OK, "appendonly with appendfsync everysec: a crash loses up to two seconds"
            case _:
                return (
                    FindingLevel.OK,
                    "appendonly: a crash loses up to two seconds, or nothing if appendfsync is always",
                )
    if facts.snapshots == "":
        return FindingLevel.WARNING, "neither appendonly nor save is set: a restart loses every message"
    rule = "" if facts.snapshots is None else f" (save {facts.snapshots})"
    return (
        FindingLevel.WARNING,
        f"snapshots only{rule}: a crash loses every change since the last one, and acked messages are repeated",
    )


def _replicas(facts: "ServerFacts") -> str:
    if not facts.replicas:
        return ""
    needed = facts.replicas_min or 0
    text = counted(facts.replicas, "replica")
    return f"; {text}, min-replicas-to-write {needed}: a failover loses what was not replicated yet"

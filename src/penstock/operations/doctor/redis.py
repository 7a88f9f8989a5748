"""The Redis checks of `penstock doctor`: permissions, memory, durability and clock."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.backends import RedisAddress, parsed, require_redis
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded

if TYPE_CHECKING:
    from penstock.brokers.redis.facts import ServerFacts

CLOCK_APART_SECONDS_MAX = 2.0
ROUND_TRIP_SECONDS_MAX = 0.05
MEMORY_SHARE_MAX = 0.8
MIB = 1024**2
_FULL = "used memory > 'maxmemory'"  # part of the server's error message
_ROOM = "start more workers, give it memory, or purge what nobody needs"


def redis_checks(settings: Settings, *, clock: Clock | None = None) -> Iterator[Finding]:
    """Yield the findings about a reachable server."""
    address = parsed(settings.broker)
    require_redis()
    from penstock.brokers.redis.facts import inspect_server

    found: list[ServerFacts] = []

    def look() -> tuple[FindingLevel, str]:
        found.append(inspect_server(address.url, clock=clock or SystemClock()))
        return server(found[0])

    yield guarded("redis", look, hint="A turn of a worker takes a round trip or two: bring it nearer to its server.")
    for facts in found:
        yield guarded("redis memory", partial(memory, facts))
        yield guarded(
            "redis disk",
            partial(durability, facts),
            hint="Set appendonly to yes and appendfsync to everysec, or to always where no answer may be taken back.",
        )
        yield guarded("redis clock", partial(clocks, facts), hint="Let both hosts follow a time server.")
    yield guarded("redis rights", partial(rights, address))


def server(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report version, role and round-trip time."""
    version = "of a version that this user may not see" if facts.version is None else facts.version
    trip_ms = facts.round_trip_seconds * 1_000
    words = f"Redis {version}{', a cluster (of which one node was asked)' if facts.is_cluster else ''}"
    if facts.is_primary is False:
        return (
            FindingLevel.FAILED,
            f"{words}; it is a replica, which takes no writes: name its primary in the setting broker",
        )
    near = facts.round_trip_seconds <= ROUND_TRIP_SECONDS_MAX
    return (FindingLevel.OK if near else FindingLevel.WARNING), f"{words}; a round trip takes {trip_ms:.1f} ms"


def memory(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report the memory in use, and the eviction policy that applies once it is full."""
    if facts.eviction is None or facts.memory_bytes_max is None:
        return (
            FindingLevel.WARNING,
            "this user may not see how full memory is (INFO is denied); see to it that maxmemory-policy is noeviction",
        )
    used_bytes = facts.memory_bytes or 0
    used = f"{used_bytes / MIB:,.0f} MiB used"
    if not facts.memory_bytes_max:
        return (
            FindingLevel.OK,
            f"{used}, no limit (maxmemory is 0): beyond what the host has, the system kills the server",
        )
    share = used_bytes / facts.memory_bytes_max
    words = (
        f"{used} of {facts.memory_bytes_max / MIB:,.0f} MiB ({math.floor(share * 100)} %), "
        f"maxmemory-policy {facts.eviction}"
    )
    if facts.eviction.startswith("allkeys"):
        return (
            FindingLevel.FAILED,
            f"{words}: when it is full, messages are deleted; set maxmemory-policy to noeviction",
        )
    if share >= 1:
        return FindingLevel.FAILED, f"{words}: it is full, sends are refused, and work goes on; {_ROOM}"
    if facts.eviction != "noeviction":
        return (
            FindingLevel.WARNING,
            f"{words}: when it is full, deduplication ids are forgotten; set maxmemory-policy to noeviction",
        )
    if share >= MEMORY_SHARE_MAX:
        return FindingLevel.WARNING, f"{words}: it is nearly full, and then sends are refused; {_ROOM}"
    return FindingLevel.OK, f"{words}: when it is full, sends are refused, and work goes on"


def durability(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Report the data loss of a crash or a failover."""
    verdict, kept = _kept(facts)
    return verdict, f"{kept}{_copies(facts)}"


def _kept(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    if facts.appends is None:
        return FindingLevel.WARNING, "this user may not see whether anything is kept on disk (INFO is denied)"
    if facts.appends:
        match facts.syncs:
            case "always":
                return FindingLevel.OK, "appendonly with appendfsync always: a crash loses nothing that was answered"
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
        return FindingLevel.WARNING, "neither appendonly nor save: a restart loses every message"
    rule = "" if facts.snapshots is None else f" (save {facts.snapshots})"
    return (
        FindingLevel.WARNING,
        f"snapshots alone{rule}: a crash loses every message since the last one, and work is repeated",
    )


def _copies(facts: "ServerFacts") -> str:
    if not facts.replicas:
        return ""
    needed = facts.replicas_min or 0
    words = "1 replica" if facts.replicas == 1 else f"{facts.replicas} replicas"
    return f"; {words}, min-replicas-to-write {needed}: a failover loses what was not copied yet"


def clocks(facts: "ServerFacts") -> tuple[FindingLevel, str]:
    """Compare clocks: leases and delays use the server's, displayed ages this host's."""
    apart = abs(facts.clock_ahead_seconds)
    fits = apart <= CLOCK_APART_SECONDS_MAX
    way = "ahead of" if facts.clock_ahead_seconds > 0 else "behind"
    return (FindingLevel.OK if fits else FindingLevel.WARNING), f"the server's clock is {apart:.3f} s {way} this host's"


def rights(address: RedisAddress) -> tuple[FindingLevel, str]:
    """Run every operation of a worker once."""
    from penstock.brokers.redis.facts import try_everything

    try:
        try_everything(address.url, prefix=address.prefix)
    except PenstockError as error:
        if _FULL in str(error):
            return FindingLevel.FAILED, f"the server is full, so the rights could not be tried; {_ROOM}"
        return FindingLevel.FAILED, f"{error}; docs/run/redis.md lists the rights that a user needs"
    return (
        FindingLevel.OK,
        "sent, received, extended, settled and looked at messages in a queue of its own, now removed",
    )

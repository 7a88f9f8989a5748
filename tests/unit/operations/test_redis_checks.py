"""Findings of doctor from the facts that a Redis server reports."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.app.redis_address import RedisAddress
from penstock.brokers.redis import facts
from penstock.brokers.redis.facts import ServerFacts
from penstock.errors import TemporaryError
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.redis import clocks, durability, memory, permissions, server

MIB = 1024**2
HEALTHY = ServerFacts(
    version="7.2.4",
    is_primary=True,
    is_cluster=False,
    memory_bytes=10 * MIB,
    memory_bytes_max=100 * MIB,
    eviction="noeviction",
    appends=True,
    syncs="everysec",
    snapshots="",
    replicas=0,
    replicas_min=0,
    clock_ahead_seconds=0.001,
    round_trip_seconds=0.0004,
)
OK, WARNING, FAILED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILED


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({}, OK, "Redis 7.2.4; a round trip takes 0.4 ms"),
        ({"round_trip_seconds": 0.2}, WARNING, "200.0 ms"),
        ({"is_primary": False}, FAILED, "it is a replica and accepts no writes"),
        ({"is_cluster": True}, OK, "a cluster (one node was checked)"),
        ({"version": None, "is_primary": None}, OK, "Redis (version hidden from this user)"),
    ],
)
def test_the_check_of_the_server(changed: dict[str, Any], level: FindingLevel, text: str) -> None:
    found = server(replace(HEALTHY, **changed))
    assert (found[0], text in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({}, OK, "10 MiB used of 100 MiB (10 %), maxmemory-policy noeviction: when it is full, sends are refused"),
        ({"memory_bytes": 79 * MIB}, OK, "(79 %)"),
        ({"memory_bytes": 80 * MIB}, WARNING, "(80 %), maxmemory-policy noeviction: it is nearly full"),
        ({"memory_bytes": 100 * MIB - 1}, WARNING, "(99 %)"),
        ({"memory_bytes": 100 * MIB}, FAILED, "it is full, sends are refused"),
        ({"memory_bytes": 200 * MIB, "eviction": "volatile-ttl"}, FAILED, "it is full"),
        ({"memory_bytes": 80 * MIB, "eviction": "volatile-ttl"}, WARNING, "set maxmemory-policy to noeviction"),
        ({"eviction": "allkeys-lru"}, FAILED, "messages are deleted"),
        ({"eviction": "volatile-ttl"}, WARNING, "deduplication ids are forgotten"),
        ({"eviction": "allkeys-lru", "memory_bytes_max": 0}, OK, "no limit"),
        ({"eviction": None}, WARNING, "this user cannot read"),
    ],
)
def test_the_check_of_the_memory(changed: dict[str, Any], level: FindingLevel, text: str) -> None:
    found = memory(replace(HEALTHY, **changed))
    assert (found[0], text in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({}, OK, "a crash loses up to two seconds"),
        ({"syncs": "always"}, OK, "a crash loses no confirmed write"),
        ({"syncs": "no"}, WARNING, "a power cut loses up to half a minute"),
        ({"syncs": None, "snapshots": None}, OK, "or nothing if appendfsync is always"),
        ({"appends": False}, WARNING, "a restart loses every message"),
        ({"appends": False, "snapshots": "3600 1"}, WARNING, "snapshots only (save 3600 1)"),
        ({"appends": False, "snapshots": None}, WARNING, "snapshots only: "),
        ({"appends": None}, WARNING, "this user cannot read"),
        ({"replicas": 2, "replicas_min": 1}, OK, "2 replicas, min-replicas-to-write 1: a failover loses"),
    ],
)
def test_the_check_of_the_durability(changed: dict[str, Any], level: FindingLevel, text: str) -> None:
    found = durability(replace(HEALTHY, **changed))
    assert (found[0], text in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("ahead_seconds", "level", "text"),
    [(0.001, OK, "ahead of"), (-3.0, WARNING, "3.000 s behind"), (2.5, WARNING, "2.5")],
)
def test_the_check_of_the_clock(ahead_seconds: float, level: FindingLevel, text: str) -> None:
    found = clocks(replace(HEALTHY, clock_ahead_seconds=ahead_seconds))
    assert (found[0], text in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            "the broker at redis://h: command not allowed when used memory > 'maxmemory'.",
            "the server is full, so the permissions could not be checked",
        ),
        ("the broker at redis://h refuses us: no right to XCLAIM", "lists the permissions that a user needs"),
    ],
)
def test_a_full_server_is_not_reported_as_missing_permissions(
    monkeypatch: pytest.MonkeyPatch, error: str, text: str
) -> None:
    def refuse(url: str, *, prefix: str) -> None:
        raise TemporaryError(error)

    monkeypatch.setattr(facts, "try_everything", refuse)
    level, found = permissions(RedisAddress(url="redis://h", prefix="penstock"))
    assert (level, text in found, "permissions that a user needs" in found) == (FAILED, True, "refuses us" in error)

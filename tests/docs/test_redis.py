"""docs/run/redis.md is right about permissions, keys, addresses, memory and foreign senders, on a real server."""

import re
import string
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path

import pytest
import redis
from tests.services.plugin import StartRedis, both_versions
from tests.services.redis_rights import documented_rights, documented_user
from tests.services.redis_server import RedisServer

from penstock.app import redis_address
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.facts import try_everything
from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.recovery import LeaseSweeper
from penstock.brokers.redis.server import Server
from penstock.config import Settings
from penstock.errors import PenstockError, TemporaryError
from penstock.events import ignore
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.redis import redis_checks
from penstock.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "run" / "redis.md").read_text(encoding="utf-8")
OUTSIDE_SCRIPTS = {"multi", "exec", "evalsha", "script|load", "info", "xclaim", "smembers", "sadd", "hexists", "blpop"}
LEASE_SECONDS = 30.0


def section(title: str) -> str:
    _, found, rest = PAGE.partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def blocks(text: str) -> Iterator[str]:
    yield from re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands_of_scripts() -> set[str]:
    folder = files("penstock.brokers.redis") / "lua"
    text = "".join(script.read_text(encoding="utf-8") for script in folder.iterdir())
    pattern = r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'(CREATE|DELCONSUMER|CONSUMERS)')?"
    return {"|".join(filter(None, found)).lower() for found in re.findall(pattern, text)}


def all_findings(settings: Settings) -> dict[str, str]:
    return {finding.check: f"{finding.level.value}: {finding.found}" for finding in redis_checks(settings)}


def test_the_documented_user_has_exactly_the_rights_of_the_scripts() -> None:
    given = {right.removeprefix("+") for right in documented_rights()}
    assert commands_of_scripts() - given == set()
    assert given - commands_of_scripts() - OUTSIDE_SCRIPTS == set()


@both_versions
def test_the_documented_user_has_enough_rights(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, users=f"user default off\n{documented_user()}", tcp=True)
    for url in (f"unix://shop:PASSWORD@{server.socket}", server.tcp_url.replace("//", "//shop:PASSWORD@")):
        found = all_findings(Settings(broker=url))
        assert found["redis rights"].startswith(FindingLevel.OK), found
    with closing(RedisStreamsBroker(url, holder="me")) as broker:
        broker.send("q", [Outgoing(body=b"{}")] * 2_001)  # three scripts in one transaction
        deliveries = broker.receive("q", messages_max=2, lease_seconds=LEASE_SECONDS)
        assert not broker.settle([(deliveries[0], DeadLetter(reason="bad")), (deliveries[1], Ack())])
        assert broker.queue_names() == ["q", "q-dlq"]


def test_the_documented_user_has_enough_rights_in_a_cluster(start_redis: StartRedis) -> None:
    more = next(line for line in section("Rights").split("`") if line.startswith("+cluster"))
    server = start_redis(cluster=True, users=f"user default off\n{documented_user()} {more}")
    found = all_findings(Settings(broker=server.cluster_url.replace("//", "//shop:PASSWORD@")))
    assert "a cluster" in found["redis"]
    assert found["redis rights"].startswith(FindingLevel.OK), found


@pytest.mark.parametrize("command", ["xadd", "xclaim", "smembers", "evalsha"])
@both_versions
def test_a_missing_right_is_named(start_redis: StartRedis, version: str, command: str) -> None:
    less = documented_user().replace(f"+{command} ", "")
    assert less != documented_user()
    server = start_redis(version, users=f"user default off\n{less}")
    with pytest.raises(PenstockError) as raised:
        try_everything(f"unix://shop:PASSWORD@{server.socket}", prefix="penstock")
    unnamed = "can't run this command"  # Redis does not name a forbidden command of a script
    assert command in str(raised.value).lower() or unnamed in str(raised.value)
    assert "PASSWORD" not in str(raised.value)


def test_keys_outside_the_prefix_are_denied(start_redis: StartRedis) -> None:
    server = start_redis(users=f"user default off\n{documented_user()}")
    with pytest.raises(PenstockError, match="refuses us"):
        try_everything(f"unix://shop:PASSWORD@{server.socket}", prefix="other")


def test_the_check_of_rights_leaves_nothing_behind(redis_server: RedisServer) -> None:
    try_everything(redis_server.url, prefix="penstock")
    assert redis_server.cli("KEYS", "*") == []


def test_every_key_is_in_the_table_of_keys(redis_server: RedisServer) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="me")) as broker:
        broker.send("orders", [Outgoing(body=b"{}", group="GROUP"), Outgoing(body=b"{}", deduplication_id="ID")])
        broker.send("orders", [Outgoing(body=b"{}", delay_seconds=60), Outgoing(body=b"{}"), Outgoing(body=b"{}")])
        first, _ = broker.receive("orders", messages_max=2, lease_seconds=LEASE_SECONDS)
        broker.settle([(first, DeadLetter(reason="bad"))])
        found = {key.decode() for key in redis_server.cli("KEYS", "*")}
    documented = set(re.findall(r"`([^`]+)`", section("The keys of a queue")))
    named = {key.replace("-dlq:", ":") for key in found}
    assert named - documented == set()
    assert len(named) >= 7


def test_every_parameter_of_an_address_is_in_its_table() -> None:
    documented = set(re.findall(r"`(\w+)`", section("The address")))
    assert (redis_address._ALWAYS | redis_address._TLS | {"db"}) - documented == set()
    assert {f"`{scheme}://" for scheme in redis_address.REDIS_SCHEMES if f"`{scheme}://" not in PAGE} == set()


def test_a_foreign_backlog_yields_one_empty_receive_per_20_000_messages(redis_server: RedisServer) -> None:
    assert "nothing for every 20,000" in " ".join(section("Others who send").split())
    with closing(redis.Redis.from_url(redis_server.url)) as foreign:
        pipeline = foreign.pipeline(transaction=False)
        for number in range(40_001):
            pipeline.xadd("penstock:{orders}:stream", {"body": str(number)})
        pipeline.execute()
    with closing(RedisStreamsBroker(redis_server.url, holder="me")) as broker:
        received = [len(broker.receive("orders", messages_max=3, lease_seconds=LEASE_SECONDS)) for _ in range(4)]
    assert received == [0, 0, 3, 3]


@pytest.mark.parametrize("page", ["run/redis", "run/brokers", "run/commands", "why/guarantees"])
def test_the_pages_state_how_long_messages_of_a_lost_host_stay_leased(page: str) -> None:
    sweeping = LeaseSweeper(
        Server("redis://localhost"),  # connects on the first request, and there is none
        QueueKeys("penstock"),
        every_seconds=None,
        clock=FakeClock(),
        random=lambda: 1.0,
        emit=ignore,
    )
    assert sweeping.seconds(LEASE_SECONDS) + LEASE_SECONDS == 1.5 * LEASE_SECONDS
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    assert "one to one and a half leases after" in text


def test_a_plain_xadd_is_a_message(redis_server: RedisServer) -> None:
    (block,) = blocks(section("Others who send"))
    command, key, star, field, body = block.strip().split(" ", 4)
    redis_server.cli(command, key, star, field, body.strip("'"))
    redis_server.cli(command, key, star, "group", "tenant", "body", "in a group", "left", "out")
    redis_server.cli(command, key, star, "a", "1")
    with closing(RedisStreamsBroker(redis_server.url, holder="me")) as broker:
        deliveries = broker.receive("orders", messages_max=9, lease_seconds=LEASE_SECONDS)
        assert sorted((each.message.group or "", each.message.body) for each in deliveries) == [
            ("", b'{"a":"1"}'),
            ("", b'{"id": "a", "cents": 100}'),
            ("tenant", b"in a group"),
        ]
        assert not broker.settle([(each, Ack()) for each in deliveries])


@both_versions
def test_a_full_server_refuses_sends_and_is_emptied_by_workers(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, configuration=("--maxmemory", "8mb", "--maxmemory-policy", "noeviction"))
    filler = [Outgoing(body=string.ascii_letters.encode() * 400)] * 10
    sent = settled = 0
    with closing(RedisStreamsBroker(server.url, holder="me")) as broker:
        with suppress(TemporaryError):
            while True:  # until the server is full
                sent += len(broker.send("q", filler))
        with pytest.raises(TemporaryError, match=r"maxmemory|OOM"):
            broker.send("q", filler)
        assert broker.stats("q").visible == sent
        assert sent > 100
        while deliveries := broker.receive("q", messages_max=10, lease_seconds=LEASE_SECONDS):
            assert not broker.extend(deliveries, lease_seconds=LEASE_SECONDS)
            settlements = [
                (each, DeadLetter(reason="full") if at == 0 else Ack()) for at, each in enumerate(deliveries)
            ]
            assert not broker.settle(settlements)
            settled += len(deliveries)
        assert settled == sent
        assert broker.send("q", filler)
        assert broker.stats("q-dlq").visible == len(list(broker.browse("q-dlq", messages_max=sent)))

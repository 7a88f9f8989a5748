"""Access to a Redis server: foreign keys, passwords, permissions, TLS, a cluster."""

from contextlib import closing

import pytest
from tests.integration.redis_scene import LEASE, STREAM, bodies, cycle, outgoing, take
from tests.services.certificate import Certificate
from tests.services.plugin import StartRedis, both_versions
from tests.services.redis_rights import PASSWORD, documented_rights, documented_user
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.facts import try_everything
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import QueueSettings, ReceiveRequest
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter

USER = f"user default off\n{documented_user()}".replace(PASSWORD, "secret")


# --- refused access


def test_a_foreign_key_raises_a_configuration_error(redis_server: RedisServer, broker: RedisStreamsBroker) -> None:
    redis_server.client.set(STREAM, "another program's")
    broker.send("q", outgoing("m"))
    for attempt in (lambda: take(broker), lambda: broker.stats("q")):
        with pytest.raises(ConfigurationError, match="another prefix or another database"):
            attempt()
    assert redis_server.client.get(STREAM) == b"another program's"


@both_versions
def test_a_wrong_password_is_a_configuration_error_at_the_start_and_temporary_later(
    start_redis: StartRedis, version: str
) -> None:
    server = start_redis(version, users=USER)
    for user in ("shop:wrong", "nobody:secret"):
        with pytest.raises(ConfigurationError, match=r"[^.]; check the user, the password"):
            RedisStreamsBroker(f"unix://{user}@{server.socket}", holder="w1").queue_names()
    with closing(RedisStreamsBroker(f"unix://shop:secret@{server.socket}", holder="w1")) as broker:
        broker.send("q", outgoing("m"))
        server.cli("ACL SETUSER", "shop", "resetpass", ">other")
        server.cli("CLIENT KILL", "USER", "shop")
        with pytest.raises(TemporaryError):  # the connection is closed, or the new one is refused
            take(broker)
        with pytest.raises(TemporaryError, match="refuses us"):
            take(broker)
        server.cli("ACL SETUSER", "shop", ">secret")
        assert bodies(take(broker)) == ["m"]


@both_versions
def test_a_user_with_exactly_the_documented_permissions_can_do_everything(
    start_redis: StartRedis, version: str
) -> None:
    server = start_redis(version, users=USER)
    url = f"unix://shop:secret@{server.socket}"
    try_everything(url, prefix="penstock")
    with closing(RedisStreamsBroker(url, holder="w1", sweep_seconds=0.0)) as broker:
        cycle(broker)
        broker.send("q", outgoing(*range(2_001)))
        assert len(take(broker, 1000)) == 1000
    for right in ("xpending", "xinfo", "xreadgroup", "xclaim", "xrange", "hincrby", "evalsha"):
        server.cli("ACL SETUSER", "shop", f"-{right}")
        with pytest.raises((TemporaryError, ConfigurationError), match=r"(?i)can't run|no permission|refuses"):
            try_everything(url, prefix="penstock")
        server.cli(
            "ACL SETUSER", "shop", *[granted for granted in documented_rights() if granted[1:].startswith(right)]
        )
    try_everything(url, prefix="penstock")


def test_a_user_without_permission_to_read_the_version_can_work(start_redis: StartRedis) -> None:
    server = start_redis(users=USER.replace("+info ", ""))
    with closing(RedisStreamsBroker(f"unix://shop:secret@{server.socket}", holder="w1", sweep_seconds=0.0)) as broker:
        cycle(broker)


@pytest.mark.parametrize(("version", "fits"), [("5.0.14", False), ("6.0.16", False), ("6.2.0", True), ("10.0.1", True)])
def test_a_server_that_is_too_old_is_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        monkeypatch.setattr(broker._server._client, "info", lambda section: {"redis_version": version})
        if fits:
            broker.send("q", outgoing("m"))
        else:
            with pytest.raises(ConfigurationError, match=f"is Redis {version}; it has to be at least 6.2: upgrade"):
                broker.send("q", outgoing("m"))
            assert redis_server.cli("DBSIZE") == 0


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_needs_a_trusted_certificate(start_redis: StartRedis, certificate: Certificate, trusted: bool) -> None:
    server = start_redis(certificate=certificate)
    url = server.tcp_url if trusted else server.tcp_url.partition("?")[0]
    with closing(RedisStreamsBroker(url, holder="w1", sweep_seconds=0.0)) as broker:
        if trusted:
            cycle(broker)
        else:
            with pytest.raises(TemporaryError, match=r"(?i)certificate"):
                broker.queue_names()


# --- clusters


@both_versions
def test_a_cluster_serves_queues_in_several_slots(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, cluster=True)
    with closing(RedisStreamsBroker(server.cluster_url, holder="w1", sweep_seconds=0.0)) as broker:
        cycle(broker)
        broker.send("b", [Outgoing(body=b"%d" % n, group=str(n % 3)) for n in range(5_000)])
        assert broker.stats("b").visible == 5_000
        requests = [ReceiveRequest(queue=queue, messages_max=7) for queue in ("a", "b", "c")]
        turn = broker.turn((), requests, lease_seconds=LEASE)
        assert [each.message.body for each in turn.deliveries] == [b"%d" % n for n in range(7)]
        broker.send("c", outgoing("of c"))
        settlements = [(each, DeadLetter(reason="x")) for each in turn.deliveries]
        turn = broker.turn(settlements, [requests[0], requests[2]], lease_seconds=LEASE)
        assert (turn.failures, turn.settle_error, turn.receive_error) == ([], None, None)
        assert bodies(list(turn.deliveries)) == ["of c"]
        assert broker.stats("b-dlq").visible == 7
        assert set(broker.queue_names()) >= {"b", "b-dlq", "c"}
        assert broker.receive("a", messages_max=1, lease_seconds=LEASE, wait_seconds=0.05) == ()
        refused = QueueSettings(name="b", dead_letter_queue="elsewhere")
        with pytest.raises(ConfigurationError, match="another slot"):
            RedisStreamsBroker(server.cluster_url, holder="w1", queues=[refused])
        fine = QueueSettings(name="b", dead_letter_queue="b-dlq", receives_max=1)
        RedisStreamsBroker(server.cluster_url, holder="w1", queues=[fine]).close()


def test_an_unreachable_cluster_is_reported_at_the_first_command() -> None:
    with closing(RedisStreamsBroker("redis+cluster://127.0.0.1:1", holder="w1")) as broker:
        for _ in range(2):
            with pytest.raises(TemporaryError):
                broker.send("q", outgoing("a"))


def test_the_cluster_client_never_retries(start_redis: StartRedis) -> None:
    server = start_redis(cluster=True)
    with closing(RedisStreamsBroker(server.cluster_url, holder="w1")) as broker:
        cycle(broker)
        client = broker._server._client
        assert client.retry._retries == 0
        assert [node.redis_connection.get_retry()._retries for node in client.get_nodes()] == [0]
        server.kill()
        with pytest.raises(TemporaryError):
            broker.send("q", outgoing("lost"))

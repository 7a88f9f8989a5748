"""The Redis servers of the tests behave as the tests assume."""

from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.services.certificate import Certificate
from tests.services.plugin import StartRedis, both_versions
from tests.services.redis_server import RedisServer, redis_program

ONCE = Retry(NoBackoff(), 0)


def test_each_server_has_its_declared_version(redis_server: RedisServer) -> None:
    version = str(redis_server.client.info("server")["redis_version"])
    if redis_server.version == "6.2":
        assert version.startswith("6.2.")
    else:  # the version of the operating system
        assert int(version.partition(".")[0]) >= 7
    assert redis_server.client.config_get("port") == {"port": "0"}


def test_an_older_server_that_is_first_on_the_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("older", "6.2.14"), ("strange", "?"), ("newer", "8.0.1")):
        program = tmp_path / folder / "redis-server"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/older:{tmp_path}/strange")
    assert redis_program("7.0") is None
    monkeypatch.setenv("PATH", f"{tmp_path}/older:{tmp_path}/strange:{tmp_path}/newer")
    assert redis_program("7.0") == tmp_path / "newer" / "redis-server"


@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_server_is_clean_for_every_test(redis_server: RedisServer, turn: int) -> None:
    assert redis_server.cli("DBSIZE") == 0
    redis_server.cli("SET", "turn", turn)


@both_versions
@pytest.mark.parametrize("persistence", [True, False], ids=["persistent", "forgetful"])
def test_a_killed_server_restarts_with_its_persistent_data(
    start_redis: StartRedis, version: str, persistence: bool
) -> None:
    server = start_redis(version, persistence=persistence, tcp=True)
    port, first = server.port, server.pid
    for n in range(100):
        server.cli("SET", n, n)
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.cli("PING")
    server.start()
    assert server.pid != first
    assert server.port == port
    assert server.cli("DBSIZE") == (100 if persistence else 0)


def test_a_frozen_server_answers_when_thawed(start_redis: StartRedis) -> None:
    server = start_redis()
    impatient = redis.Redis.from_url(server.url, socket_timeout=1.0, retry=ONCE)
    server.freeze()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    server.thaw()
    assert server.cli("PING")
    impatient.close()
    server.freeze()
    server.stop()  # ends although it is frozen


def test_a_long_folder_name_works(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / ("x" * 200))
    server.start()
    short = server.socket
    assert server.cli("PING")
    server.close()
    assert not short.parent.exists()


@both_versions
def test_each_server_has_its_own_tcp_port(start_redis: StartRedis, version: str) -> None:
    one, two = start_redis(version, tcp=True), start_redis(version, tcp=True)
    assert len({one.port, two.port, 6379}) == 3
    with redis.Redis.from_url(two.tcp_url) as client:
        client.set("a", "1")
    assert (one.cli("GET", "a"), two.cli("GET", "a")) == (None, b"1")


def test_a_tls_server_is_trusted_by_its_url_and_refuses_plain_connections(
    start_redis: StartRedis, certificate: Certificate
) -> None:
    server = start_redis(certificate=certificate)
    with redis.Redis.from_url(server.tcp_url) as client:
        assert client.ping()
    with (
        redis.Redis(port=server.port, socket_timeout=5, retry=ONCE) as plain,
        pytest.raises(redis.ConnectionError),
    ):
        plain.ping()


@both_versions
def test_users_may_run_only_their_allowed_commands(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, users="user default off\nuser reader on >secret ~* +get +ping")
    reader = redis.Redis.from_url(f"unix://reader:secret@{server.socket}")
    assert reader.get("a") is None
    with pytest.raises(redis.exceptions.NoPermissionError):
        reader.set("a", "1")
    with redis.Redis.from_url(server.url) as anonymous, pytest.raises(redis.AuthenticationError):
        anonymous.ping()
    reader.close()
    server.cli("SET", "a", "1")


def test_a_cluster_of_one_has_all_slots_and_keeps_them(start_redis: StartRedis) -> None:
    server = start_redis(cluster=True, persistence=True)
    with redis.RedisCluster(host="127.0.0.1", port=server.port) as client:
        client.set("a", "1")
        client.set("b", "2")
    server.kill()
    server.start()
    with redis.RedisCluster(host="127.0.0.1", port=server.port) as client:
        assert (client.get("a"), client.get("b")) == (b"1", b"2")


def test_a_server_that_cannot_start_reports_its_own_error(start_redis: StartRedis) -> None:
    with pytest.raises(AssertionError, match="no-such-directive"):
        start_redis(configuration=("--no-such-directive", "1"))

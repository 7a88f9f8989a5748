"""Addresses of Redis brokers: each mistake gives a message of one line that contains no password."""

import pytest

from penstock.app import brokers
from penstock.app.brokers import open_broker
from penstock.app.redis_address import RedisAddress, parse_redis_address
from penstock.config import Settings
from penstock.errors import ConfigurationError

SECRET = "hunter2"


@pytest.mark.parametrize(
    "address",
    [
        "redis://localhost",
        "redis://localhost:6380/3",
        "redis://user:pa%2Fss@localhost",
        "redis://:secret@[::1]:6379/0",
        "rediss://host?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=required",
        "unix:///run/redis.sock?db=2",
        "unix://user:secret@/run/redis.sock",
        "redis+cluster://host:7000",
        "rediss+cluster://host:7000/0",
    ],
)
def test_a_valid_address_is_passed_to_the_client_unchanged(address: str) -> None:
    assert parse_redis_address(address) == RedisAddress(url=address, prefix="penstock")


def test_the_prefix_is_not_passed_to_the_client() -> None:
    assert parse_redis_address("redis://h/1?prefix=shop") == RedisAddress(url="redis://h/1", prefix="shop")
    both = parse_redis_address("redis://h?client_name=a&prefix=shop:live")
    assert both == RedisAddress(url="redis://h?client_name=a", prefix="shop:live")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"redis://u:{SECRET}@", "names no host; write redis://HOST:PORT."),
        ("redis:///0", "names no host"),
        ("redis://h:port", "has an invalid port"),
        ("redis://h:65536", "has an invalid port"),
        ("redis://h:0", "has an invalid port"),
        ("redis://h/first", "names a database 'first'"),
        ("redis://h/0/", "names a database '0/'"),
        ("redis://[::1", "cannot be read"),
        ("redis://h?db", "cannot be read"),
        (f"redis://u:a/{SECRET}@h", "write %2F, %3F, %23 and %40"),
        (f"redis://u:a?{SECRET}@h", "write %2F, %3F, %23 and %40"),
        (f"redis://u:a#{SECRET}@h", "write %2F, %3F, %23 and %40"),
        (
            "redis://h?socket_timeout=1",
            "has an unknown parameter socket_timeout; known parameters: client_name",
        ),
        ("rediss://h?ssl_ca_cert=x", "did you mean ssl_ca_certs?"),
        ("redis://h?ssl_ca_certs=x", "it is an option of TLS, so write rediss://."),
        (f"redis://h?pass={SECRET}", "did you mean password?"),
        ("unix:///s?db=x", "names a database 'x'"),
        ("unix://run/redis.sock", "names no socket; write unix:///FOLDER/redis.sock"),
        ("unix://", "names no socket"),
        ("redis+cluster://h/1", "separate apps by ?prefix=NAME"),
        ("redis+cluster://h?db=1", "has an unknown parameter db"),
        ("redis://h?prefix={shop}", "has an invalid prefix"),
        ("redis://h?prefix=", "has an invalid prefix"),
        (f"http://u:{SECRET}@h", "is not known: write sqlite:///FILE, redis://HOST:PORT"),
        (f"redis:/u:{SECRET}@h", "is not known"),
        (f"u:{SECRET}@h", "is not known"),
        (f"REDIS://u:{SECRET}/{SECRET}@h", "is not known"),
        ("sqlite://queue.db", "is not known"),
    ],
)
def test_each_mistake_gives_a_message_of_one_line_without_the_password(address: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_broker(Settings(broker=address), holder="me")
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_client_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[redis\]'"):
        open_broker(Settings(broker="redis://localhost"), holder="me")

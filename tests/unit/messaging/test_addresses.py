"""What is said of an address holds no password, however it was written."""

import pytest

from penstock.messaging.addresses import masked


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("mysql://me@h/db?charset=utf8mb4", "mysql://me@h/db?charset=utf8mb4"),
        ("redis://me:secret@h:1/2", "redis://me:***@h:1/2"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis+cluster://me:secret@h:7000", "redis+cluster://me:***@h:7000"),
        ("redis://me:secret@h is away", "redis://me:***@h is away"),
        ("mysql://me:secret@h/db or redis://me:secret@h", "mysql://me:***@h"),
    ],
)
def test_a_password_is_masked(address: str, said: str) -> None:
    assert masked(address) == said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("rediss://h?ssl_ca_certs=/x&password=secret", "rediss://h?ssl_ca_certs=/x&password=***"),
        ("unix:///run/redis.sock?password=secret&db=1", "unix:///run/redis.sock?password=***&db=1"),
        ("rediss://h?ssl_keyfile=/k&ssl_password=secret", "rediss://h?ssl_keyfile=/k&ssl_password=***"),
    ],
)
def test_a_secret_parameter_is_masked(address: str, said: str) -> None:
    assert masked(address) == said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://secret@127.0.0.1:1/0", "redis://***@127.0.0.1:1/0"),
        ("rediss+cluster://secret@h", "rediss+cluster://***@h"),
        ("redis://sec/ret@h", "redis://***@h"),
        ("unix://secret@/run/redis.sock", "unix://***@/run/redis.sock"),
    ],
)
def test_a_password_whose_colon_was_forgotten_is_masked(address: str, said: str) -> None:
    assert masked(address) == said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pasword=secret", "pasword=***"),
        ("db=1&PWD=secret&prefix=a", "db=1&PWD=***&prefix=a"),
        ("secret", "***"),
        ("db=1&secret", "db=1&***"),
        ("pasword=sec=ret is away", "pasword=*** is away"),
        ("=secret", "=***"),
    ],
)
def test_a_parameter_that_is_not_known_may_be_a_misspelt_secret(query: str, said: str) -> None:
    assert masked(f"redis://h?{query}") == f"redis://h?{said}"


@pytest.mark.parametrize("password", ["se%40cr@et", "sec#ret", "sec/ret", "sec?ret", "s@cr/et", "s@cr/e@t", "s@c ret"])
@pytest.mark.parametrize("behind", ["h:1/0", "[bad/0"])
def test_a_password_that_was_not_escaped_is_masked_as_a_whole(password: str, behind: str) -> None:
    assert masked(f"redis://me:{password}@{behind}") == f"redis://me:***@{behind}"

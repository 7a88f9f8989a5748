"""Masked addresses contain no password, however the address was written."""

import pytest

from penstock.messaging.addresses import masked


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("mysql://me@h/db?charset=utf8mb4", "mysql://me@h/db?charset=utf8mb4"),
        ("redis://me:secret@h:1/2", "redis://me:***@h:1/2"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis+cluster://me:secret@h:7000", "redis+cluster://me:***@h:7000"),
        ("redis://me:secret@h is down", "redis://me:***@h is down"),
        ("mysql://me:secret@h/db or redis://me:secret@h", "mysql://me:***@h"),
    ],
)
def test_a_password_is_masked(address: str, expected: str) -> None:
    assert masked(address) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("rediss://h?ssl_ca_certs=/x&password=secret", "rediss://h?ssl_ca_certs=/x&password=***"),
        ("unix:///run/redis.sock?password=secret&db=1", "unix:///run/redis.sock?password=***&db=1"),
        ("rediss://h?ssl_keyfile=/k&ssl_password=secret", "rediss://h?ssl_keyfile=/k&ssl_password=***"),
        ("sc://h:15002/;use_ssl=true;token=secret", "sc://h:15002/;use_ssl=true;token=***"),
        ("sc://h;token=a@secret;x-header=secret", "sc://h;token=***;x-header=***"),
    ],
)
def test_a_secret_parameter_is_masked(address: str, expected: str) -> None:
    assert masked(address) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("redis://secret@127.0.0.1:1/0", "redis://***@127.0.0.1:1/0"),
        ("rediss+cluster://secret@h", "rediss+cluster://***@h"),
        ("redis://sec/ret@h", "redis://***@h"),
        ("unix://secret@/run/redis.sock", "unix://***@/run/redis.sock"),
    ],
)
def test_a_password_without_its_colon_is_masked(address: str, expected: str) -> None:
    assert masked(address) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("pasword=secret", "pasword=***"),
        ("db=1&PWD=secret&prefix=a", "db=1&PWD=***&prefix=a"),
        ("secret", "***"),
        ("db=1&secret", "db=1&***"),
        ("pasword=sec=ret is down", "pasword=*** is down"),
        ("=secret", "=***"),
    ],
)
def test_an_unknown_parameter_is_masked_as_a_possible_secret(query: str, expected: str) -> None:
    assert masked(f"redis://h?{query}") == f"redis://h?{expected}"


@pytest.mark.parametrize("password", ["se%40cr@et", "sec#ret", "sec/ret", "sec?ret", "s@cr/et", "s@cr/e@t", "s@c ret"])
@pytest.mark.parametrize("rest", ["h:1/0", "[bad/0"])
def test_an_unescaped_password_is_masked_completely(password: str, rest: str) -> None:
    assert masked(f"redis://me:{password}@{rest}") == f"redis://me:***@{rest}"

"""Parse and check the address of Redis before anything connects.

redis-py ignores some address parameters that it does not know and fails on others at the first connection, so every
supported parameter is listed here. Messages never repeat a password.
"""

import difflib
import re
from collections.abc import Set
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from penstock.config import shown
from penstock.errors import ConfigurationError

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
PREFIX_DEFAULT = "penstock"

_PREFIX = "prefix"  # Penstock's own parameter: the prefix of all key names
_PREFIX_FORM = re.compile(r"[A-Za-z0-9_.:-]{1,100}")  # no braces: a cluster hashes the part of a key between them
_ALWAYS = frozenset({_PREFIX, "client_name", "password", "username"})
_TLS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "ssl_password",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A checked Redis address. ``url`` lacks Penstock's own parameter; ``prefix`` begins the names of all keys."""

    url: str
    prefix: str


def is_redis(address: str) -> bool:
    """Return True if the scheme is one of Redis, even if the rest of the address is invalid."""
    scheme, found, _ = address.partition("://")
    return bool(found) and scheme in REDIS_SCHEMES


def parse_redis_address(address: str) -> RedisAddress:
    """Return the checked address. Raises `ConfigurationError` for the first mistake."""
    try:
        parts = urlsplit(address)
    except ValueError as error:  # brackets without an IPv6 address
        raise _unreadable(address) from error
    if parts.scheme == "unix":
        _check_socket(address, parts)
    else:
        _check_host(address, parts)
        _check_number(address, parts)
    try:
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:  # a parameter without a value
        raise _unreadable(address) from error
    _check_parameters(address, parts.scheme, given)
    rest = urlencode([(name, value) for name, value in given if name != _PREFIX])
    url = address.partition("?")[0] + (f"?{rest}" if rest else "")
    return RedisAddress(url=url, prefix=dict(given).get(_PREFIX, PREFIX_DEFAULT))


def _check_socket(address: str, parts: SplitResult) -> None:
    if parts.hostname or not parts.path.strip("/"):
        raise _invalid(address, "names no socket", "write unix:///FOLDER/redis.sock, with three slashes")


def _check_host(address: str, parts: SplitResult) -> None:
    if parts.fragment or "@" in parts.path + parts.query:
        raise _invalid(address, "cannot be read", "write %2F, %3F, %23 and %40 for / ? # and @ in a password")
    if not parts.hostname:
        raise _invalid(address, "names no host", f"write {parts.scheme}://HOST:PORT")
    try:
        fits = parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise _invalid(address, "has an invalid port", "write one from 1 to 65535, or leave it out for 6379")


def _check_number(address: str, parts: SplitResult) -> None:
    number = parts.path.removeprefix("/")
    if number and not _is_number(number):
        raise _invalid(address, f"names a database {number!r}", "Redis numbers its databases: write /0, or nothing")
    if parts.scheme.endswith("+cluster") and number.strip("0"):
        raise _invalid(address, f"names database {number}, and a cluster has only 0", "separate apps by ?prefix=NAME")


def _check_parameters(address: str, scheme: str, given: list[tuple[str, str]]) -> None:
    known = _ALWAYS | (_TLS if scheme.startswith("rediss") else set()) | (set() if "+" in scheme else {"db"})
    for name, value in given:
        if name not in known:
            raise _invalid(address, f"has an unknown parameter {name}", _meant(name, known))
        if name == "db" and not _is_number(value):
            raise _invalid(
                address, f"names a database {value!r}", "Redis numbers its databases: write db=0, or nothing"
            )
        if name == _PREFIX and not _PREFIX_FORM.fullmatch(value):
            raise _invalid(address, "has an invalid prefix", "write up to 100 letters, digits and any of - _ . :")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _meant(name: str, known: Set[str]) -> str:
    if name in _TLS:
        return "it is an option of TLS, so write rediss://"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known parameters: {', '.join(sorted(known))}"


def _unreadable(address: str) -> ConfigurationError:
    return _invalid(address, "cannot be read", "write redis://HOST:PORT/NUMBER")


def _invalid(address: str, subject: str, instead: str) -> ConfigurationError:
    end = "" if instead.endswith("?") else "."
    return ConfigurationError(f"The broker {shown('broker', address)} {subject}; {instead}{end}")

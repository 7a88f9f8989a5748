"""Addresses of systems as they may be said, in errors, logs and answers: without their passwords."""

import re

MASK = "***"

# To the last @: a password that was not escaped may hold anything, and rather too much is masked than too little.
_PASSWORD = re.compile(r"(?<=://)([^/?#@:\s]*):.*@", re.DOTALL)
# A user without a password is hardly one on Redis: it is a password whose colon was forgotten.
_LONE_USER = re.compile(r"((?:rediss?(?:\+cluster)?|unix)://)[^:\s]+@", re.IGNORECASE)
_QUERY = re.compile(r"(://[^\s?]*\?)(\S*)")
_PARAMETER = re.compile(r"([^=&;]*)(=?)([^&;]*)")
_PLAIN_PARAMETERS = frozenset(
    {
        "charset",
        "client_name",
        "db",
        "mode",
        "prefix",
        "ssl",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "sslmode",
        "user",
        "username",
    }
)


def masked(text: str) -> str:
    """An address, or a text that holds one: its password replaced by `MASK`, and its parameters but for those that are
    known to be no secrets, as one may be misspelt."""
    hidden = _LONE_USER.sub(rf"\1{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", text))
    return _QUERY.sub(lambda found: found[1] + _PARAMETER.sub(_parameter, found[2]), hidden)


def _parameter(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    if name in _PLAIN_PARAMETERS or not name + value:
        return found[0]
    return f"{name}={MASK}" if equals else MASK  # without a name it may be a value as a whole

"""Mask the passwords in addresses before they appear in errors and logs."""

import re

MASK = "***"

# Match up to the last @, because an unescaped password may contain any character. Masking too much is safer than too
# little.
_PASSWORD = re.compile(r"(?<=://)([^/?#@:\s]*):.*@", re.DOTALL)
# Redis addresses rarely have a user without a password: it is more likely a password whose colon is missing.
_LONE_USER = re.compile(r"((?:rediss?(?:\+cluster)?|unix)://)[^:\s]+@", re.IGNORECASE)
_QUERY = re.compile(r"(://[^\s?]*\?)(\S*)")
_CONNECT = re.compile(r"(\bsc://[^\s;]*;)(\S*)", re.IGNORECASE)  # Spark Connect's parameters follow a semicolon
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
        "use_ssl",
        "user",
        "user_id",
        "username",
    }
)


def masked(text: str) -> str:
    """Return an address, or a text that contains one, with its password and query parameters replaced by `MASK`.

    Parameters known to be harmless stay. All others are masked, because the name of a secret one may be misspelt.
    """
    hidden = _CONNECT.sub(_parameters, text)  # before the password, which may end at an @ in a parameter
    hidden = _LONE_USER.sub(rf"\1{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", hidden))
    return _QUERY.sub(_parameters, hidden)


def _parameters(found: re.Match[str]) -> str:
    return found[1] + _PARAMETER.sub(_parameter, found[2])


def _parameter(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    if name in _PLAIN_PARAMETERS or not name + value:
        return found[0]
    return f"{name}={MASK}" if equals else MASK  # without a name, the whole part may be a secret value

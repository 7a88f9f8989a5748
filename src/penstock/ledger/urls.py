"""A ledger's address as people write it -> a database URL."""

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from penstock.errors import ConfigurationError

_SQLITE_FILE = "sqlite:///"
_PASSWORDS = {
    "mysql": ("passwd", "password"),
    "mariadb": ("passwd", "password"),
    "postgresql": ("password",),
    "postgres": ("password",),
}


def parsed_url(url: str | Path) -> URL:
    """The database URL. Raises `ConfigurationError` for text that is none, without saying it again."""
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    if url.startswith(_SQLITE_FILE):  # a path is taken as it is, question marks and all
        return URL.create("sqlite", database=url.removeprefix(_SQLITE_FILE))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # what was written may hold a password, and is not said again
        raise ConfigurationError(
            "the ledger's address is not a database URL: write one like sqlite:///folder/ledger.db"
        ) from None
    if _spills(parsed):  # the end of a password, which every error would name as a part of the host or database
        raise ConfigurationError(
            "the ledger's address cannot be taken apart: percent-encode the password in it (@ is %40, / is %2F)"
        )
    return _with_password(parsed)


def _spills(url: URL) -> bool:
    """Whether an @ is left where none can be: a / or an @ in a password ends it too early."""
    return any("@" in (part or "") for part in (url.host, url.database))


def _with_password(url: URL) -> URL:
    """Drivers take a password among the parameters as well: it goes where it is hidden, and where others find it."""
    names = _PASSWORDS.get(url.get_backend_name(), ())
    given = next((url.query[name] for name in names if name in url.query), None)
    if given is None or url.username is None:  # which SQLAlchemy would not write down
        return url
    return url.set(password=given if isinstance(given, str) else given[-1]).difference_update_query(names)

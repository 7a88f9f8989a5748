"""Translate the errors of a table's catalog: those of PyIceberg, and of the libraries that its catalogs use.

Every message is one line without the secrets of the configuration, which libraries repeat in theirs.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, RequestException

from penstock.errors import ConfigurationError, PenstockError, TableDenied, TableError, TemporaryError
from penstock.sinks.catalogs.name import CatalogName
from penstock.storage.sqlite import primary_code

REASON_CHARS_MAX = 300

_SECRET_KEY = re.compile(r"secret|token|credential|password|passphrase|authorization|\bkey\b", re.IGNORECASE)
_SECRET_CHARS_MIN = 4  # a shorter value would be found in innocent words
_PASSWORD_IN_URL = re.compile(r"(//[^/\s:@]*):[^@\s]*@")
_DENIED = re.compile(r"permission denied|access.?denied|password authentication failed|not authorized|forbidden", re.I)
_DENIED_CODES = re.compile(r"AccessDenied|UnrecognizedClient|InvalidClientToken|ExpiredToken|SignatureDoesNotMatch")
_NO_FILE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY)
_BUSY_CODES = re.compile(r"Throttl|TooManyRequests|InternalService|InternalFailure|OperationTimeout|ServiceUnavailable")


class CatalogErrors:
    """Penstock's exceptions for the errors of one table's catalog. Any thread may use it."""

    def __init__(self, name: CatalogName) -> None:
        self.name = name
        self._secrets: frozenset[str] = frozenset()  # any thread may add some; all threads add the same ones

    def hide(self, properties: Mapping[str, Any]) -> None:
        """Leave the secrets of a configuration out of messages from now on."""
        self._secrets |= frozenset(_secrets(properties))

    def translated(self, error: Exception) -> PenstockError | None:
        """Return the Penstock exception for an error of PyIceberg or a library below; None for an unknown one."""
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, NotInstalledError | ModuleNotFoundError):
            return self._lacking(error)
        if isinstance(error, UnauthorizedError | AuthorizationExpiredError | ForbiddenError | OAuthError):
            return self._denied(error)
        if isinstance(error, InvalidURL | InvalidSchema | MissingSchema):
            return self.misconfigured(error)
        if isinstance(
            error,
            RequestException
            | ServerError
            | ServiceUnavailableError
            | TooManyRequestsError
            | CommitStateUnknownException
            | NoSuchNamespaceError  # these two: deleted meanwhile
            | NoSuchTableError,
        ):
            return self._unavailable(error)
        library = type(error).__module__.partition(".")[0]
        if library in ("botocore", "boto3"):
            return self._aws_fault(error)
        if library == "sqlalchemy":
            return self._sql_fault(error)
        if isinstance(error, OSError):  # of the file access to metadata
            return self._denied(error) if _DENIED.search(str(error)) else self._unavailable(error)
        refusals = RESTError | NotImplementedError | ValueError | CommitFailedException | NoSuchPropertyException
        if isinstance(error, refusals):
            return self._refused(error)
        return None

    def misconfigured(self, error: Exception) -> ConfigurationError:
        """Return the exception for a catalog that PyIceberg cannot open."""
        return ConfigurationError(
            f"The catalog {self.name.scheme} cannot be used ({self.reason(error)}); check its description in "
            "PyIceberg's configuration."
        )

    def reason(self, error: Exception) -> str:
        """Return the error in one short line without secrets."""
        text = str(getattr(error, "orig", None) or error) or type(error).__name__  # SQLAlchemy adds the statement
        text = " ".join(text.split("\n", 1)[0].split())
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return _PASSWORD_IN_URL.sub(r"\1:***@", text)[:REASON_CHARS_MAX].rstrip(".: ")

    def _aws_fault(self, error: Exception) -> PenstockError:
        response = getattr(error, "response", None)
        if response is not None:
            code = str(response.get("Error", {}).get("Code", ""))
            if _DENIED_CODES.search(code):
                return self._denied(error)
            if _BUSY_CODES.search(code) or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                return self._unavailable(error)
            return self._refused(error)
        kind = type(error).__name__
        if "Credential" in kind or "Token" in kind:
            return self._denied(error)
        if re.search(r"Connection|Timeout|HTTPClient|Endpoint", kind):
            return self._unavailable(error)
        return self.misconfigured(error)

    def _sql_fault(self, error: Exception) -> PenstockError:
        if _DENIED.search(str(getattr(error, "orig", error))):
            return self._denied(error)
        if primary_code(getattr(error, "orig", None)) in _NO_FILE:
            return ConfigurationError(
                f"The catalog {self.name.scheme} cannot be opened ({self.reason(error)}); create the folder of its "
                "SQLite file and check its permissions, or correct the uri in PyIceberg's configuration."
            )
        kind = type(error).__name__
        if kind in ("ArgumentError", "NoSuchModuleError"):
            return self.misconfigured(error)
        if kind in ("ProgrammingError", "DataError", "NotSupportedError"):
            return self._refused(error)
        return self._unavailable(error)

    def _denied(self, error: Exception) -> TableDenied:
        return TableDenied(
            f"The catalog denies access to {self.name} ({self.reason(error)}); check the credentials of the catalog "
            f"{self.name.scheme} in PyIceberg's configuration, and their rights."
        )

    def _refused(self, error: Exception) -> TableError:
        return TableError(f"The catalog refuses {self.name}: {self.reason(error)}.")

    def _unavailable(self, error: Exception) -> TemporaryError:
        return TemporaryError(
            f"The catalog of {self.name} is not available ({self.reason(error)}); try again later, or correct the uri "
            f"of {self.name.scheme} in PyIceberg's configuration."
        )

    def _lacking(self, error: Exception) -> ConfigurationError:
        missing = getattr(error.__cause__ or error, "name", None)
        needs = f"the package {missing}, which is not installed" if missing else f"a package: {self.reason(error)}"
        return ConfigurationError(f"The catalog {self.name.scheme} needs {needs}; install it in this environment.")


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of a configuration that must not be shown."""
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and _SECRET_KEY.search(key):
            yield from (one for one in (value, value.partition(":")[2]) if len(one) >= _SECRET_CHARS_MIN)
        elif isinstance(value, str) and "://" in value:
            password = value.partition("://")[2].partition("@")[0].partition(":")[2]
            if len(password) >= _SECRET_CHARS_MIN:
                yield password

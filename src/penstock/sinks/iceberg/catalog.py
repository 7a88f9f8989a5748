"""A table in a catalog of PyIceberg's configuration: a REST catalog, AWS Glue or a SQL database.

The catalog names the newest metadata file. A commit is one call of PyIceberg's `Catalog.commit_table` with
requirements: the catalog, or PyIceberg before it replaces the pointer conditionally, checks that the table still has
the snapshot, schema and partitioning that were read. PyIceberg's transactions are not used, because they refresh the
table and commit again.

No layer below repeats a commit whose outcome is unknown, except Glue's client: its second request names the version of
the entry that the first one replaced, and is refused. After an unknown outcome, the caller loads the table and looks.

PyIceberg writes the metadata files of tables in Glue and SQL with its own file access, and a REST catalog writes them
itself. Manifests and data files are Penstock's, as in a table without a catalog.
"""

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

from pyiceberg.catalog import Catalog as PyIcebergClient
from pyiceberg.catalog import infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config
from requests import Session
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, RequestException

from penstock.errors import (
    ConfigurationError,
    PenstockError,
    PublishConflict,
    TableDenied,
    TableError,
    TemporaryError,
)
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.iceberg.features import FORMAT_VERSION
from penstock.sinks.iceberg.file_io import TableFileIO, relative_path
from penstock.sinks.iceberg.folder import KEPT, METADATA_FOLDER, StoredMetadata
from penstock.storage.aws import Aws, MadeOnce, bounded_session
from penstock.storage.files import Files
from penstock.storage.s3_files import S3Files

# Bounds of one request
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 30.0
GLUE_RETRIES_MAX = 1
LOADS_MAX = 3  # a metadata file may be deleted, after many commits, before it is read

REASON_CHARS_MAX = 300

_TYPES = ("rest", "glue", "sql")
_OWN_CODE = "py-catalog-impl"
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: str(FORMAT_VERSION),
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: str(KEPT),
}
_SNAPSHOT_NAME = "snap-"  # begins the name of each snapshot's file
_METADATA_NAME = re.compile(r".+\.metadata\.json(\.gz)?|.+\.gz\.metadata\.json")

_SECRET_KEY = re.compile(r"secret|token|credential|password|passphrase|authorization|\bkey\b", re.IGNORECASE)
_SECRET_CHARS_MIN = 4  # a shorter value would be found in innocent words
_PASSWORD_IN_URL = re.compile(r"(//[^/\s:@]*):[^@\s]*@")
_DENIED = re.compile(r"permission denied|access.?denied|password authentication failed|not authorized|forbidden", re.I)
_DENIED_CODES = re.compile(r"AccessDenied|UnrecognizedClient|InvalidClientToken|ExpiredToken|SignatureDoesNotMatch")
_BUSY_CODES = re.compile(r"Throttl|TooManyRequests|InternalService|InternalFailure|OperationTimeout|ServiceUnavailable")


class PyIcebergCatalog:
    """One table in a catalog of PyIceberg's configuration. Any thread may call it; one at a time calls a catalog."""

    def __init__(self, root: Files, name: CatalogName) -> None:
        """Make no access and read no configuration yet."""
        self.name = name
        self.io = TableFileIO(root)
        self._root = root
        self._identifier = name.parts
        # Any thread may write these, with the same values:
        self._opened: _OpenCatalog | None = None
        self._secrets: frozenset[str] = frozenset()  # of the configuration

    def exists(self) -> bool:
        """Return True if the catalog has the table."""
        return self.load() is not None

    def load(self) -> StoredMetadata | None:
        """Return the newest metadata; None if the catalog has no such table, and never had it.

        Raises:
            TableError: The entry is of another table, or was deleted.
            ConfigurationError: PyIceberg has no such catalog, or lacks a package for it.
            TemporaryError: The catalog cannot be reached.
        """
        table = self._found()
        if table is None and self._was_written():
            table = self._found()  # another process may have created it just before it wrote
            if table is None:
                raise TableError(
                    f"The table {self._root.uri} is no longer in the catalog, as {self.name}: its entry was deleted or "
                    "renamed. Register its newest metadata file there again under this name, or write to another table."
                )
        if table is None:
            return None
        if relative_path(self._root, f"{table.metadata.location}/x") != "x":
            raise TableError(
                f"The catalog has another table as {self.name}: it is at {table.metadata.location}, and not at "
                f"{self._root}. Declare another name (catalog, --catalog), or that location."
            )
        return StoredMetadata(metadata=table.metadata, location=table.metadata_location, table=table)

    def create(self, metadata: TableMetadata) -> None:
        """Create the table, and the namespace if the catalog lacks it.

        Raises `PublishConflict` if the catalog has the table, or the outcome is unknown; else as `load`.
        """
        self._check_nameable()
        try:
            with self._client() as client:
                made = self._create(client, metadata)
        except TableAlreadyExistsError as error:
            raise PublishConflict(f"{self._root.uri}: another writer created {self.name}") from error
        except Exception as error:
            self._raise_after_commit(error, "created")
        if relative_path(self._root, f"{made.metadata.location}/x") != "x":
            raise TableError(
                f"The catalog put the new table {self.name} at {made.metadata.location}, and not at {self._root}: it "
                "assigns locations, so Penstock cannot write to it. Delete that empty table, and use another catalog."
            )

    def commit(
        self, base: StoredMetadata, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]
    ) -> None:
        """Commit one version after ``base``.

        Raises `PublishConflict` if a requirement is not met, or the outcome is unknown; else as `load`.
        """
        table = cast(Table, base.table)
        try:
            with self._client() as client:
                response = client.commit_table(table, tuple(requirements), tuple(updates))
        except (CommitFailedException, NoSuchTableError) as error:
            raise PublishConflict(f"{self._root.uri}: {self._reason(error)}") from error
        except Exception as error:
            self._raise_after_commit(error, "changed", base=base)
        self._after(base.metadata, response.metadata)

    def is_unused(self, stored: StoredMetadata, path: str) -> bool:
        """Return True if the file is metadata that the newest metadata does not name as one of its last versions."""
        name = path.rpartition("/")[2]
        named = {stored.location, *(entry.metadata_file for entry in stored.metadata.metadata_log)}
        return _METADATA_NAME.fullmatch(name) is not None and name not in {one.rpartition("/")[2] for one in named}

    def _found(self) -> Table | None:
        for _ in range(LOADS_MAX):
            try:
                with self._client() as client:
                    return client.load_table(self._identifier)
            except (NoSuchIcebergTableError, NoSuchPropertyException) as error:
                raise TableError(
                    f"The catalog's entry {self.name} is not that of an Iceberg table ({self._reason(error)}); declare "
                    "another name (catalog, --catalog)."
                ) from error
            except NoSuchTableError:
                return None
            except FileNotFoundError as error:
                missing = error
            except Exception as error:
                self._raise(error)
        raise TableError(
            f"The catalog's entry {self.name} names a metadata file that does not exist ({self._reason(missing)}); "
            "restore that file, or register an older one."
        ) from missing

    def _was_written(self) -> bool:
        """Return True if a commit was begun, and so the catalog once had the table."""
        return any(name.startswith(_SNAPSHOT_NAME) for name in self._root.names(METADATA_FOLDER))

    def _create(self, client: PyIcebergClient, metadata: TableMetadata) -> Table:
        for length in range(1, len(self._identifier)):
            namespace = self._identifier[:length]
            if not client.namespace_exists(namespace):
                with suppress(NamespaceAlreadyExistsError):
                    client.create_namespace(namespace)
        return client.create_table(
            self._identifier,
            metadata.schema(),
            location=str(self._root),
            partition_spec=metadata.spec(),
            sort_order=UNSORTED_SORT_ORDER,
            properties={**metadata.properties, **_NEW_TABLE},
        )

    def _check_nameable(self) -> None:
        """Raise `TableError` for a prefix that PyIceberg would read as another one: it parses locations as URLs."""
        if not self._root.is_local and re.search(r"[?#]", str(self._root)):
            raise TableError(f"A table in a catalog cannot be at {self._root}: its prefix has a ? or a #.")

    def _after(self, before: TableMetadata, now: TableMetadata) -> None:
        """Delete the metadata files that left the table's log, if its properties say so.

        The commit has succeeded: a vacuum makes up for a failure here.
        """
        if now.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, "").lower() != "true":
            return
        gone = {entry.metadata_file for entry in before.metadata_log} - {one.metadata_file for one in now.metadata_log}
        paths = [path for location in gone if (path := relative_path(self._root, location)) is not None]
        if paths:
            with suppress(TemporaryError, TableError):
                self._root.delete(paths)

    # -- calls and errors ----------------------------------------------------------------------------------------

    @contextmanager
    def _client(self) -> Iterator[PyIcebergClient]:
        """Return the catalog, for one thread at a time: PyIceberg does not say that several may use one."""
        opened = self._opened
        if opened is None:
            opened = self._opened = self._open()
        with opened.lock:
            yield opened.client

    def _open(self) -> "_OpenCatalog":
        name = self.name.scheme
        found = self._configuration()
        self._secrets = frozenset(_secrets(found))
        try:
            kind = str(found.get("type") or cast(Any, infer_catalog_type(name, found)).value).lower()
        except ValueError as error:
            raise self._misconfigured(error) from error
        if kind not in _TYPES or _OWN_CODE in found:
            raise ConfigurationError(
                f"The catalog {name} is of the type {found.get(_OWN_CODE) or kind}, which Penstock does not use; the "
                f"types that it is tested with: {', '.join(_TYPES)}."
            )
        aws = self._root.aws if isinstance(self._root, S3Files) else Aws()
        try:
            opened = _open_catalog(kind, name, json.dumps(found, sort_keys=True), aws)
        except (ValueError, KeyError) as error:  # also a server that is no catalog
            raise self._misconfigured(error) from error
        except Exception as error:
            self._raise(error)
        self._secrets |= frozenset(_secrets(opened.client.properties))  # a server may add some
        return opened

    def _configuration(self) -> RecursiveDict:
        try:
            config = Config()
            found = config.get_catalog_config(self.name.scheme)
            known = ", ".join(sorted(config.get_known_catalogs())) or "none"
        except Exception as error:
            raise ConfigurationError(
                f"PyIceberg's configuration cannot be read ({type(error).__name__}); check .pyiceberg.yaml and the "
                "variables that begin with PYICEBERG_."
            ) from error
        if found is None:
            raise ConfigurationError(
                f"PyIceberg's configuration has no catalog {self.name.scheme} (it has: {known}); describe it in "
                f".pyiceberg.yaml, or set PYICEBERG_CATALOG__{self.name.scheme.upper()}__URI and so on."
            )
        return found

    def _raise(self, error: Exception) -> NoReturn:
        """Raise the Penstock exception for a failed request that changes nothing."""
        fault = self._fault(error)
        if fault is None or fault is error:
            raise error
        raise fault from error

    def _raise_after_commit(self, error: Exception, done: str, *, base: StoredMetadata | None = None) -> NoReturn:
        """Raise the exception for a failed commit: a conflict, unless it was certainly not executed.

        A refusal is a conflict, too, if the table has changed since it was read: a catalog refuses a snapshot with a
        number that another branch has used, and the removal of a snapshot that has expired meanwhile.
        """
        fault = self._fault(error)
        if fault is None or fault is error:  # Penstock's own: the catalog could not be opened
            raise error
        if isinstance(fault, ConfigurationError | TableDenied) or isinstance(error, TooManyRequestsError):
            raise fault from error
        if isinstance(fault, TableError) and not (base is not None and self._has_moved(base)):
            raise fault from error
        raise PublishConflict(
            f"{self._root.uri}: it is unknown if {self.name} was {done} ({self._reason(error)})"
        ) from error

    def _has_moved(self, base: StoredMetadata) -> bool:
        try:
            now = self.load()
        except PenstockError:  # the caller meets it when it loads the table again
            return True
        return now is None or now.location != base.location or now.metadata != base.metadata

    def _fault(self, error: Exception) -> PenstockError | None:
        """Return the Penstock exception for an error of PyIceberg or a library below; None for an unknown one."""
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, NotInstalledError | ModuleNotFoundError):
            return self._lacking(error)
        if isinstance(error, UnauthorizedError | AuthorizationExpiredError | ForbiddenError | OAuthError):
            return self._denied(error)
        if isinstance(error, InvalidURL | InvalidSchema | MissingSchema):
            return self._misconfigured(error)
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
            return TableError(f"The catalog refuses {self.name}: {self._reason(error)}.")
        return None

    def _aws_fault(self, error: Exception) -> PenstockError:
        response = getattr(error, "response", None)
        if response is not None:
            code = str(response.get("Error", {}).get("Code", ""))
            if _DENIED_CODES.search(code):
                return self._denied(error)
            if _BUSY_CODES.search(code) or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                return self._unavailable(error)
            return TableError(f"The catalog refuses {self.name}: {self._reason(error)}.")
        kind = type(error).__name__
        if "Credential" in kind or "Token" in kind:
            return self._denied(error)
        if re.search(r"Connection|Timeout|HTTPClient|Endpoint", kind):
            return self._unavailable(error)
        return self._misconfigured(error)

    def _sql_fault(self, error: Exception) -> PenstockError:
        if _DENIED.search(str(getattr(error, "orig", error))):
            return self._denied(error)
        kind = type(error).__name__
        if kind in ("ArgumentError", "NoSuchModuleError"):
            return self._misconfigured(error)
        if kind in ("ProgrammingError", "DataError", "NotSupportedError"):
            return TableError(f"The catalog refuses {self.name}: {self._reason(error)}.")
        return self._unavailable(error)

    def _denied(self, error: Exception) -> TableDenied:
        return TableDenied(
            f"The catalog denies access to {self.name} ({self._reason(error)}); check the credentials of the catalog "
            f"{self.name.scheme} in PyIceberg's configuration, and their rights."
        )

    def _unavailable(self, error: Exception) -> TemporaryError:
        return TemporaryError(
            f"The catalog of {self.name} is not available ({self._reason(error)}); try again later, or correct the uri "
            f"of {self.name.scheme} in PyIceberg's configuration."
        )

    def _misconfigured(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"The catalog {self.name.scheme} cannot be used ({self._reason(error)}); check its description in "
            "PyIceberg's configuration."
        )

    def _lacking(self, error: Exception) -> ConfigurationError:
        missing = getattr(error.__cause__ or error, "name", None)
        needs = f"the package {missing}, which is not installed" if missing else f"a package: {self._reason(error)}"
        return ConfigurationError(f"The catalog {self.name.scheme} needs {needs}; install it in this environment.")

    def _reason(self, error: Exception) -> str:
        """Return the error in one short line without secrets."""
        text = str(getattr(error, "orig", None) or error) or type(error).__name__  # SQLAlchemy adds the statement
        text = " ".join(text.split("\n", 1)[0].split())
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return _PASSWORD_IN_URL.sub(r"\1:***@", text)[:REASON_CHARS_MAX].rstrip(".: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenCatalog:
    """A catalog that this process uses, and its lock."""

    client: PyIcebergClient
    lock: threading.RLock = field(default_factory=threading.RLock)


@MadeOnce
def _open_catalog(kind: str, name: str, configuration: str, aws: Aws) -> _OpenCatalog:
    """Open a catalog, once a process: Glue's client takes about a second. ``configuration`` is PyIceberg's, as JSON."""
    make = partial(_make, kind, name, json.loads(configuration), aws)
    try:
        return _OpenCatalog(client=make())
    except Exception:
        if kind != "sql":
            raise
        return _OpenCatalog(client=make())  # another process has just created the catalog's own tables


def _make(kind: str, name: str, properties: Mapping[str, Any], aws: Aws) -> PyIcebergClient:
    if kind != "glue" and not properties.get("uri"):
        raise ValueError("it has no uri")
    if kind == "rest":
        # "refs" would leave snapshots out, whose files a vacuum would then take for unused
        return _BoundedRest(name, **{"rest.sigv4.max-retries": "0", **properties, "snapshot-loading-mode": "all"})
    properties = {**_storage_properties(aws, properties), **properties, "type": kind}
    if kind == "glue":
        session = bounded_session(connect_seconds=CONNECT_SECONDS, response_seconds=RESPONSE_SECONDS)
        # a session and a number, where PyIceberg's types allow only texts
        bounds: Any = {"botocore_session": session, "glue.max-retries": GLUE_RETRIES_MAX}
        return load_catalog(name, **{**_glue_properties(aws), **bounds, **properties})
    return load_catalog(name, **{**properties, "uri": _bounded_uri(properties["uri"])})


class _BoundedRest(RestCatalog):
    """PyIceberg's REST client with a bound for each request; it has none."""

    def _config_headers(self, session: Session) -> None:
        # the first step with a new session: before it requests a token
        session.request = partial(session.request, timeout=(CONNECT_SECONDS, RESPONSE_SECONDS))  # type: ignore[method-assign]
        super()._config_headers(session)


def _storage_properties(aws: Aws, configured: Mapping[str, Any]) -> dict[str, str]:
    """Return the access to S3 that metadata files need, as far as Penstock's settings know it."""
    found = {"s3.connect-timeout": f"{CONNECT_SECONDS:g}", "s3.request-timeout": f"{RESPONSE_SECONDS:g}"}
    if aws.endpoint_url:
        found["s3.endpoint"] = aws.endpoint_url
    region = aws.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region and "client.region" not in configured:
        found["s3.region"] = region
    return found


def _glue_properties(aws: Aws) -> dict[str, str]:
    given = {"glue.endpoint": aws.endpoint_url, "glue.region": aws.region, "glue.profile-name": aws.profile}
    return {name: value for name, value in given.items() if value}


def _bounded_uri(uri: str) -> str:
    """Return a database URI that bounds connecting and each statement. SQLite bounds its waits for locks, 5 s."""
    if not uri.startswith("postgresql") or "connect_timeout" in uri:
        return uri
    milliseconds = int(RESPONSE_SECONDS * 1000)
    bounds = f"connect_timeout={CONNECT_SECONDS:g}&tcp_user_timeout={milliseconds}"
    if "options=" not in uri:
        bounds += f"&options=-c%20statement_timeout%3D{milliseconds}"
    return f"{uri}{'&' if '?' in uri else '?'}{bounds}"


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

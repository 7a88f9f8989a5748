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
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchIcebergTableError,
    NoSuchPropertyException,
    NoSuchTableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config
from requests import Session
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random

from penstock.errors import (
    ConfigurationError,
    PenstockError,
    PublishConflict,
    TableDenied,
    TableError,
)
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.iceberg.catalog_errors import CatalogErrors
from penstock.sinks.iceberg.features import FORMAT_VERSION
from penstock.sinks.iceberg.file_io import TableFileIO, is_root, relative_path
from penstock.sinks.iceberg.folder import KEPT, METADATA_FOLDER, StoredMetadata
from penstock.storage.aws import Aws, MadeOnce, bounded_session
from penstock.storage.files import Files
from penstock.storage.s3_files import S3Files

# Bounds of one request
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 30.0
GLUE_RETRIES_MAX = 1
SQL_TRIES_MAX = 10  # of opening a SQL catalog
SQL_PAUSE_SECONDS_MAX = 0.05
LOADS_MAX = 3  # a metadata file may be deleted, after many commits, before it is read

_TYPES = ("rest", "glue", "sql")
_OWN_CODE = "py-catalog-impl"
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: str(FORMAT_VERSION),
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: str(KEPT),
}
_SNAPSHOT_NAME = "snap-"  # begins the name of each snapshot's file
_METADATA_NAME = re.compile(r".+\.metadata\.json(\.gz)?|.+\.gz\.metadata\.json")


class PyIcebergCatalog:
    """One table in a catalog of PyIceberg's configuration. Any thread may call it; one at a time calls a catalog."""

    def __init__(self, root: Files, name: CatalogName) -> None:
        """Make no access and read no configuration yet."""
        self.name = name
        self.io = TableFileIO(root)
        self._root = root
        self._identifier = name.parts
        self._errors = CatalogErrors(name)
        self._opened: _OpenCatalog | None = None  # any thread may write it, with the same value

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
        if not is_root(self._root, table.metadata.location):
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
        if not is_root(self._root, made.metadata.location):
            raise TableError(
                f"The catalog put the new table {self.name} at {made.metadata.location}, and not at {self._root}: it "
                "assigns locations, so Penstock cannot write to it. Delete that empty table, and use another catalog."
            )

    def commit(
        self, base: StoredMetadata, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]
    ) -> StoredMetadata:
        """Commit one version after ``base``, and return it.

        Raises `PublishConflict` if a requirement is not met, or the outcome is unknown; else as `load`.
        """
        table = cast(Table, base.table)
        try:
            with self._client() as client:
                response = client.commit_table(table, tuple(requirements), tuple(updates))
        except (CommitFailedException, NoSuchTableError) as error:
            raise PublishConflict(f"{self._root.uri}: {self._errors.reason(error)}") from error
        except Exception as error:
            self._raise_after_commit(error, "changed", base=base)
        return StoredMetadata(metadata=response.metadata, location=response.metadata_location)

    def write_hint(self, committed: StoredMetadata) -> None:
        """Do nothing: readers ask the catalog."""

    def delete_old_metadata(self, base: StoredMetadata, committed: StoredMetadata) -> None:
        """Delete the metadata files that a commit removed from the table's log, if the table's properties say so.

        A vacuum deletes those that this did not.
        """
        before, now = base.metadata, committed.metadata
        if now.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, "").lower() != "true":
            return
        gone = {entry.metadata_file for entry in before.metadata_log} - {one.metadata_file for one in now.metadata_log}
        self._root.delete([path for location in gone if (path := relative_path(self._root, location)) is not None])

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
                    f"The catalog's entry {self.name} is not that of an Iceberg table ({self._errors.reason(error)}); "
                    "declare another name (catalog, --catalog)."
                ) from error
            except NoSuchTableError:
                return None
            except FileNotFoundError as error:
                missing = error
            except Exception as error:
                self._raise(error)
        raise TableError(
            f"The catalog's entry {self.name} names a metadata file that does not exist "
            f"({self._errors.reason(missing)}); restore that file, or register an older one."
        ) from missing

    def _was_written(self) -> bool:
        """Return True if a commit began: then the catalog had the table once."""
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

    @contextmanager
    def _client(self) -> Iterator[PyIcebergClient]:
        """Lend the catalog to one thread at a time: PyIceberg does not document it as thread-safe."""
        opened = self._opened
        if opened is None:
            opened = self._opened = self._open()
        with opened.lock:
            yield opened.client

    def _open(self) -> "_OpenCatalog":
        name = self.name.scheme
        found = self._configuration()
        self._errors.hide(found)
        try:
            kind = str(found.get("type") or cast(Any, infer_catalog_type(name, found)).value).lower()
        except ValueError as error:
            raise self._errors.misconfigured(error) from error
        if kind not in _TYPES or _OWN_CODE in found:
            raise ConfigurationError(
                f"The catalog {name} is of the type {found.get(_OWN_CODE) or kind}, which Penstock does not use; the "
                f"types that it is tested with: {', '.join(_TYPES)}."
            )
        aws = self._root.aws if isinstance(self._root, S3Files) else Aws()
        try:
            opened = _open_catalog(kind, name, json.dumps(found, sort_keys=True), aws)
        except (ValueError, KeyError) as error:  # also a server that is no catalog
            raise self._errors.misconfigured(error) from error
        except Exception as error:
            self._raise(error)
        self._errors.hide(opened.client.properties)  # a server may add some
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
        fault = self._errors.translated(error)
        if fault is None or fault is error:
            raise error
        raise fault from error

    def _raise_after_commit(self, error: Exception, done: str, *, base: StoredMetadata | None = None) -> NoReturn:
        """Raise the exception for a failed commit: a conflict, unless it was certainly not executed.

        A refusal is a conflict, too, if the table has changed since it was read: a catalog refuses a snapshot with a
        number that another branch has used, and the removal of a snapshot that has expired meanwhile.
        """
        fault = self._errors.translated(error)
        if fault is None or fault is error:  # Penstock's own: the catalog could not be opened
            raise error
        if isinstance(fault, ConfigurationError | TableDenied) or isinstance(error, TooManyRequestsError):
            raise fault from error
        if isinstance(fault, TableError) and not (base is not None and self._has_moved(base)):
            raise fault from error
        raise PublishConflict(
            f"{self._root.uri}: it is unknown if {self.name} was {done} ({self._errors.reason(error)})"
        ) from error

    def _has_moved(self, base: StoredMetadata) -> bool:
        try:
            now = self.load()
        except PenstockError:  # the caller meets it when it loads the table again
            return True
        return now is None or now.location != base.location or now.metadata != base.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenCatalog:
    """A catalog that this process uses, and its lock."""

    client: PyIcebergClient
    lock: threading.RLock = field(default_factory=threading.RLock)


@MadeOnce
def _open_catalog(kind: str, name: str, configuration: str, aws: Aws) -> _OpenCatalog:
    """Open a catalog, once a process: Glue's client takes about a second. ``configuration`` is PyIceberg's, as JSON."""
    make = partial(_make, kind, name, json.loads(configuration), aws)
    retrying = Retrying(
        retry=retry_if_exception(_is_created_elsewhere),
        stop=stop_after_attempt(SQL_TRIES_MAX) | stop_after_delay(CONNECT_SECONDS),
        wait=wait_random(max=SQL_PAUSE_SECONDS_MAX),
        reraise=True,
    )
    return _OpenCatalog(client=retrying(make))


def _is_created_elsewhere(error: BaseException) -> bool:
    """Return True if another process may have just created a table of a new SQL catalog, which has several.

    PostgreSQL reports that as the first two kinds, in the server's language.
    """
    return type(error).__name__ in ("ProgrammingError", "IntegrityError") or "already exists" in str(error)


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

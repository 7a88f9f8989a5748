"""The catalog of a table: its folder, or one of PyIceberg's configuration that the declaration of the table names.

Beside a table in a catalog is the file `CATALOG_FILE` with the catalog's name and the table's name in it. It is written
before the table is created, so commands and readers need only the table's address to find the newest metadata. A table
without that file has its folder as catalog, and keeps it.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from penstock.errors import TableError
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.checks import mark_table
from penstock.sinks.iceberg.catalog import PyIcebergCatalog
from penstock.sinks.iceberg.file_io import TableFileIO, is_root
from penstock.sinks.iceberg.folder import METADATA_FOLDER, FolderCatalog, StoredMetadata
from penstock.sinks.registry import CATALOG_FILE
from penstock.storage.files import Files


class MetadataCatalog(Protocol):
    """The place that names the newest metadata of one table. Any thread may call it."""

    @property
    def io(self) -> TableFileIO:
        """The table's metadata files."""
        ...

    def exists(self) -> bool:
        """Return True if the table exists."""
        ...

    def load(self) -> StoredMetadata | None:
        """Return the newest metadata; None if there is no table. Raises `TableError` for a table that was moved."""
        ...

    def create(self, metadata: TableMetadata) -> None:
        """Create the table. Raises `PublishConflict` if it exists, or the outcome is unknown."""
        ...

    def commit(
        self, base: StoredMetadata, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]
    ) -> StoredMetadata:
        """Commit one version after ``base``, with one request, and return it.

        Raises `PublishConflict` if a requirement is not met, or the outcome is unknown.
        """
        ...

    def write_hint(self, committed: StoredMetadata) -> None:
        """Let readers that know only the table's folder find a committed version. Raises `TemporaryError`."""
        ...

    def delete_old_metadata(self, base: StoredMetadata, committed: StoredMetadata) -> None:
        """Delete the metadata files that are not needed after this commit. Raises `TemporaryError`."""
        ...

    def is_unused(self, stored: StoredMetadata, path: str) -> bool:
        """Return True if a file below the root is an old version of the metadata that the catalog does not need."""
        ...


class CatalogChoice:
    """Finds the catalog of one table. Any thread may call it: a race costs at most another read of the file."""

    def __init__(self, root: Files, declared: CatalogName | None) -> None:
        """``declared`` None: the table is in the catalog that it remembers, or else in its folder."""
        self._root = root
        self._declared = declared
        self._folder = FolderCatalog(root)
        self._opened: PyIcebergCatalog | None = None  # the last one
        self._settled: MetadataCatalog | None = None  # set while the table exists: its catalog does not change

    def current(self) -> MetadataCatalog:
        """Return the table's catalog, without a request to it.

        Raises `TableError` if the table is in another catalog than the declared one, or was moved.
        """
        if self._settled is not None:
            return self._settled
        remembered = self._remembered()
        if remembered is None and self._declared is None:
            return self._folder
        if remembered is None and self._folder.exists():
            raise TableError(
                f"The table {self._root.uri} exists without the catalog {self._declared}: its folder names its newest "
                "metadata; declare no catalog (catalog, --catalog), or write to another table."
            )
        return self._open(remembered or self._declared)

    def owns_metadata(self) -> bool:
        """Return True if the metadata folder has no files of another catalog."""
        if self._remembered() is not None:
            return True
        return self._folder.owns_folder() if self._declared is None else not self._root.names(METADATA_FOLDER)

    def settle(self, catalog: MetadataCatalog) -> None:
        """Keep the catalog in which the table was found, and write its name beside the table if it is not there yet."""
        if self._settled is None:
            if isinstance(catalog, PyIcebergCatalog) and self._remembered() is None:  # another program's table
                mark_table(self._root)
                self.remember(catalog)
            self._settled = catalog

    def unsettle(self) -> None:
        """Find the catalog again at the next call: it has no such table."""
        self._settled = None

    def remember(self, catalog: MetadataCatalog) -> None:
        """Write the name of a declared catalog beside the table. Raises `TableError` as `current` does."""
        if not isinstance(catalog, PyIcebergCatalog) or self._remembered() is not None:
            return
        created = self._root.write_new(CATALOG_FILE, _encoded(catalog.name, self._root))
        if created and self._folder.exists():  # another process has just created the table without a catalog
            self._root.delete([CATALOG_FILE])
        self.current()

    def _open(self, name: CatalogName | None) -> PyIcebergCatalog:
        assert name is not None
        opened = self._opened
        if opened is None or opened.name != name:
            opened = self._opened = PyIcebergCatalog(self._root, name)
        return opened

    def _remembered(self) -> CatalogName | None:
        """Return the name that the table remembers; None if it remembers none, or does not exist."""
        root = self._root
        if root.is_local and root.stat(CATALOG_FILE) is None:  # also if a file is where the folder would be
            return None
        try:
            text = root.read(CATALOG_FILE)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(text)
            name = CatalogName(scheme=str(found["catalog"]), parts=(*map(str, found["namespace"]), str(found["table"])))
            location = str(found["location"])
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(
                f"The file {root}/{CATALOG_FILE} does not name a catalog and a table in it; restore it from a backup."
            ) from error
        if not is_root(root, location):
            raise TableError(
                f"The table {root.uri} was moved or copied: the catalog {name} has it at {location}. Move it back "
                "there, or write its rows to a new table."
            )
        if self._declared not in (None, name):
            raise TableError(
                f"The table {root.uri} is in the catalog {name}, and {self._declared} is declared; declare {name} "
                f"(catalog, --catalog), or write to another table. If {name} was never created, delete "
                f"{root}/{CATALOG_FILE}."
            )
        return name


def _encoded(name: CatalogName, root: Files) -> bytes:
    *namespace, table = name.parts
    document = {"catalog": name.scheme, "namespace": namespace, "table": table, "location": str(root)}
    return f"{json.dumps(document)}\n".encode()

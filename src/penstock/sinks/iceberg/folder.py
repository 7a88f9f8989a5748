"""The catalog of a table that no catalog knows: its own folder.

Each version of the table's metadata is a file, ``metadata/v<NUMBER>.metadata.json``. A commit creates the file of the
next number, unless it exists. Local folders and S3 can both do that atomically, so any number of processes may commit,
and exactly one succeeds per number. ``metadata/version-hint.text`` names a recent number, for readers that find tables
by their folder, and to find the newest version without listing the folder. It is written after the commit. Iceberg's
specification describes this layout as file system tables.

Only the newest `KEPT` files are kept, and a file is deleted only after all older ones. So a version is the newest if
the next one does not exist and the one before does: a process that was halted for many commits may create an old number
again, but its predecessor was deleted. Such a commit is reported as a conflict, and nothing reads its file.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.sinks.iceberg.file_io import TableFileIO
from penstock.sinks.version_file import create_version
from penstock.storage.files import Files

METADATA_FOLDER = "metadata"
HINT_NAME = "version-hint.text"
HINT = f"{METADATA_FOLDER}/{HINT_NAME}"
KEPT = 100  # metadata files
LOADS_MAX = 5  # the newest version may be superseded, and deleted, before it is read

_NAME = re.compile(r"v([1-9]\d*)\.metadata\.json")
_COMPRESSED_NAME = re.compile(r"v([1-9]\d*)(\.gz\.metadata\.json|\.metadata\.json\.gz)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetadata:
    """One version of a table's metadata. Commits apply to the version that was read."""

    metadata: TableMetadata
    location: str  # of the file
    number: int = 0  # in the file's name, if the catalog is the folder
    table: Table | None = None  # PyIceberg's, if another catalog has it


class FolderCatalog:
    """The metadata of one table in its folder."""

    def __init__(self, root: Files) -> None:
        self._root = root
        self.io = TableFileIO(root)

    def exists(self) -> bool:
        """Return True if the folder holds a version of a table's metadata."""
        return bool(self._numbers())

    def owns_folder(self) -> bool:
        """Return True if the metadata folder has no files of another catalog."""
        names = self._root.names(METADATA_FOLDER)
        return all(name.startswith(".") or _NAME.fullmatch(name) or name == HINT_NAME for name in names)

    def load(self) -> StoredMetadata | None:
        """Return the newest version; None if there is none."""
        for _ in range(LOADS_MAX):
            newest = self._newest()
            if newest is None:
                return None
            with suppress(FileNotFoundError):
                return self._read(newest)
        raise TemporaryError(f"{self._root.uri}: other writers replace the newest version faster than it can be read")

    def create(self, metadata: TableMetadata) -> None:
        """Store the first version of a table. Raises `PublishConflict` if there is one, or the outcome is unknown."""
        self._write(1, metadata)

    def commit(
        self,
        base: StoredMetadata,
        requirements: Sequence[TableRequirement],  # noqa: ARG002 -- for catalogs that do not compare whole versions
        updates: Sequence[TableUpdate],
    ) -> StoredMetadata:
        """Store the next version after ``base``, and return it.

        Raises `PublishConflict` if another process did so first, or the outcome is unknown. The requirements need no
        check: they hold for ``base``, and only its successor can be stored.
        """
        metadata = update_table_metadata(base.metadata, tuple(updates), metadata_location=base.location)
        number = base.number + 1
        self._write(number, metadata)
        if base.number and self._root.stat(_path(base.number)) is None:
            self._root.delete([_path(number)])
            raise PublishConflict(f"{self._root.uri}: version {base.number} is no longer known")
        return StoredMetadata(metadata=metadata, location=self._location(number), number=number)

    def write_hint(self, committed: StoredMetadata) -> None:
        """See `MetadataCatalog`. If another process has committed since, the hint names its version.

        That process may have written its hint before. Without this, its rows would stay hidden until the next commit.
        """
        number: int | None = committed.number
        while number is not None:
            self._root.write(HINT, str(number).encode())
            newest = self._newest_after(number) if self._exists(number) else self._newest_listed()
            number = newest if newest != number else None

    def delete_old_metadata(
        self,
        base: StoredMetadata,  # noqa: ARG002 -- for other catalogs
        committed: StoredMetadata,
    ) -> None:
        """Delete the metadata files beyond the newest `KEPT`, also those that an earlier call could not delete."""
        old = []
        expired = committed.number - KEPT
        while expired > 0 and self._exists(expired):
            old.append(expired)
            expired -= 1
        for one in reversed(old):  # oldest first, each in a request of its own
            self._root.delete([_path(one)])

    def is_unused(self, stored: StoredMetadata, path: str) -> bool:  # noqa: ARG002 -- for other catalogs
        """Return False: `delete_old_metadata` finds all that are not needed."""
        return False

    def _newest(self) -> int | None:
        hinted = self._hinted()
        if hinted is not None and self._exists(hinted) and (hinted == 1 or self._exists(hinted - 1)):
            return self._newest_after(hinted)
        return self._newest_listed()

    def _newest_after(self, number: int) -> int:
        """Return the last of the versions that follow an existing one, or that one."""
        while self._exists(number + 1):
            number += 1
        return number

    def _newest_listed(self) -> int | None:
        names = self._root.names(METADATA_FOLDER)
        newest = _highest(names, _NAME)
        compressed = _highest(names, _COMPRESSED_NAME)
        if newest is not None and compressed is not None and compressed > newest:
            raise TableError(
                f"Version {compressed} of the table {self._root.uri} is by another writer and compressed, which "
                "Penstock does not read; let that writer set the property write.metadata.compression-codec to none, "
                "and then commit once more."
            )
        return newest

    def _hinted(self) -> int | None:
        if self._root.is_local and self._root.stat(HINT) is None:  # also if a file is where the folder would be
            return None
        try:
            return int(self._root.read(HINT))
        except (FileNotFoundError, ValueError):
            return None

    def _exists(self, number: int) -> bool:
        return self._root.stat(_path(number)) is not None

    def _numbers(self) -> Sequence[int]:
        return [int(match[1]) for name in self._root.names(METADATA_FOLDER) if (match := _NAME.fullmatch(name))]

    def _read(self, number: int) -> StoredMetadata:
        path = _path(number)
        text = self._root.read(path)
        try:
            metadata = TableMetadataUtil.parse_raw(text.decode())
        except ValueError as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise TableError(
                f"The metadata {self._root}/{path} of an Iceberg table cannot be read ({reason})."
            ) from error
        return StoredMetadata(metadata=metadata, location=self._location(number), number=number)

    def _location(self, number: int) -> str:
        return f"{self._root}/{_path(number)}"

    def _write(self, number: int, metadata: TableMetadata) -> None:
        text = metadata.model_dump_json(exclude_none=True).encode()
        create_version(self._root, _path(number), text, version=number)


def _highest(names: Iterable[str], pattern: re.Pattern[str]) -> int | None:
    return max((int(match[1]) for name in names if (match := pattern.fullmatch(name))), default=None)


def _path(number: int) -> str:
    return f"{METADATA_FOLDER}/v{number}.metadata.json"

"""The sink protocol: a table that accepts batches of files, in order, each exactly once.

A sink stores the sequence number of the last published batch and a token of its attempt inside the table, in the same
commit as the files. A commit is conditional on the snapshot that was checked. `ReadableTable` is the reader's view: the
columns, and exactly the files of one snapshot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last batch that a table shows. ``seq`` 0: none yet."""

    seq: int
    attempt_token: int | None  # `attempt_token` of that batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The files of all batches after the snapshot's position up to ``seq``."""

    seq: int
    attempt_id: str  # of the batch ``seq``
    files: Sequence[DataFile]


class LoadedTable(Protocol):
    """One snapshot of the table. Commits apply to the snapshot that was read."""

    @property
    def version(self) -> int:
        """The table format's version of this snapshot."""
        ...

    @property
    def position(self) -> Position:
        """The last batch in this snapshot."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The snapshot's columns, in order."""
        ...

    def append(self, append: Append) -> int:
        """Commit files and position unless the position moved since the snapshot; return the new version.

        Raises:
            PublishConflict: Another process committed, or the outcome is unknown: load again and check.
            PublishHalted: A file of the append does not exist.
        """
        ...


class Sink(Protocol):
    """A table at an address. Stateless; any process may publish to it."""

    @property
    def uri(self) -> str:
        """The table's canonical address."""
        ...

    def load(self) -> LoadedTable | None:
        """Return the newest snapshot, or None if there is no table. Raises `TableError` for unsupported features."""
        ...

    def ensure_schema(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns it lacks; idempotent. Raises `TableError` for any other difference."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One Parquet file of a snapshot."""

    path: str  # relative to the table's root, unless the table's log names a file elsewhere
    size_bytes: int
    partition_values: Mapping[str, Any]  # typed; the file does not contain these columns


class ReadableTable(Protocol):
    """One snapshot of a table, for reading."""

    @property
    def root(self) -> Files:
        """The table's location."""
        ...

    @property
    def partition_by(self) -> Sequence[str]:
        """The partition columns, in order."""
        ...

    @property
    def schema_document(self) -> Mapping[str, Any]:
        """The columns as the JSON document that Delta and Spark use for schemas."""
        ...

    def files(self) -> Sequence[TableFile]:
        """Return the files, unordered."""
        ...

"""What a sink is: a table that takes batches of files, in order, each exactly once.

A sink stores, inside the table and in the same commit as the files, the sequence of the last batch it shows and a
token of that batch's attempt. Publishing is conditional on the handle it was checked with.

What a reader needs of a table: its columns, and exactly the files that one snapshot names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far the table is. ``seq`` 0: no batch yet."""

    seq: int
    attempt_token: int | None  # `attempt_token(attempt_id)` of the batch with that sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The batches after the handle's position up to ``seq``, as files."""

    seq: int
    attempt_id: str  # of the batch with that sequence
    files: Sequence[DataFile]


class LoadedTable(Protocol):
    """One snapshot of the table: what is read from it and what is committed to it belong together."""

    @property
    def version(self) -> int:
        """The table format's version of this snapshot."""
        ...

    @property
    def position(self) -> Position:
        """How far this snapshot is."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The snapshot's columns, in order."""
        ...

    def append(self, append: Append) -> int:
        """Commit files and position if nobody moved the position since the snapshot; answers the new version.

        Raises `PublishConflict` when somebody did or the outcome is unknown (load again and look), `PublishHalted` when
        a file of the append does not exist.
        """
        ...


class Sink(Protocol):
    """A table by its address. Holds no state of its own; any process may publish to it."""

    @property
    def uri(self) -> str:
        """The table's canonical address."""
        ...

    def load(self) -> LoadedTable | None:
        """The newest snapshot, or None where there is no table yet. Raises `TableError` on features we do not know."""
        ...

    def ensure_schema(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns it lacks; idempotent. Raises `TableError` on any other difference."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One Parquet file that is part of a snapshot."""

    path: str  # relative to the table's root, unless the table's log names a file elsewhere
    size_bytes: int
    partition_values: Mapping[str, Any]  # typed; the file itself does not have these columns


class ReadableTable(Protocol):
    """One snapshot of a table."""

    @property
    def root(self) -> Files:
        """Where the table lies."""
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
        """The files, in no order."""
        ...

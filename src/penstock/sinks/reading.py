"""What a reader needs of a table: its columns, and exactly the files that one snapshot names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.storage.files import Files


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

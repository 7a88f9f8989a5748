"""Data catalogs: the protocol that each of them implements, and the entry of a table.

An entry of a catalog names a table's location and columns. Engines read the rows through the table's own log, so an
entry is registered once and changed only when columns are added. Registering is idempotent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa
from pyarrow import types

from penstock.errors import PenstockError
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.schema import type_name

_SHORT_TYPES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class CatalogError(PenstockError):
    """A table could not be registered. The message says why, and what to do."""


class Change(StrEnum):
    """The effect of a registration on the catalog."""

    CREATED = "created"
    UPDATED = "updated"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A Delta table as a catalog describes it."""

    location: str  # its address: s3://BUCKET/PREFIX
    schema: pa.Schema  # with the table's canonical types, in order, partition columns included


class Catalog(Protocol):
    """A data catalog."""

    def register(self, name: CatalogName, entry: CatalogEntry) -> Change:
        """Create the entry of a table, or add the columns that it lacks.

        Raises `CatalogError` if the catalog has another table of that name, or cannot be used.
        """
        ...


def check_same(name: CatalogName, entry: CatalogEntry, *, location: str, kind: str) -> None:
    """Raise `CatalogError` unless the entry that the catalog has is this table's.

    ``location`` and ``kind`` are those of that entry; empty if it has none.
    """
    if location.rstrip("/").replace("s3a://", "s3://", 1) != entry.location.rstrip("/"):
        raise CatalogError(
            f"The entry {name} is that of {location or 'a table without a location'} and not of {entry.location}; give "
            "another name (register), or delete that entry."
        )
    if kind.lower() != "delta":
        raise CatalogError(
            f"The entry {name} is not that of a Delta table (it is {kind or 'another kind'}); give another name "
            "(register), or delete that entry."
        )


def type_text(kind: pa.DataType, other_names: Mapping[str, str] | None = None) -> str:
    """Return a canonical type as Hive and Spark write it in catalogs: ``array<struct<id:bigint>>``.

    ``other_names``: the catalog's own names of simple types.
    """
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_text(field.type, other_names)}' for field in kind)}>"
    if types.is_list(kind):
        return f"array<{type_text(kind.value_type, other_names)}>"
    if types.is_map(kind):
        return f"map<{type_text(kind.key_type, other_names)},{type_text(kind.item_type, other_names)}>"
    name = type_name(kind)
    return {**_SHORT_TYPES, **(other_names or {})}.get(name, name)

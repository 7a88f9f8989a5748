"""The manifest: the complete list of a batch's files. A file that no manifest names is an orphan."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_EMPTY = frozenset({"", "[]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One immutable Parquet file."""

    path: str  # relative to the table's root, separated by "/"
    size_bytes: int
    rows: int
    modified_at: float  # epoch seconds
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)  # in Delta's form: minValues, maxValues, nullCount


def encode(files: Iterable[DataFile]) -> str:
    """Encode files as the JSON text that the ledger stores."""
    return json.dumps([asdict(file) for file in files], separators=(",", ":"))


def decode(manifest: str) -> tuple[DataFile, ...]:
    """Decode the ledger's text; an empty text is a batch without files."""
    return tuple(DataFile(**fields) for fields in json.loads(manifest)) if manifest else ()


def is_empty(manifest: str) -> bool:
    """Return True if the ledger's text names no file."""
    return manifest in _EMPTY


def attempt_token(attempt_id: str) -> int:
    """Return 63 bits of the attempt id's hash, which fit the integer-only transaction field of a table."""
    return int.from_bytes(hashlib.sha256(attempt_id.encode()).digest()[:8], "big") >> 1

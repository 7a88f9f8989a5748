"""The manifest: exactly the files that make up a batch. What it does not name is an orphan."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One immutable Parquet file."""

    path: str  # relative to the table's root, with "/" between its parts
    size_bytes: int
    rows: int
    modified_at: float  # epoch seconds
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)  # Delta's: minValues, maxValues, nullCount


def encode(files: Iterable[DataFile]) -> str:
    """Files to the JSON text that the ledger keeps."""
    return json.dumps([asdict(file) for file in files], separators=(",", ":"))


def decode(manifest: str) -> tuple[DataFile, ...]:
    """The ledger's text to files; an empty text is a batch without files."""
    return tuple(DataFile(**fields) for fields in json.loads(manifest)) if manifest else ()


def attempt_token(attempt_id: str) -> int:
    """63 bits of the attempt id's hash: what a table's integer-only transaction field can hold."""
    return int.from_bytes(hashlib.sha256(attempt_id.encode()).digest()[:8], "big") >> 1

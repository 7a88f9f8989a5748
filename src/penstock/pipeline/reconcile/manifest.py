"""The manifest of an S3 Inventory: which files hold it, in which form, of which bucket, and as of when. Pure.

"Amazon S3 Inventory" and "Locating your inventory list" in the Amazon S3 user guide.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError

NAME = "manifest.json"
CHECKSUM_NAME = "manifest.checksum"

KEY, SIZE, MODIFIED, ETAG = "key", "size", "lastmodifieddate", "etag"
VERSION, LATEST, MARKER, STORAGE_CLASS = "versionid", "islatest", "isdeletemarker", "storageclass"
COLUMNS = (KEY, SIZE, MODIFIED, ETAG, VERSION, LATEST, MARKER, STORAGE_CLASS)  # what is read, of all there are
_NEEDED = {KEY: "Key", SIZE: "Size", MODIFIED: "LastModifiedDate", ETAG: "ETag"}

_ARN = "arn:aws"
_PARQUET_COLUMN = re.compile(r"(?:required|optional)\s+\w+\s+(\w+)")
_ORC_COLUMN = re.compile(r"[<,]\s*(\w+)\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFile:
    """One file of the list."""

    key: str  # in the destination bucket
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a manifest says. ``columns`` are in the files' order: the names of `COLUMNS`, or others, -> the files'."""

    source_bucket: str
    destination_bucket: str
    created_at: float  # epoch seconds: when the making of the list began
    format: str  # csv, orc or parquet
    columns: Mapping[str, str]
    files: Sequence[InventoryFile]

    @property
    def tells_versions(self) -> bool:
        """Whether it lists each version with its id; else only what is there now, and no ids."""
        return VERSION in self.columns


def parse_manifest(data: bytes, *, where: str, checksum: bytes | None = None) -> Manifest:
    """Read a manifest; ``checksum`` is what lies in `CHECKSUM_NAME` beside it.

    Raises `UsageError` for what is none, was damaged, or lacks a column without which objects cannot be told apart.
    """
    if checksum is not None and hashlib.md5(data).hexdigest() != checksum.decode("ascii", "replace").strip().lower():
        raise UsageError(f"The manifest {where} does not match its {CHECKSUM_NAME}: fetch both of them anew.")
    try:
        document = json.loads(data)
        found = _read(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{where} is no manifest of an S3 Inventory ({type(error).__name__}: {error}); name its {NAME}."
        ) from error
    lacking = [name for column, name in _NEEDED.items() if column not in found.columns]
    if lacking:
        raise UsageError(
            f"The inventory {where} has no column {lacking[0]}, without which objects cannot be told apart; add the "
            "field to the inventory's configuration."
        )
    return found


def _read(document: Mapping[str, Any]) -> Manifest:
    form = str(document["fileFormat"]).lower()
    return Manifest(
        source_bucket=str(document["sourceBucket"]),
        destination_bucket=_bucket(str(document["destinationBucket"])),
        created_at=int(document["creationTimestamp"]) / 1_000,
        format=form,
        columns={_plain(name): name for name in _names(form, str(document["fileSchema"]))},
        files=tuple(
            InventoryFile(key=str(file["key"]), size_bytes=int(file["size"]) if "size" in file else None)
            for file in document["files"]
        ),
    )


def _names(form: str, schema: str) -> Sequence[str]:
    match form:
        case "csv":
            return [name.strip() for name in schema.split(",")]
        case "orc":
            return _ORC_COLUMN.findall(schema)
        case "parquet":
            return _PARQUET_COLUMN.findall(schema)
    raise ValueError(f"fileFormat {form!r} is not CSV, ORC or Parquet")


def _plain(name: str) -> str:
    """One spelling for LastModifiedDate and last_modified_date, ETag and e_tag."""
    return name.replace("_", "").lower()


def _bucket(named: str) -> str:
    return named.rpartition(":")[2] if named.startswith(_ARN) else named

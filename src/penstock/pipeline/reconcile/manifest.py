"""Read S3 Inventory: parse its manifest, locate its files, and yield the objects that it lists.

`parse_manifest` is pure. `find_inventory` locates the files, in S3 or in a folder that they were copied to.
`inventory_refs` reads them in this process, for imports without Spark. Sources: "Amazon S3 Inventory" and "Locating
your inventory list" in the Amazon S3 user guide.
"""

import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote_plus

from penstock.errors import UsageError
from penstock.objects.reference import ObjectRef
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

NAME = "manifest.json"
CHECKSUM_NAME = "manifest.checksum"

KEY, SIZE, MODIFIED, ETAG = "key", "size", "lastmodifieddate", "etag"
VERSION, LATEST, MARKER, STORAGE_CLASS = "versionid", "islatest", "isdeletemarker", "storageclass"
COLUMNS = (KEY, SIZE, MODIFIED, ETAG, VERSION, LATEST, MARKER, STORAGE_CLASS)  # the columns that are read
_NEEDED = {KEY: "Key", SIZE: "Size", MODIFIED: "LastModifiedDate", ETAG: "ETag"}

_ARN = "arn:aws"
_PARQUET_COLUMN = re.compile(r"(?:required|optional)\s+\w+\s+(\w+)")
_ORC_COLUMN = re.compile(r"[<,]\s*(\w+)\s*:")

_DATED = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}Z/")  # the folder of one inventory

_TRUE = (True, "true", "TRUE", "True")


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFile:
    """One data file of the inventory."""

    key: str  # in the destination bucket
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A parsed manifest. ``columns`` maps normalised names (as in `COLUMNS`) to the files', in file order."""

    source_bucket: str
    destination_bucket: str
    created_at: float  # epoch seconds: when S3 began to create the inventory
    format: str  # csv, orc or parquet
    columns: Mapping[str, str]
    files: Sequence[InventoryFile]

    @property
    def has_versions(self) -> bool:
        """True if the inventory lists every version with its id; otherwise only current objects, without ids."""
        return VERSION in self.columns


def parse_manifest(data: bytes, *, where: str, checksum: bytes | None = None) -> Manifest:
    """Parse a manifest. ``checksum`` is the content of `CHECKSUM_NAME` beside it.

    Raises `UsageError` if it is not a manifest, is damaged, or lacks a column that identifies objects.
    """
    if checksum is not None and hashlib.md5(data).hexdigest() != checksum.decode("ascii", "replace").strip().lower():
        raise UsageError(f"The manifest {where} does not match its {CHECKSUM_NAME}: fetch both of them again.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A readable inventory. ``paths`` are relative to ``root``."""

    uri: str  # of the manifest
    manifest: Manifest
    root: Files
    paths: Sequence[str]


def find_inventory(uri: str, aws: Aws) -> Inventory:
    """Return the inventory with this manifest. For a folder of inventories, return the latest complete one.

    Raises `UsageError` if there is none.
    """
    folder = files_at(uri.removesuffix(NAME).rstrip("/") or "/", aws)
    if not uri.endswith(f"/{NAME}"):
        folder = folder.below(_latest(folder))
    where = f"{folder.uri}/{NAME}"
    data = _read_file(folder, NAME)
    if data is None:
        raise UsageError(f"There is no {where}; name the manifest of an S3 Inventory, or the folder of its lists.")
    manifest = parse_manifest(data, where=where, checksum=_read_file(folder, CHECKSUM_NAME))
    if folder.is_local:
        root, paths = _beside(Path(str(folder)), manifest, where)
    else:
        root, paths = files_at(f"s3://{manifest.destination_bucket}", aws), [file.key for file in manifest.files]
    return Inventory(uri=where, manifest=manifest, root=root, paths=paths)


def inventory_refs(inventory: Inventory) -> Iterator[ObjectRef | str]:
    """Yield every version that is not a delete marker; for an unusable entry, a string that describes it."""
    for path in inventory.paths:
        for row in _rows(inventory, path):
            if row.get(MARKER) not in _TRUE:
                yield _reference(inventory, row)


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
    """Return one spelling for LastModifiedDate and last_modified_date, ETag and e_tag."""
    return name.replace("_", "").lower()


def _bucket(named: str) -> str:
    return named.rpartition(":")[2] if named.startswith(_ARN) else named


def _latest(folder: Files) -> str:
    """Return the manifest's folder: the given one, or the latest dated one with a checksum, which S3 writes last."""
    names = folder.names()
    if NAME in names:
        return ""
    for name in sorted(filter(_DATED.fullmatch, names), reverse=True):
        if CHECKSUM_NAME in folder.names(name.rstrip("/")):
            return name.rstrip("/")
    raise UsageError(f"{folder.uri} holds no {NAME} and no list of an S3 Inventory that is whole.")


def _beside(folder: Path, manifest: Manifest, where: str) -> tuple[Files, Sequence[str]]:
    """Locate files that were copied with their manifest, under their original paths or next to it."""
    first = manifest.files[0].key if manifest.files else ""
    for root, path in _locations(folder, first):
        if not first or (root / path).is_file():
            by_name = path != first
            paths = [PurePosixPath(file.key).name if by_name else file.key for file in manifest.files]
            return files_at(str(root), Aws()), paths
    raise UsageError(
        f"The file {first} of the inventory {where} is neither beside its manifest nor where it lay in its bucket; "
        "copy the files with the manifest."
    )


def _locations(folder: Path, key: str) -> Iterator[tuple[Path, str]]:
    for root in (folder, *folder.parents):
        yield root, key
    name = PurePosixPath(key).name
    for root in (folder, folder / "data", folder.parent / "data"):
        yield root, name


def _read_file(folder: Files, name: str) -> bytes | None:
    try:
        return folder.read(name)
    except FileNotFoundError:
        return None


def _reference(inventory: Inventory, row: Mapping[str, Any]) -> ObjectRef | str:
    key, size, etag, version_id = (row.get(name) for name in (KEY, SIZE, ETAG, VERSION))
    if inventory.manifest.format == "csv" and key:
        key = unquote_plus(key, errors="surrogateescape")
    version_id = None if version_id in (None, "", "null") else version_id
    etag = (etag or "").strip('"') or None
    if not key or (version_id is None and (etag is None or size in (None, ""))):
        return f"the entry {key or 'without a key'} tells neither version_id nor etag and size"
    return ObjectRef(
        bucket=inventory.manifest.source_bucket, key=key, size_bytes=int(size or 0), version_id=version_id, etag=etag
    )


def _rows(inventory: Inventory, path: str) -> Iterator[Mapping[str, Any]]:
    with inventory.root.open_input(path) as file:
        if inventory.manifest.format == "csv":
            with gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file as plain:
                text = io.TextIOWrapper(plain, encoding="utf-8", newline="")
                for cells in csv.reader(text):
                    yield dict(zip(inventory.manifest.columns, cells, strict=False))
            return
        ours = {theirs: name for name, theirs in inventory.manifest.columns.items() if name in COLUMNS}
        if inventory.manifest.format == "orc":
            import pyarrow.orc as orc  # not at the top: object handlers reconcile without the extra that brings it

            reader = orc.ORCFile(file)
            batches = (reader.read_stripe(stripe, columns=list(ours)) for stripe in range(reader.nstripes))
        else:
            import pyarrow.parquet as pq

            batches = pq.ParquetFile(file).iter_batches(columns=list(ours))
        for batch in batches:
            for row in batch.to_pylist():
                yield {ours[name]: value for name, value in row.items()}

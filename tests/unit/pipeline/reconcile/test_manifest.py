"""Manifests of S3 Inventories, as in Amazon's user guide, and files that are not manifests."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.pipeline.reconcile.manifest import Manifest, find_inventory, parse_manifest
from penstock.storage.aws import Aws

CSV_SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"
ORC_SCHEMA = (
    "struct<bucket:string,key:string,version_id:string,is_latest:boolean,is_delete_marker:boolean,size:bigint,"
    "last_modified_date:timestamp,e_tag:string,storage_class:string>"
)
PARQUET_SCHEMA = (
    "message s3.inventory {  required binary bucket (UTF8);  required binary key (UTF8);  optional binary version_id "
    "(UTF8);  optional boolean is_latest;  optional boolean is_delete_marker;  optional int64 size;  optional int64 "
    "last_modified_date (TIMESTAMP_MILLIS);  optional binary e_tag (UTF8);  optional binary storage_class (UTF8);}"
)
FILE = "inventory/landing/all/data/939c6d46.csv.gz"


def document(form: str = "CSV", schema: str = CSV_SCHEMA, **changed: Any) -> dict[str, Any]:
    return {
        "sourceBucket": "landing",
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": "1514944800000",
        "fileFormat": form,
        "fileSchema": schema,
        "files": [{"key": FILE, "size": 2147483647, "MD5checksum": "f11166069f1990abeb9c97ace9cdfabc"}],
        **changed,
    }


def parsed(found: dict[str, Any], checksum: bytes | None = None) -> Manifest:
    return parse_manifest(json.dumps(found).encode(), where="m", checksum=checksum)


@pytest.mark.parametrize(("form", "schema"), [("CSV", CSV_SCHEMA), ("ORC", ORC_SCHEMA), ("Parquet", PARQUET_SCHEMA)])
def test_the_columns_of_each_format_are_read_in_their_order(form: str, schema: str) -> None:
    found = parsed(document(form, schema))
    assert (found.source_bucket, found.destination_bucket) == ("landing", "inventories")
    assert (found.created_at, found.format) == (1_514_944_800.0, form.lower())
    assert list(found.columns) == [
        "bucket",
        "key",
        "versionid",
        "islatest",
        "isdeletemarker",
        "size",
        "lastmodifieddate",
        "etag",
        "storageclass",
    ]
    assert found.columns["etag"] == ("ETag" if form == "CSV" else "e_tag")
    assert found.has_versions
    assert [file.key for file in found.files] == [FILE]


def test_other_orders_and_unknown_columns_are_accepted() -> None:
    found = parsed(document(schema="ETag, Bucket, ObjectLockMode, Size, Key, LastModifiedDate"))
    assert list(found.columns.values()) == ["ETag", "Bucket", "ObjectLockMode", "Size", "Key", "LastModifiedDate"]
    assert not found.has_versions


def test_a_checksum_that_does_not_match_is_refused() -> None:
    data = json.dumps(document()).encode()
    right = hashlib.md5(data).hexdigest()
    assert parse_manifest(data, where="m", checksum=f"{right}\n".encode()).format == "csv"
    with pytest.raises(UsageError, match=r"does not match its manifest\.checksum"):
        parse_manifest(data + b" ", where="m", checksum=right.encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", json.dumps(document(fileFormat="XML")).encode()],
    ids=["empty", "list", "object", "binary", "format"],
)
def test_a_file_that_is_not_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="is no manifest of an S3 Inventory"):
        parse_manifest(data, where="m")


@pytest.mark.parametrize("lacking", ["Key", "Size", "LastModifiedDate", "ETag"])
def test_an_inventory_without_identifying_columns_is_refused(lacking: str) -> None:
    schema = ", ".join(name for name in CSV_SCHEMA.split(", ") if name != lacking)
    with pytest.raises(UsageError, match=f"has no column {lacking}"):
        parsed(document(schema=schema))


# --- where the files are


def write(folder: Path, *, data: str | None = None, checksum: bool = True) -> None:
    folder.mkdir(parents=True)
    text = json.dumps(document())
    (folder / "manifest.json").write_text(text)
    if checksum:
        (folder / "manifest.checksum").write_text(hashlib.md5(text.encode()).hexdigest())
    if data is not None:
        path = folder / data
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    "place", ["939c6d46.csv.gz", "data/939c6d46.csv.gz", "../data/939c6d46.csv.gz", f"../../../../{FILE}"]
)
def test_copied_files_are_found_with_their_manifest(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "copy" / "inventory" / "landing" / "all" / "2018-01-03T02-00Z"
    write(folder, data=place)
    found = find_inventory(str(folder / "manifest.json"), Aws())
    assert (Path(str(found.root)) / found.paths[0]).resolve() == (folder / place).resolve()


def test_the_latest_complete_inventory_is_used(tmp_path: Path) -> None:
    write(tmp_path / "2018-01-01T02-00Z", data="../data/939c6d46.csv.gz")
    write(tmp_path / "2018-01-02T02-00Z")
    write(tmp_path / "2018-01-03T02-00Z", checksum=False)
    (tmp_path / "hive").mkdir()
    assert "2018-01-02T02-00Z" in find_inventory(str(tmp_path), Aws()).uri


def test_files_that_were_not_copied_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "all")
    with pytest.raises(UsageError, match="copy the files with the manifest"):
        find_inventory(str(tmp_path / "all" / "manifest.json"), Aws())


def test_a_folder_without_inventories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no manifest\.json"):
        find_inventory(str(tmp_path), Aws())
    with pytest.raises(UsageError, match="There is no"):
        find_inventory(str(tmp_path / "manifest.json"), Aws())

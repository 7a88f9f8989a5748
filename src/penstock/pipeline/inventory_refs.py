"""An S3 Inventory -> the objects it lists, one after another in this process: for imports, which need no Spark."""

import csv
import gzip
import io
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

import pyarrow.orc as orc
import pyarrow.parquet as pq

from penstock.objects.reference import ObjectRef
from penstock.pipeline.reconcile import manifest as names
from penstock.pipeline.reconcile.inventory_files import Inventory, find_inventory

__all__ = ["find_inventory", "inventory_refs"]

_TRUE = (True, "true", "TRUE", "True")


def inventory_refs(inventory: Inventory) -> Iterator[ObjectRef | str]:
    """Every version that is no delete marker; a text tells of an entry that cannot be used."""
    for path in inventory.paths:
        for row in _rows(inventory, path):
            if row.get(names.MARKER) not in _TRUE:
                yield _reference(inventory, row)


def _reference(inventory: Inventory, row: Mapping[str, Any]) -> ObjectRef | str:
    key, size, etag, version_id = (row.get(name) for name in (names.KEY, names.SIZE, names.ETAG, names.VERSION))
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
        ours = {theirs: name for name, theirs in inventory.manifest.columns.items() if name in names.COLUMNS}
        if inventory.manifest.format == "orc":
            reader = orc.ORCFile(file)
            batches = (reader.read_stripe(stripe, columns=list(ours)) for stripe in range(reader.nstripes))
        else:
            batches = pq.ParquetFile(file).iter_batches(columns=list(ours))
        for batch in batches:
            for row in batch.to_pylist():
                yield {ours[name]: value for name, value in row.items()}

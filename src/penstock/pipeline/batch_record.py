"""Paths of an attempt's files, and the record of a batch that is written beside the table before the ledger's commit.

The ledger alone decides which batches count. But if the ledger is restored from an old backup, the table may name files
of batches that the ledger has forgotten. `penstock admin repair` reads from the records which objects those batches
processed. Each batch has one small file, which only gc deletes, with the other files of an abandoned attempt.

Attempt ids are ULIDs that Penstock creates, never names from outside, so they are safe in paths.
"""

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from penstock.errors import TableError
from penstock.ledger.records import BatchRecord, Beginning
from penstock.objects.reference import ObjectRef, decode_key
from penstock.storage.files import Files

DATA_FOLDER = "data"  # below a table's root
COMPACTED_FOLDER = "compacted"  # below a table's root
TOMBSTONES_FOLDER = "_penstock/tombstones"  # below a table's root, likewise; deletes of batches that are merged
RECORDS_FOLDER = "_penstock/batches"  # below a table's root; its readers and a vacuum skip names that begin with "_"


def run_files(attempt_id: str, run: int) -> str:
    """Return the folder of one run, relative to the table's root. A repeated run has a folder of its own."""
    return f"{DATA_FOLDER}/{attempt_id}/r{run}"


def run_work(work: Files, attempt_id: str, run: int) -> Files:
    """Return the folder that holds the plan and the reports of one run."""
    return work.below(f"{attempt_id}/r{run}")


def attempt_of(path: str) -> str:
    """Return the attempt id in the path of a batch's file: data or deletes; for other paths a string that is no id."""
    parent = next((one for one in (DATA_FOLDER, TOMBSTONES_FOLDER) if path.startswith(f"{one}/")), None)
    return "" if parent is None else path[len(parent) + 1 :].partition("/")[0]


OFFSET = "_offset"
_SUFFIX = ".json.gz"
_VERSION = 1
_VERSION_REPLACING = 2  # of batches that replace rows, which older versions must not ignore
_VERSION_APPENDING = 3  # of batches with only the appended rows of some objects, which they must not ignore either
_VERSION_MERGED = 4  # of batches whose rows are merged by key, likewise
_VERSIONS = (_VERSION, _VERSION_REPLACING, _VERSION_APPENDING, _VERSION_MERGED)
_FIRST = ("rows", "lines_quarantined", "bytes", "manifest", "quarantine_manifest")  # stored before the columns, always
_KNOWN = frozenset(field.name for field in fields(BatchRecord))
_REF_FIELDS = tuple(field.name for field in fields(ObjectRef) if field.init)
_OF_BEGINNING = frozenset(field.name for field in fields(Beginning))
_KNOWN_OF_OBJECT = frozenset(_REF_FIELDS) - {"key"}
_SLICE = 1_000  # objects
_COMPRESSION = 3  # of 9: higher levels take several times as long and save a tenth (measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedObject:
    """An object that the batch processed."""

    ref: ObjectRef
    rows: int
    lines_quarantined: int
    beginning: Beginning | None = None  # this and the next as in `ObjectResult`
    appended_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """A batch just before its commit."""

    pipeline: str
    attempt_id: str
    objects: Sequence[RecordedObject]
    columns: str  # the columns of its files, encoded as the ledger stores them
    record: BatchRecord
    place: str = OFFSET  # the column with a row's place in its object; not stored if it is this one
    replaces_versions: bool = False  # the commit will replace the rows of earlier versions of its objects


def save(table: Files, batch: RecordedBatch) -> None:
    """Write the record below the table's root. It is durable on return."""
    table.write(_path(batch.attempt_id), _encoded(batch))


def load(table: Files, attempt_id: str) -> RecordedBatch | None:
    """Return the record of an attempt, or None if there is none. Raise `TableError` if it cannot be read."""
    try:
        return _decoded(table.read(_path(attempt_id)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise TableError(
            f"The record {table}/{_path(attempt_id)} of a batch cannot be read ({error}); restore it, or delete it."
        ) from error


def recorded(table: Files) -> Sequence[str]:
    """Return the ids of the attempts that have a record, oldest first."""
    names = table.names(RECORDS_FOLDER)
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def forget(table: Files, attempt_ids: Sequence[str]) -> None:
    """Delete the records of these attempts, ignoring missing ones."""
    paths = [_path(attempt_id) for attempt_id in attempt_ids]
    table.delete(path for path in paths if table.stat(path) is not None)


def _path(attempt_id: str) -> str:
    return f"{RECORDS_FOLDER}/{attempt_id}{_SUFFIX}"


def _encoded(batch: RecordedBatch) -> bytes:
    values = asdict(batch.record)
    transform = values.pop("transform")
    if not batch.record.replaces:
        del values["replaces"]
    if batch.record.merge is None:
        del values["merge"], values["tombstones"]
    document = {
        "version": _version_of(batch),
        "pipeline": batch.pipeline,
        "attempt_id": batch.attempt_id,
        **{name: values.pop(name) for name in _FIRST},
        "columns": batch.columns,
        **({} if batch.place == OFFSET else {"place": batch.place}),
        **({"replaces_versions": True} if batch.replaces_versions else {}),
        **values,
        **({} if transform is None else {"transform": transform}),
    }
    # The objects come last and in slices: the text of 100,000 of them is much larger than what it compresses to.
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=_COMPRESSION, mtime=0) as file:
        file.write(_text(document)[:-1] + b',"objects":[')
        for start in range(0, len(batch.objects), _SLICE):
            objects = _text([_stored(one) for one in batch.objects[start : start + _SLICE]])
            file.write((b"," if start else b"") + objects[1:-1])
        file.write(b"]}")
    return data.getvalue()


def _version_of(batch: RecordedBatch) -> int:
    if batch.record.merge is not None:
        return _VERSION_MERGED
    if any(one.appended_to is not None for one in batch.objects):
        return _VERSION_APPENDING
    return _VERSION_REPLACING if batch.record.replaces or batch.replaces_versions else _VERSION


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _stored(one: RecordedObject) -> dict[str, Any]:
    return {
        **{name: value for name in _REF_FIELDS if (value := getattr(one.ref, name)) is not None},
        "key": quote_from_bytes(one.ref.key_bytes),
        "rows": one.rows,
        "lines_quarantined": one.lines_quarantined,
        **({} if one.beginning is None else {"beginning": asdict(one.beginning)}),
        **({} if one.appended_to is None else {"appended_to": one.appended_to}),
    }


def _decoded(data: bytes) -> RecordedBatch:
    """Decode a record. Unknown fields come from a newer Penstock and are ignored; a change that older ones must not
    ignore gets a higher `_VERSION`.
    """
    document = json.loads(gzip.decompress(data))
    version = document.pop("version")
    if version not in _VERSIONS:
        raise ValueError(f"it is of version {version}, which a newer Penstock writes")
    return RecordedBatch(
        pipeline=document.pop("pipeline"),
        attempt_id=document.pop("attempt_id"),
        objects=[_object(stored) for stored in document.pop("objects")],
        columns=document.pop("columns"),
        place=document.pop("place", OFFSET),
        replaces_versions=document.pop("replaces_versions", False),
        record=BatchRecord(**{name: document.pop(name) for name in _FIRST}, **_only(_KNOWN, document)),
    )


def _object(stored: dict[str, Any]) -> RecordedObject:
    """Decode an object. A wrong value yields an unknown object id."""
    return RecordedObject(
        ref=ObjectRef(key=decode_key(unquote_to_bytes(str(stored["key"]))), **_only(_KNOWN_OF_OBJECT, stored)),
        rows=stored["rows"],
        lines_quarantined=stored["lines_quarantined"],
        beginning=None if (found := stored.get("beginning")) is None else Beginning(**_only(_OF_BEGINNING, found)),
        appended_to=stored.get("appended_to"),
    )


def _only(names: frozenset[str], stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in stored.items() if name in names}

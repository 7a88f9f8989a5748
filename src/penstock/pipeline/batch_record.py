"""What a batch is, written beside the table before the ledger hears of it.

The ledger alone says what counts. But where it was restored from a backup, and the table went on, the table names files
and nobody remembers whose lines are in them: `penstock repair` reads it here. One small file a batch, which gc deletes
with an abandoned attempt's other files and keeps for as long as the batch is there.

Where the files of an attempt lie. Attempt ids are ULIDs of our own making, never names from outside.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from urllib.parse import quote_from_bytes, unquote_to_bytes

from penstock.errors import TableError
from penstock.objects.reference import ObjectRef, decode_key
from penstock.storage.files import Files

DATA_FOLDER = "data"  # below a table's root
COMPACTED_FOLDER = "compacted"  # below a table's root
RECORDS_FOLDER = "_penstock/batches"  # below a table's root, where neither its readers nor a vacuum look


def run_files(attempt_id: str, run: int) -> str:
    """Files of one run, relative to the root of the table they are for. A repeated run has a folder of its own."""
    return f"{DATA_FOLDER}/{attempt_id}/r{run}"


def run_work(work: Files, attempt_id: str, run: int) -> Files:
    """Plan and reports of one run."""
    return work.below(f"{attempt_id}/r{run}")


def attempt_of(path: str) -> str:
    """The attempt that a file below `DATA_FOLDER` is named after; of any other path something that is none."""
    folder, _, rest = path.partition("/")
    return rest.partition("/")[0] if folder == DATA_FOLDER else ""


_SUFFIX = ".json.gz"
_VERSION = 1
_COMPRESSION = 3  # of 9: more takes several times as long, and saves a tenth (measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedObject:
    """One object that the batch processed."""

    ref: ObjectRef
    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch as it was about to be committed. Manifests and columns are the texts that the ledger keeps."""

    pipeline: str
    attempt_id: str
    objects: Sequence[RecordedObject]
    rows: int
    lines_quarantined: int
    bytes: int
    manifest: str
    quarantine_manifest: str
    columns: str  # of its files
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    spark_ui_url: str | None = None


def save(table: Files, record: BatchRecord) -> None:
    """Keep it below the table's root; durable when this returns."""
    table.write(_path(record.attempt_id), _encoded(record))


def load(table: Files, attempt_id: str) -> BatchRecord | None:
    """The record of an attempt; None where there is none. Raises `TableError` for one that cannot be read."""
    try:
        return _decoded(table.read(_path(attempt_id)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise TableError(
            f"The record {table}/{_path(attempt_id)} of a batch cannot be read ({error}); restore it, or delete it."
        ) from error


def recorded(table: Files) -> Sequence[str]:
    """The attempts that have a record, oldest first."""
    names = table.names(RECORDS_FOLDER)
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def forget(table: Files, attempt_ids: Sequence[str]) -> None:
    """Delete records; those that are not there are no error."""
    paths = [_path(attempt_id) for attempt_id in attempt_ids]
    table.delete(path for path in paths if table.stat(path) is not None)


def _path(attempt_id: str) -> str:
    return f"{RECORDS_FOLDER}/{attempt_id}{_SUFFIX}"


def _encoded(record: BatchRecord) -> bytes:
    plain = {name: getattr(record, name) for name in record.__slots__ if name != "objects"}
    document = {
        "version": _VERSION,
        **plain,
        "stage_seconds": dict(record.stage_seconds),
        "objects": [
            {
                **{name: value for name, value in asdict(one.ref).items() if value is not None},
                "key": quote_from_bytes(one.ref.key_bytes),
                "rows": one.rows,
                "lines_quarantined": one.lines_quarantined,
            }
            for one in record.objects
        ],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text, _COMPRESSION, mtime=0)


def _decoded(data: bytes) -> BatchRecord:
    document = json.loads(gzip.decompress(data))
    version = document.pop("version")
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, which a newer Penstock writes")
    objects = [_object(fields) for fields in document.pop("objects")]
    return BatchRecord(objects=objects, **document)


def _object(fields: dict[str, object]) -> RecordedObject:
    rows, lines = fields.pop("rows"), fields.pop("lines_quarantined")
    key = decode_key(unquote_to_bytes(str(fields.pop("key"))))
    return RecordedObject(ref=ObjectRef(key=key, **fields), rows=rows, lines_quarantined=lines)  # type: ignore[arg-type]  # a wrong one is a TypeError or found by its id

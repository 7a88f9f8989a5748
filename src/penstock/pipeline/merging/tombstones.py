"""Remember the deletes of merged batches after their rows have left the table.

A delete must also win over an older row that arrives later. So its key and order are kept in a Parquet file below
``_penstock/tombstones/<attempt>/``, which the manifest of its batch in the ledger names. These files are immutable. Gc
deletes only those of attempts without a batch.

A publish compares its batch with the deletes of all earlier ones. To spare it a file per batch, maintenance folds many
files into one, with the last delete of each key. An index beside that file is written last, and names the attempts that
it covers. A folded file counts only if the ledger has all these attempts as batches before the one in question.
Otherwise, for example after a ledger was restored from a backup, the files of the single batches are read: they stay.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from penstock.errors import TableError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.merging.declaration import Merge, merge_of
from penstock.pipeline.merging.entries import keyed_rows
from penstock.pipeline.merging.merger import MergeBatch
from penstock.pipeline.merging.order import Rows, Signs, compare, last_of_each
from penstock.pipeline.merging.rows import RowFile, RowReader, row_file
from penstock.pipeline.rewriting import write_file
from penstock.sinks.manifest import DataFile, decode
from penstock.sinks.parquet import list_files
from penstock.storage.files import Files

FOLDED_FOLDER = "_penstock/folded_tombstones"
FOLD_FILES_MIN = 50  # files that a publish reads, before they are folded
FOLD_ROWS_MAX = 1_000_000  # in memory at once; a folded file of more than half of it is not folded again
KEPT_SECONDS = 86_400.0  # how long a publish may still read a folded file that was folded again
_INDEX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedDeletes:
    """A file with the deletes of several batches."""

    name: str  # of its index
    attempts: Collection[str]
    file: DataFile


def merge_batch(ledger: Ledger, root: Files, batch: BatchRow) -> MergeBatch:
    """Return a batch for its merge, with the deletes of all batches before it."""
    if batch.record.merge is None:
        raise AssertionError("the batch is not merged")
    by_attempt = {id: decode(text) for id, text in ledger.deletes_before(batch.pipeline, batch.seq).items()}
    folded, single = _units(root, by_attempt)
    return MergeBatch(
        attempt_id=batch.attempt_id,
        merge=merge_of(batch.record.merge),
        files=decode(batch.record.manifest),
        deletes=decode(batch.record.tombstones),
        earlier=[*(one.file for one in folded), *(file for id in single for file in by_attempt[id])],
    )


def write_deletes(
    root: Files, folder: str, reader: RowReader, files: Sequence[RowFile], merge: Merge
) -> Sequence[DataFile]:
    """Write key and order of the rows of these files into one file in a folder below `TOMBSTONES_FOLDER`."""
    schema = pa.schema([reader.schema.field(name) for name in merge.compared])
    batches = (
        pa.RecordBatch.from_arrays(list(columns), schema=schema)
        for file in files
        for _, columns in reader.groups(file, schema.names)
    )
    written = write_file(root, f"{folder}/deletes-{ULID()}.parquet", batches, schema)
    return list_files(root, folder, partition_by=(), schema=schema, written=[written])


def fold_deletes(
    ledger: Ledger,
    root: Files,
    *,
    pipeline: str,
    now: float,
    probe: Probe = no_probe,
    files_min: int = FOLD_FILES_MIN,
) -> int:
    """Fold the files of deletes if a publish reads many, and return how many were folded.

    Also deletes folded files that an earlier call has folded again.
    """
    row = ledger.ensure_pipeline(pipeline)
    if row.merge is None:
        return 0
    by_attempt = {id: decode(text) for id, text in ledger.deletes_before(pipeline, row.next_seq).items()}
    folded, single = _units(root, by_attempt)
    _delete_superseded(root, {one.name for one in folded}, now=now)
    small = [one for one in folded if one.file.rows <= FOLD_ROWS_MAX // 2]
    if len(single) + len(small) < files_min:
        return 0
    rows, files, attempts = 0, list[DataFile](), list[str]()
    units = [*((one.attempts, [one.file]) for one in small), *(([id], by_attempt[id]) for id in single)]
    for ids, some in units:
        if rows + sum(file.rows for file in some) > FOLD_ROWS_MAX:
            continue
        rows += sum(file.rows for file in some)
        files += some
        attempts += ids
    if len(files) < 2:
        return 0
    _write_folded(root, merge_of(row.merge), files, attempts, probe)
    return len(files)


def _units(root: Files, by_attempt: Mapping[str, Sequence[DataFile]]) -> tuple[Sequence[FoldedDeletes], Sequence[str]]:
    """Return the folded files that cover these attempts, the largest ones first, and the attempts that none covers."""
    left = dict.fromkeys(by_attempt)
    found: list[FoldedDeletes] = []
    if len(left) > 1:
        for one in sorted(_folded(root), key=lambda one: (-len(one.attempts), one.name)):
            if left.keys() >= set(one.attempts):
                found.append(one)
                for id in one.attempts:
                    del left[id]
    return found, list(left)


def _folded(root: Files) -> Sequence[FoldedDeletes]:
    found = []
    for name in root.names(FOLDED_FOLDER):
        if name.endswith(_INDEX) and not name.startswith("."):
            try:
                stored = json.loads(root.read(f"{FOLDED_FOLDER}/{name}"))
                one = FoldedDeletes(name=name, attempts=stored["attempts"], file=DataFile(**stored["file"]))
            except FileNotFoundError:  # folded again, and deleted since
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise TableError(
                    f"The file {root}/{FOLDED_FOLDER}/{name} cannot be read ({error}); delete it."
                ) from error
            found.append(one)
    return found


def _write_folded(root: Files, merge: Merge, files: Sequence[DataFile], attempts: Sequence[str], probe: Probe) -> None:
    with root.open_input(files[0].path) as opened:
        schema = pq.read_schema(opened).remove_metadata()
    reader = RowReader(root=root, schema=schema)
    parts = [
        (part, columns)
        for file in files
        for part, (_, columns) in zip(
            keyed_rows(reader, row_file(file), merge), reader.groups(row_file(file), schema.names), strict=True
        )
    ]
    keys = pa.concat_arrays([part.keys for part, _ in parts])
    order = [pa.concat_arrays([part.order[number] for part, _ in parts]) for number in range(len(merge.order_by))]
    last = pa.array(last_of_each(keys, partial(_decide, order)))
    stored = [pa.concat_arrays([columns[number] for _, columns in parts]).take(last) for number in range(len(schema))]
    table = pa.Table.from_arrays(stored, schema=schema).sort_by([(name, "ascending") for name in merge.key])
    name = str(ULID())
    written = write_file(root, f"{FOLDED_FOLDER}/{name}.parquet", table.to_batches(65_536), schema)
    (file,) = list_files(root, FOLDED_FOLDER, partition_by=(), schema=schema, written=[written])
    index = {"attempts": sorted(attempts), "file": asdict(file)}
    probe(Step.DELETES_FOLDED)
    root.write(f"{FOLDED_FOLDER}/{name}{_INDEX}", json.dumps(index).encode())


def _decide(order: Sequence[pa.Array], left: Rows, right: Rows) -> Signs:
    one, other = ([column.take(pa.array(rows)) for column in order] for rows in (left, right))
    return compare(one, other, len(left))


def _delete_superseded(root: Files, used: Collection[str], *, now: float) -> None:
    """Delete old folded files that no publish reads any more, each after its index."""
    old = [file for file in root.list(FOLDED_FOLDER) if now - file.modified_at > KEPT_SECONDS]
    used_stems = {name.removesuffix(_INDEX) for name in used}
    unused = [file.path for file in old if file.path.rpartition("/")[2].partition(".")[0] not in used_stems]
    root.delete(path for path in unused if path.endswith(_INDEX))
    root.delete(path for path in unused if not path.endswith(_INDEX))

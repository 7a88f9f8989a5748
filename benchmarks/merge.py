"""The cost of merging a batch by key into a large table, beside deltalake's own merge.

    python -m benchmarks.merge [--formats delta iceberg] [--millions 10] [--files 50] [--percent 1] [--rounds 3]

The table has ``--millions`` of narrow rows in ``--files`` files, in the order of their key. A batch has ``--percent``
of the keys, each with a newer row: "clustered" keys are neighbours, "scattered" ones are in all files. Prints, as
medians, the seconds until the commit that shows the batch, the CPU time, the files that left the table, and the bytes
of all files that came in. "deltalake" merges the same batch with `DeltaTable.merge` into a table of its own with the
same rows; with "range" its predicate also has the bounds of the batch's keys.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from penstock.messaging.steps import no_probe
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.merger import MergeBatch, RowMerger
from penstock.pipeline.rewriting import write_file
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import SINKS, open_sink
from penstock.sinks.sink import Append, TableSink, VersionedTable
from penstock.storage.local import LocalFiles

_SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
_MERGE = Merge(key="id", order_by="version")
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """One merge."""

    seconds: float
    cpu_seconds: float  # of all threads of this process
    files_removed: int
    bytes_added: int


_Merger = Callable[[pa.Table], _Cost]  # of a batch's rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=SINKS, default=list(SINKS))
    parser.add_argument("--millions", type=int, default=10, help="rows in the table, in millions; up to 100")
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = arguments.millions * 1_000_000
    print(f"{rows:,} rows in {arguments.files} files; a batch has {arguments.percent:g} % of the keys")
    print(f"{'merge':24} {'keys':>10} {'seconds':>8} {'CPU':>6} {'files':>6} {'MB written':>11}")
    for scheme in arguments.formats:
        with tempfile.TemporaryDirectory() as folder:
            _measure(
                f"Penstock, {scheme}",
                _penstock(LocalFiles(Path(folder, "t")), scheme, rows, arguments.files),
                arguments,
            )
    for with_range in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            name = f"deltalake{', range' if with_range else ''}"
            merger = _deltalake(Path(folder, "t"), rows, arguments.files, with_range=with_range)
            _measure(name, merger, arguments)


def _measure(name: str, merger: _Merger, arguments: argparse.Namespace) -> None:
    rows = arguments.millions * 1_000_000
    many = int(rows * arguments.percent / 100)
    chance = random.Random(1)
    version = 1
    for order in ("clustered", "scattered"):
        costs = []
        for _ in range(arguments.rounds):
            version += 1
            start = chance.randrange(rows - many)
            ids = (
                range(start, start + many) if order == "clustered" else range(chance.randrange(100), rows, rows // many)
            )
            costs.append(merger(_rows(np.fromiter(ids, np.int64)[:many], version=version)))
        seconds = statistics.median(cost.seconds for cost in costs)
        cpu = statistics.median(cost.cpu_seconds for cost in costs)
        files = statistics.median(cost.files_removed for cost in costs)
        written = statistics.median(cost.bytes_added for cost in costs)
        print(f"{name:24} {order:>10} {seconds:>8.2f} {cpu:>6.2f} {files:>6.0f} {written / 1e6:>11.1f}", flush=True)


def _penstock(root: LocalFiles, scheme: str, rows: int, files: int) -> _Merger:
    """Return the merge of a publish; a run has written the batch's file before."""
    sink = open_sink(root, pipeline="benchmark", scheme=scheme)
    sink.ensure_schema(_SCHEMA)
    written = [_written(root, f"data/1/{number}", part) for number, part in enumerate(_table(rows, files))]
    _load(sink).append(Append(seq=1, attempt_id="attempt-1", files=[file for some in written for file in some]))

    numbers = count(2)

    def merge(batch: pa.Table) -> _Cost:
        number = next(numbers)
        own = _written(root, f"data/{number}", batch)
        began, cpu = time.perf_counter(), time.process_time()
        table = _load(sink)
        found = RowMerger(sink=sink, probe=no_probe).merged(
            table, MergeBatch(attempt_id=f"attempt-{number}", merge=_MERGE, files=own, deletes=())
        )
        assert found.counts.updated == len(batch)
        left = found.replacement
        files = [*left.added, *left.fresh]
        table.append(
            Append(
                seq=number,
                attempt_id=f"attempt-{number}",
                files=files,
                replaced=left.removed,
                replacing=number,
                rewritten_in=left.folder,
            )
        )
        return _Cost(
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu,
            files_removed=len(left.removed),
            bytes_added=sum(file.size_bytes for file in files),
        )

    return merge


def _deltalake(root: Path, rows: int, files: int, *, with_range: bool) -> _Merger:
    for part in _table(rows, files):
        write_deltalake(root, part, mode="append")

    loaded = DeltaTable(str(root))
    before = set(loaded.file_uris())

    def merge(batch: pa.Table) -> _Cost:
        if loaded.version() < DeltaTable(str(root)).version():
            DeltaTable(str(root)).restore(loaded.version())
        predicate = "t.id = s.id"
        if with_range:
            bounds = pc.min_max(batch["id"]).as_py()
            predicate += f" and t.id >= {bounds['min']} and t.id <= {bounds['max']}"
        began, cpu = time.perf_counter(), time.process_time()
        table = DeltaTable(str(root))
        metrics = (
            table.merge(batch, predicate, source_alias="s", target_alias="t", streamed_exec=False)
            .when_matched_update_all(predicate="s.version > t.version")
            .when_not_matched_insert_all()
            .execute()
        )
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        assert metrics["num_target_rows_updated"] == len(batch)
        added = [Path(file) for file in DeltaTable(str(root)).file_uris() if file not in before]
        return _Cost(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            files_removed=int(metrics["num_target_files_removed"]),
            bytes_added=sum(file.stat().st_size for file in added),
        )

    return merge


def _load(sink: TableSink) -> VersionedTable:
    table = cast(VersionedTable | None, sink.load())
    assert table is not None
    return table


def _table(rows: int, files: int) -> Sequence[pa.Table]:
    size = -(-rows // files)
    return [_rows(np.arange(start, min(start + size, rows)), version=1) for start in range(0, rows, size)]


def _rows(ids: "np.ndarray[tuple[int], np.dtype[np.int64]]", *, version: int) -> pa.Table:
    chance = np.random.default_rng(version)
    return pa.table(
        [
            ids,
            np.full(len(ids), version),
            chance.random(len(ids)),
            pc.binary_join_element_wise(
                "customer", pa.array(chance.integers(0, 100_000, len(ids))).cast(pa.string()), " "
            ),
        ],
        schema=_SCHEMA,
    )


def _written(root: LocalFiles, folder: str, rows: pa.Table) -> Sequence[DataFile]:
    written = write_file(root, f"{folder}/part-0.parquet", rows.to_batches(_BATCH_ROWS), _SCHEMA)
    return list_files(root, folder, partition_by=(), schema=_SCHEMA, written=[written])


if __name__ == "__main__":
    main()

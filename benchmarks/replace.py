"""The cost of replacing the rows of one object of many, in a Delta and in an Iceberg table.

    python -m benchmarks.replace [--formats delta iceberg] [--objects 5000] [--rows 200] [--batches 50] [--rounds 5]

The table has the rows of all objects, written in ``--batches`` files. In the order "by name" each file holds objects
with neighbouring names, in the order "shuffled" objects of all names, so that the bounds of every file meet every
object. Prints, as medians, the seconds until the files to write again are found and written, the share of the files
that were written again, and the bytes written for a byte of the object's rows.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa

from penstock.messaging.steps import no_probe
from penstock.pipeline.replacing import RowReplacer
from penstock.pipeline.rewriting import write_file
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import SINKS, open_sink
from penstock.sinks.sink import Append, Position, TableSink, VersionedTable
from penstock.storage.local import LocalFiles

_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_object", pa.string()), ("_offset", pa.int64())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=SINKS, default=list(SINKS))
    parser.add_argument("--objects", type=int, default=5_000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = [f"s3://landing/2026/{number:06}.jsonl" for number in range(arguments.objects)]
    shuffled = random.Random(1).sample(names, len(names))
    print(f"{'format':8} {'order':>9} {'seconds':>8} {'files again':>12} {'bytes per byte':>15}")
    for scheme in arguments.formats:
        for order, objects in (("by name", names), ("shuffled", shuffled)):
            with tempfile.TemporaryDirectory() as folder:
                _measure(scheme, order, LocalFiles(Path(folder, "clicks")), objects, arguments)


def _measure(scheme: str, order: str, root: LocalFiles, objects: Sequence[str], arguments: argparse.Namespace) -> None:
    sink = open_sink(root, pipeline="clicks", scheme=scheme)
    sink.ensure_schema(_SCHEMA)
    each = -(-len(objects) // arguments.batches)
    seq = 0
    for start in range(0, len(objects), each):
        seq += 1
        _append(sink, seq, _written(root, seq, objects[start : start + each], arguments.rows))
    seconds, shares, amounts = [], [], []
    for name in random.Random(2).sample(list(objects), arguments.rounds):
        seq += 1
        own = _written(root, seq, [name], arguments.rows)
        table = cast(VersionedTable | None, sink.load())
        assert table is not None
        began = time.perf_counter()
        batch = Position(seq=seq, attempt_token=None)
        found = RowReplacer(sink=sink, probe=no_probe).replacement(table, [name], of=batch)
        seconds.append(time.perf_counter() - began)
        shares.append(len(found.removed) / len(table.files()))
        amounts.append(sum(file.size_bytes for file in found.added) / sum(file.size_bytes for file in own))
        table.append(
            Append(
                seq=seq,
                attempt_id=f"attempt-{seq}",
                files=[*own, *found.added],
                replaced=found.removed,
                replacing=seq,
                rewritten_in=found.folder,
            )
        )
    print(
        f"{scheme:8} {order:>9} {statistics.median(seconds):>8.2f} {statistics.median(shares):>12.1%} "
        f"{statistics.median(amounts):>15.1f}",
        flush=True,
    )


def _written(root: LocalFiles, seq: int, objects: Sequence[str], rows_each: int) -> Sequence[DataFile]:
    folder = f"data/{seq}"
    batches = [
        pa.record_batch(
            [
                list(range(rows_each)),
                [f"{name} {random.random()}" for _ in range(rows_each)],
                [name] * rows_each,
                [100 * number for number in range(rows_each)],
            ],
            schema=_SCHEMA,
        )
        for name in objects
    ]
    written = write_file(root, f"{folder}/part-0.parquet", batches, _SCHEMA)
    return list_files(root, folder, partition_by=(), schema=_SCHEMA, written=[written])


def _append(sink: TableSink, seq: int, files: Sequence[DataFile]) -> None:
    table = sink.load()
    assert table is not None
    table.append(Append(seq=seq, attempt_id=f"attempt-{seq}", files=files))


if __name__ == "__main__":
    main()

"""The time of one publish to a Delta and to an Iceberg table, by the number of commits that the table has.

    python -m benchmarks.publish [--formats delta iceberg] [--commits 1 1000 10000] [--files 1] [--rounds 40]

Each publish is that of one batch with ``--files`` files: load the newest snapshot, check its position, check the files,
commit. The table is a folder, so a request costs almost nothing; what grows with the number of commits and files is the
work of the format's library. Prints medians and CPU time in milliseconds. More rounds than 32 include a merge of
Iceberg's manifests, which the slowest one shows.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.events import Bus
from penstock.messaging.steps import no_probe
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.sinks.manifest import DataFile
from penstock.sinks.registry import SINKS, open_sink
from penstock.sinks.sink import Append, TableSink
from penstock.storage.local import LocalFiles

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
_FILE_BYTES = b"-"  # a commit checks that a file exists and its size, and does not read it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=SINKS, default=list(SINKS))
    parser.add_argument("--commits", type=int, nargs="+", default=[1, 1_000, 10_000])
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print(f"{'format':8} {'commits':>8} {'files':>8} {'publish ms':>11} {'slowest ms':>11} {'CPU ms':>8}")
    for scheme in arguments.formats:
        with tempfile.TemporaryDirectory() as folder:
            root = LocalFiles(Path(folder, "clicks"))
            _measure(scheme, root, sorted(arguments.commits), arguments.files, arguments.rounds)


def _measure(scheme: str, root: LocalFiles, counts: Sequence[int], files_each: int, rounds: int) -> None:
    sink = open_sink(root, pipeline="clicks", scheme=scheme)
    sink.ensure_schema(_SCHEMA)
    made = 0
    for commits in counts:
        while made < commits:
            made += 1
            publish(sink, made, _files(root, made, files_each))
        wall, cpu = [], []
        for _ in range(rounds):
            made += 1
            files = _files(root, made, files_each)
            began, began_cpu = time.perf_counter(), time.process_time()
            publish(sink, made, files)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
        print(
            f"{scheme:8} {commits:>8} {commits * files_each:>8} {1e3 * statistics.median(wall):>11.1f} "
            f"{1e3 * max(wall):>11.1f} {1e3 * statistics.median(cpu):>8.1f}",
            flush=True,
        )


def _files(root: LocalFiles, seq: int, count: int) -> list[DataFile]:
    return [make_file(root, seq, number) for number in range(count)]


def make_file(root: LocalFiles, seq: int, number: int = 0) -> DataFile:
    """Write a file of a batch, as large as a commit checks, and return it."""
    name = f"data/{seq}/{number}.parquet"
    root.write(name, _FILE_BYTES)
    return DataFile(path=name, size_bytes=len(_FILE_BYTES), rows=1, modified_at=0.0)


def publish(sink: TableSink, seq: int, files: list[DataFile]) -> None:
    """Publish a batch: load the newest version, check its position, commit, and write a checkpoint if one is due."""
    table = sink.load()
    assert table is not None
    assert table.position.seq == seq - 1
    version = table.append(Append(seq=seq, attempt_id=f"attempt-{seq}", files=files))
    CheckpointWriter(pipeline="clicks", sink=sink.uri, bus=Bus()).after_commit(table, version, probe=no_probe)


if __name__ == "__main__":
    main()

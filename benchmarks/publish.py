"""The time of one publish to a Delta table, by the number of commits that its log has.

    python -m benchmarks.publish [--commits 10 1000 3000] [--files 16] [--rounds 20]

Each publish is that of one batch with ``--files`` files: load the newest snapshot, check its position, check the files,
commit. The table is a folder, so a request costs almost nothing; the growth with the number of commits and files is
deltalake's own work. Prints medians and CPU time in milliseconds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Append
from penstock.storage.local import LocalFiles

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
_FILE_BYTES = b"-"  # a commit checks that a file exists and its size, and does not read it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, nargs="+", default=[10, 1_000, 3_000])
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{'commits':>8} {'files':>8} {'publish ms':>11} {'CPU ms':>8}")
    with tempfile.TemporaryDirectory() as folder:
        root = LocalFiles(Path(folder, "clicks"))
        sink = DeltaTableSink(root, pipeline="clicks")
        sink.ensure_schema(_SCHEMA)
        made = 0
        for commits in sorted(arguments.commits):
            while made < commits:
                made += 1
                _publish(sink, made, _files(root, made, arguments.files))
            wall, cpu = [], []
            for _ in range(arguments.rounds):
                made += 1
                files = _files(root, made, arguments.files)
                began, began_cpu = time.perf_counter(), time.process_time()
                _publish(sink, made, files)
                wall.append(time.perf_counter() - began)
                cpu.append(time.process_time() - began_cpu)
            print(
                f"{commits:>8} {commits * arguments.files:>8} {1e3 * statistics.median(wall):>11.1f} "
                f"{1e3 * statistics.median(cpu):>8.1f}",
                flush=True,
            )


def _files(root: LocalFiles, seq: int, count: int) -> list[DataFile]:
    names = [f"data/{seq}/{number}.parquet" for number in range(count)]
    for name in names:
        root.write(name, _FILE_BYTES)
    return [DataFile(path=name, size_bytes=len(_FILE_BYTES), rows=1, modified_at=0.0) for name in names]


def _publish(sink: DeltaTableSink, seq: int, files: list[DataFile]) -> None:
    table = sink.load()
    assert table is not None
    assert table.position.seq == seq - 1
    table.append(Append(seq=seq, attempt_id=f"attempt-{seq}", files=files))


if __name__ == "__main__":
    main()

"""The whole chain against bare Spark: folder -> queue -> ledger -> Spark -> Delta, and `spark.read.json` -> Parquet.

    python -m benchmarks.chain [--big-mb 500] [--small 5000] [--rounds 3] [--only big|small]

Both sides read the same files in one session of one process, and both keep the file's path in every row. Penstock's
time includes scan, notifications, claims, commit, publish, acknowledgement and sweep. Rounds alternate. The first round
of each side warms up the JVM and does not count. Prints the medians of the others and their ratio (above 1: Penstock is
faster).
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.reader import DDL, make_files, read_native
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.runtime import Session
from penstock.worker.shutdown import StopSignal

Side = Callable[[Session, Path, Path], None]


def chain(spark: Session, source: Path, target: Path) -> None:
    """Ingest into a new table, in the given session."""
    request = IngestRequest(source=str(source), table=str(target), schema=DDL)
    report = ingest(request, stop=StopSignal(), spark=spark)
    if report.objects_processed != report.objects_found:
        raise SystemExit(f"the chain processed {report.objects_processed} of {report.objects_found} objects")


def native(spark: Session, source: Path, target: Path) -> None:
    """Read and write with Spark alone."""
    read_native("jsonl", spark, source, target)


SIDES: dict[str, Side] = {"spark.read.json": native, "penstock": chain}


def compare(name: str, spark: Session, source: Path, rounds: int) -> None:
    """Alternate the sides, print their seconds and the ratio."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in sorted(SIDES, reverse=bool(number % 2)):
            target = source.parent / f"out-{number}-{SIDES[side].__name__}"
            began_at = time.monotonic()
            SIDES[side](spark, source, target)
            seconds[side].append(time.monotonic() - began_at)
            shutil.rmtree(target)
    size_mb = sum(path.stat().st_size for path in source.iterdir()) / 1e6
    for side, (cold, *warm) in seconds.items():
        median = statistics.median(warm)
        each = " ".join(f"{value:.2f}" for value in warm)
        print(f"{name:<15} {side:<16} {median:7.2f} s  {size_mb / median:6.1f} MB/s  (first {cold:.2f}; {each})")
    ratio = statistics.median(seconds["spark.read.json"][1:]) / statistics.median(seconds["penstock"][1:])
    print(f"{name:<15} ratio {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big-mb", type=int, default=500)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("big", "small"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        spark = start_session(
            SessionSettings(
                master="local[2]",
                java_home=find_java(os.environ).home,
                scratch=folder / "scratch",
                log=folder / "spark.log",
                driver_memory="4g",
            )
        )
        if arguments.only != "big":
            make_files(folder / "small" / "in", "jsonl", arguments.small, 10_000)
            compare(f"{arguments.small:,} x 10 KB", spark, folder / "small" / "in", arguments.rounds)
        if arguments.only != "small":
            make_files(folder / "big" / "in", "jsonl", 2, arguments.big_mb * 1_000_000)
            compare(f"2 x {arguments.big_mb} MB", spark, folder / "big" / "in", arguments.rounds)
        end_session(spark, at_once=True, seconds=5.0)


if __name__ == "__main__":
    main()

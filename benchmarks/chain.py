"""The whole chain against bare Spark and Polars: folder -> queue -> ledger -> Spark -> Delta, and reader -> Parquet.

    python -m benchmarks.chain [--format jsonl|csv|parquet] [--only big|small] [--rounds 5] [--json FILE]
                               [--big-mb 500] [--small 5000]

All sides read the same files in one process, and all keep the file's path in every row: `spark.read` and Penstock in
one Spark session, `scan_ndjson`, `scan_csv` or `scan_parquet` -> `sink_parquet` of Polars. Penstock's time includes
scan, notifications, claims, commit, publish, acknowledgement and sweep. Rounds alternate. The first round of each side
warms up and does not count. Prints the medians of the others and two ratios: how many times as fast as Spark Penstock
is, and its time as a multiple of that of Polars. `--json` writes them by name: ``chain small / spark`` and ``chain
small time / polars``, with the format before the slash if it is not JSON lines.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from benchmarks.reader import DDL, make_files, read_native
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.worker.shutdown import StopSignal

FORMATS = ("jsonl", "csv", "parquet")
SPARK, POLARS, PENSTOCK = "spark", "polars", "penstock"
Side = Callable[[Path, Path], None]

_TIME = pl.Datetime("us", "UTC")
_COLUMNS = {
    "id": pl.Int64(),
    "v": pl.Float64(),
    "ts": pl.String(),  # Polars' readers of text take no time zone
    "user": pl.String(),
    "path": pl.String(),
    "agent": pl.String(),
}


def chain(spark: SparkSession, form: str, source: Path, target: Path) -> None:
    """Ingest into a new table, in the given session."""
    request = IngestRequest(source=str(source), table=str(target), schema=DDL, format=form)
    report = ingest(request, stop=StopSignal(), spark=spark)
    if report.objects_processed != report.objects_found:
        raise SystemExit(f"the chain processed {report.objects_processed} of {report.objects_found} objects")


def polars(form: str, source: Path, target: Path) -> None:
    """Read and write with Polars alone."""
    files = f"{source}/*"
    match form:
        case "csv":
            rows = pl.scan_csv(files, schema=_COLUMNS, include_file_paths="file_path")
        case "parquet":
            rows = pl.scan_parquet(files, include_file_paths="file_path")
        case _:
            rows = pl.scan_ndjson(files, schema=_COLUMNS, include_file_paths="file_path")
    time_column = pl.col("ts").cast(_TIME) if form == "parquet" else pl.col("ts").str.to_datetime(time_zone="UTC")
    target.mkdir()
    rows.with_columns(time_column).sink_parquet(target / "rows.parquet", compression="snappy")


def compare(name: str, form: str, spark: SparkSession, source: Path, rounds: int) -> Mapping[str, float]:
    """Alternate the sides, print their seconds, and return the ratios by name."""
    sides: dict[str, Side] = {
        SPARK: partial(read_native, form, spark),
        POLARS: partial(polars, form),
        PENSTOCK: partial(chain, spark, form),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in sorted(sides, reverse=bool(number % 2)):
            target = source.parent / f"out-{number}-{side}"
            began_at = time.monotonic()
            sides[side](source, target)
            seconds[side].append(time.monotonic() - began_at)
            shutil.rmtree(target)
    size_mb = sum(path.stat().st_size for path in source.iterdir()) / 1e6
    medians = {side: statistics.median(warm) for side, (_, *warm) in seconds.items()}
    for side, (cold, *warm) in seconds.items():
        each = " ".join(f"{value:.2f}" for value in warm)
        rate = f"{size_mb / medians[side]:6.1f} MB/s"
        print(f"{name:<13} {form:<8} {side:<9} {medians[side]:7.2f} s  {rate}  (first {cold:.2f}; {each})")
    measured = f"chain {name}" if form == "jsonl" else f"chain {name} {form}"
    return {
        f"{measured} / spark": medians[SPARK] / medians[PENSTOCK],
        f"{measured} time / polars": medians[PENSTOCK] / medians[POLARS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="jsonl")
    parser.add_argument("--big-mb", type=int, default=500)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("big", "small"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    form = arguments.format
    ratios: dict[str, float] = {}
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
        for size, count, size_bytes in (("small", arguments.small, 10_000), ("big", 2, arguments.big_mb * 1_000_000)):
            if arguments.only in (None, size):
                source = folder / size / "in"
                make_files(source, form, count, size_bytes)
                print(f"{size}: {count:,} files of {size_bytes / 1e6:g} MB, load {os.getloadavg()[0]:.1f}", flush=True)
                ratios |= compare(size, form, spark, source, arguments.rounds)
                shutil.rmtree(folder / size)
        end_session(spark, at_once=True, seconds=5.0)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(ratios))


if __name__ == "__main__":
    main()

"""Our source against Spark's own JSON reader, both to Parquet with provenance, in one run on one machine.

    python benchmarks/reader.py [--big-mb 500] [--small 5000] [--rounds 3] [--only big|small]

Makes its data in a temporary folder: 190-byte JSON lines. Prints, for each side, the best of the rounds, which
alternate, and the ratio of the two (above 1: ours is quicker).
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.objects.local import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.pipeline.source import api

DDL = "id bigint, v double, ts timestamp, user string, path string, agent string"
_LINES_KNOWN = 20_000  # different lines; the files repeat them in another order


def make_lines(seed: int) -> list[bytes]:
    """Lines of about 190 bytes: numbers, a time, three strings."""
    rng = random.Random(seed)
    agents = [
        "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101",
        "curl/8.5.0",
        "python-requests/2.32 (bot; +https://x.y)",
    ]
    return [
        (
            f'{{"id": {rng.randrange(1 << 40)}, "v": {rng.random() * 1000:.4f}, '
            f'"ts": "2024-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T{rng.randrange(24):02}:00:00Z", '
            f'"user": "user-{rng.randrange(10**8):08}", "path": "/items/{rng.randrange(10**9):09}/view", '
            f'"agent": "{rng.choice(agents)}"}}\n'
        ).encode()
        for _ in range(_LINES_KNOWN)
    ]


def make_files(folder: Path, count: int, size_bytes: int) -> None:
    """Files of whole lines, each about that large."""
    folder.mkdir(parents=True)
    lines = make_lines(1)
    block = b"".join(lines)
    for number in range(count):
        with (folder / f"part-{number:05}.jsonl").open("wb") as file:
            if size_bytes > len(block):
                for _ in range(size_bytes // len(block)):
                    file.write(block)
            else:
                start = block.index(b"\n", number * 7919 % (len(block) - size_bytes - 1000)) + 1
                file.write(block[start : block.index(b"\n", start + size_bytes) + 1])


def read_native(spark: SparkSession, source: Path, target: Path) -> None:
    """Spark's own reader, as one would write it."""
    rows = spark.read.schema(DDL).json(str(source)).select("*", "_metadata.file_path")
    rows.write.mode("overwrite").parquet(str(target))


def read_ours(spark: SparkSession, source: Path, target: Path) -> None:
    """Plan, read, report: all that a run does around the transform."""
    store = LocalStore(source)
    refs: Sequence[ObjectRef] = [store.describe(path) for path in sorted(source.iterdir())]
    work = Path(tempfile.mkdtemp(dir=target.parent))
    plan = api.make_plan(
        refs,
        attempt_id="bench",
        run=1,
        options=api.ReadOptions(schema_ddl=DDL),
        cores=spark.sparkContext.defaultParallelism,
        roots=[str(source)],
        quarantine_root=str(work / "quarantine"),
        work_dir=str(work / "work"),
    )
    plan.save(work / "plan.json")
    api.read(spark, work / "plan.json").write.mode("overwrite").parquet(str(target))
    summary = api.summarise(plan)
    if len(summary.readings) != len(refs):
        raise SystemExit(f"only {len(summary.readings)} of {len(refs)} objects were read")
    shutil.rmtree(work)


def measure(name: str, spark: SparkSession, source: Path, rounds: int) -> None:
    """Alternate the two, keep the best of each, print both and the ratio."""
    total_mb = sum(path.stat().st_size for path in source.iterdir()) / 1e6
    count = sum(1 for _ in source.iterdir())
    best: dict[str, float] = {}
    sides: dict[str, Callable[[SparkSession, Path, Path], None]] = {
        "spark.read.json": read_native,
        "penstock": read_ours,
    }
    for _ in range(rounds):
        for side, read in sides.items():
            target = source.parent / f"out-{side}"
            begun = time.perf_counter()
            read(spark, source, target)
            best[side] = min(best.get(side, 1e9), time.perf_counter() - begun)
            print(f"  {side}: {time.perf_counter() - begun:.2f} s", flush=True)
            shutil.rmtree(target)
    for side, seconds in best.items():
        print(f"{name:6} {side:16} {seconds:7.2f} s {total_mb / seconds:8.1f} MB/s {count / seconds:9.1f} objects/s")
    print(f"{name:6} ratio {best['spark.read.json'] / best['penstock']:.2f}")


def main() -> None:
    """Parse arguments, make the data, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big-mb", type=int, default=500)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["big", "small"])
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the executors need what we need
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print(f"pyspark {spark.version}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        if arguments.only != "big":
            make_files(Path(folder) / "small" / "in", arguments.small, 10_000)
            measure("small", spark, Path(folder) / "small" / "in", arguments.rounds)
        if arguments.only != "small":
            make_files(Path(folder) / "big" / "in", 2, arguments.big_mb * 1_000_000)
            measure("big", spark, Path(folder) / "big" / "in", arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()

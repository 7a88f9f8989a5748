"""Our source against Spark's own readers, both to Parquet with provenance, in one run on one machine.

    python benchmarks/reader.py [--big-mb 500] [--small 5000] [--rounds 3] [--only big|small] [--format FORMAT]

Creates data in a temporary folder: JSON lines of 190 bytes, the same as CSV (140 bytes), the JSON lines as text, and
rows of the same columns as Parquet (snappy), ORC (uncompressed) and Avro (deflate). Rounds alternate after one that
warms both sides up. Prints the median of each side and the ratio (above 1: ours is faster).

PySpark has no reader of Avro without a package from Maven. Its side reads a table STORED AS AVRO, which Hive decodes.
"""

import argparse
import io
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc
from pyspark.sql import SparkSession

from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source import datasource
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import make_plan
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

LINES = ("jsonl", "csv", "text")
COLUMNAR = ("parquet", "orc", "avro")
DDL = "id bigint, v double, ts timestamp, user string, path string, agent string"
_LINES_KNOWN = 20_000  # different lines; the files repeat them in another order


def make_lines(seed: int) -> list[bytes]:
    """Return lines of about 190 bytes: numbers, a time, three strings."""
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


def make_csv_lines(seed: int) -> list[bytes]:
    """Return the same values as CSV lines, without a header."""
    rows = (json.loads(line) for line in make_lines(seed))
    return [(",".join(_quoted(str(value)) for value in row.values()) + "\n").encode() for row in rows]


def _quoted(text: str) -> str:
    return f'"{text}"' if ";" in text else text  # a third of the lines has a quoted field


def make_rows(count: int, seed: int) -> pa.Table:
    """Return rows like those of `make_lines`, none of which repeats."""
    rng = np.random.default_rng(seed)
    agents = [
        "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101",
        "curl/8.5.0",
        "python-requests/2.32 (bot; +https://x.y)",
    ]

    def joined(head: str, below: int, tail: str = "") -> pa.Array:
        numbers = pa.array(rng.integers(0, below, count)).cast(pa.string())
        return pc.binary_join_element_wise(head, numbers, tail, "")

    return pa.table(
        {
            "id": rng.integers(0, 1 << 40, count),
            "v": rng.random(count) * 1000,
            "ts": pa.array(1_700_000_000_000 + rng.integers(0, 1 << 34, count), pa.timestamp("ms", tz="UTC")),
            "user": joined("user-", 10**8),
            "path": joined("/items/", 10**9, "/view"),
            "agent": pa.array(agents).take(pa.array(rng.integers(0, len(agents), count))),
        }
    )


def written(rows: pa.Table, form: str) -> bytes:
    """Return a file of rows."""
    data = io.BytesIO()
    match form:
        case "parquet":
            pq.write_table(rows, data)
        case "orc":
            orc.write_table(rows, data)
        case _:
            kinds = {"id": "long", "v": "double", "ts": {"type": "long", "logicalType": "timestamp-millis"}}
            fields = [{"name": name, "type": kinds.get(name, "string")} for name in rows.column_names]
            batches = (row for batch in rows.to_batches(max_chunksize=50_000) for row in batch.to_pylist())
            fastavro.writer(data, {"type": "record", "name": "Row", "fields": fields}, batches, codec="deflate")
    return data.getvalue()


def make_columnar_files(folder: Path, form: str, count: int, size_bytes: int) -> None:
    """Write files of rows, each about that large."""
    folder.mkdir(parents=True)
    row_bytes = len(written(make_rows(20_000, 0), form)) / 20_000
    per_file = max(1, round(size_bytes / row_bytes))
    if count < 10:  # large files differ in their names alone
        data = written(make_rows(per_file, 1), form)
        for number in range(count):
            (folder / f"part-{number:05}.{form}").write_bytes(data)
        return
    rows = make_rows(per_file * count, 1)
    for number in range(count):
        data = written(rows.slice(number * per_file, per_file), form)
        (folder / f"part-{number:05}.{form}").write_bytes(data)


def make_files(folder: Path, form: str, count: int, size_bytes: int) -> None:
    """Write files of whole lines or rows, each about that large."""
    if form in COLUMNAR:
        make_columnar_files(folder, form, count, size_bytes)
        return
    folder.mkdir(parents=True)
    block = b"".join(make_csv_lines(1) if form == "csv" else make_lines(1))
    head = b"id,v,ts,user,path,agent\n" if form == "csv" else b""
    for number in range(count):
        with (folder / f"part-{number:05}.{form}").open("wb") as file:
            file.write(head)
            if size_bytes > len(block):
                for _ in range(size_bytes // len(block)):
                    file.write(block)
            else:
                start = block.index(b"\n", number * 7919 % (len(block) - size_bytes - 1000)) + 1
                file.write(block[start : block.index(b"\n", start + size_bytes) + 1])


def read_native(form: str, spark: SparkSession, source: Path, target: Path) -> None:
    """Read with Spark's own reader, as users would."""
    match form:
        case "csv":
            rows = spark.read.schema(DDL).option("header", True).csv(str(source))
        case "text":
            rows = spark.read.text(str(source))
        case "parquet" | "orc":
            rows = spark.read.schema(DDL).format(form).load(str(source))
        case "avro":
            spark.sql("DROP TABLE IF EXISTS bench_avro")
            spark.sql(f"CREATE EXTERNAL TABLE bench_avro ({DDL}) STORED AS AVRO LOCATION '{source}'")
            rows = spark.table("bench_avro").selectExpr("*", "input_file_name() AS file_path")
            rows.write.mode("overwrite").parquet(str(target))
            return
        case _:
            rows = spark.read.schema(DDL).json(str(source))
    rows.select("*", "_metadata.file_path").write.mode("overwrite").parquet(str(target))


def read_ours(form: str, spark: SparkSession, source: Path, target: Path) -> None:
    """Plan, read and report: everything that a run does around the transform."""
    store = LocalStore(source)
    refs: Sequence[ObjectRef] = [store.describe(path) for path in sorted(source.iterdir())]
    work = Path(tempfile.mkdtemp(dir=target.parent))
    plan = make_plan(
        refs,
        attempt_id="bench",
        run=1,
        options=ReadOptions(schema_ddl="" if form == "text" else DDL, format=form),
        cores=spark.sparkContext.defaultParallelism,
        source=str(source),
        aws=Aws(),
        quarantine=LocalFiles(work / "quarantine"),
        work=LocalFiles(work / "work"),
    )
    plan.save()
    datasource.read(spark, plan).write.mode("overwrite").parquet(str(target))
    summary = summarise(plan)
    if len(summary.readings) != len(refs) or summary.lines_quarantined:
        raise SystemExit(f"only {len(summary.readings)} of {len(refs)} objects were read, or not all of their lines")
    shutil.rmtree(work)


def measure(name: str, form: str, spark: SparkSession, source: Path, rounds: int) -> None:
    """Alternate the two, print the median of each and the ratio."""
    total_mb = sum(path.stat().st_size for path in source.iterdir()) / 1e6
    count = sum(1 for _ in source.iterdir())
    native = "Hive's Avro" if form == "avro" else f"spark.read.{form.removesuffix('l')}"
    sides: dict[str, Callable[[SparkSession, Path, Path], None]] = {
        native: partial(read_native, form),
        "penstock": partial(read_ours, form),
    }
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for warm in [False] + [True] * rounds:
        for side, read in sides.items():
            target = source.parent / f"out-{side}"
            begun = time.perf_counter()
            read(spark, source, target)
            if warm:
                taken[side].append(time.perf_counter() - begun)
            shutil.rmtree(target)
    medians = {side: statistics.median(seconds) for side, seconds in taken.items()}
    for side, seconds in medians.items():
        rate = f"{total_mb / seconds:8.1f} MB/s {count / seconds:9.1f} objects/s"
        print(f"{name:6} {form:6} {side:16} {seconds:7.2f} s {rate}", flush=True)
    print(f"{name:6} {form:6} ratio {medians[native] / medians['penstock']:.2f}", flush=True)


def main() -> None:
    """Parse arguments, make the data, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big-mb", type=int, default=500)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["big", "small"])
    parser.add_argument("--format", choices=(*LINES, *COLUMNAR))
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # executors need the same modules
    folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.warehouse.dir", f"{folder.name}/warehouse")
        .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:{folder.name}/metastore;create=true")
        .config("spark.driver.extraJavaOptions", f"-Dderby.stream.error.file={folder.name}/derby.log")
        .enableHiveSupport()
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")
    datasource.register(spark)
    print(f"pyspark {spark.version}, {os.cpu_count()} cores", flush=True)
    with folder:
        for form in [arguments.format] if arguments.format else (*LINES, *COLUMNAR):
            small, big = (Path(folder.name) / form / size / "in" for size in ("small", "big"))
            if arguments.only != "big":
                make_files(small, form, arguments.small, 10_000)
                measure("small", form, spark, small, arguments.rounds)
            if arguments.only != "small":
                make_files(big, form, 2, arguments.big_mb * 1_000_000)
                measure("big", form, spark, big, arguments.rounds)
            shutil.rmtree(Path(folder.name) / form)
    spark.stop()


if __name__ == "__main__":
    main()

"""The whole chain from S3: listing -> queue -> ledger -> Spark -> Delta, against a folder as source and bare GETs.

    python -m benchmarks.s3 [--big-mb 500] [--small 5000] [--rounds 3] [--only big|small] [--server moto|fauxqs]

All sides read the same bytes, the chains in one session of one process. ``GETs`` fetches every object whole with boto3,
in as many threads as Spark has cores, and discards it: the limit of the server and one client library. The server is
one for tests, in the memory of the same machine: it shares the cores with the measured programs, so only the ratios
are meaningful. Rounds alternate, and the first one does not count. Prints medians, and ratios to the folder's.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tests.services.aws_server import AwsServer, Kind

from benchmarks.reader import DDL, make_files
from penstock.config import Settings
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.runtime import Session
from penstock.worker.shutdown import StopSignal

BUCKET = "bench"
CORES = 2
LOCAL = "from a folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The session, objects and folders that all sides of a comparison use."""

    spark: Session
    server: AwsServer
    folder: Path  # holds the files
    prefix: str  # has them in S3
    objects: int

    def ingest(self, source: str, table: str, state: Path) -> None:
        """Ingest into a new table."""
        settings = Settings(aws_endpoint_url=self.server.url, aws_region="us-east-1")
        request = IngestRequest(source=source, table=table, schema=DDL, state=str(state), settings=settings)
        report = ingest(request, stop=StopSignal(), spark=self.spark)
        if report.objects_processed != self.objects:
            raise SystemExit(f"the chain processed {report.objects_processed} of {self.objects} objects")


Side = Callable[[Stage, Path], None]


def from_folder(stage: Stage, out: Path) -> None:
    stage.ingest(str(stage.folder), str(out / "table"), out / "state")


def from_s3(stage: Stage, out: Path) -> None:
    stage.ingest(f"s3://{BUCKET}/{stage.prefix}", str(out / "table"), out / "state")


def from_s3_into_s3(stage: Stage, out: Path) -> None:
    stage.ingest(f"s3://{BUCKET}/{stage.prefix}", f"s3://{BUCKET}/{out.name}/table", out / "state")


def bare_gets(stage: Stage, out: Path) -> None:  # noqa: ARG001 - as the other sides
    client: Any = stage.server.client("s3")
    listed = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{stage.prefix}/")
    keys = [entry["Key"] for page in listed for entry in page["Contents"]]
    with ThreadPoolExecutor(CORES) as pool:
        sizes = pool.map(lambda key: len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()), keys)
        assert sum(1 for _ in sizes) == stage.objects


SIDES: Mapping[str, Side] = {
    LOCAL: from_folder,
    "from S3": from_s3,
    "from S3 into S3": from_s3_into_s3,
    f"boto3 GETs x {CORES}": bare_gets,
}


def compare(name: str, stage: Stage, rounds: int) -> None:
    """Alternate the sides, print their seconds and ratios."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in sorted(SIDES, reverse=bool(number % 2)):
            out = stage.folder.parent / f"out-{stage.prefix}-{number}-{SIDES[side].__name__}"
            out.mkdir()
            began_at = time.monotonic()
            SIDES[side](stage, out)
            seconds[side].append(time.monotonic() - began_at)
            shutil.rmtree(out)
    size_mb = sum(path.stat().st_size for path in stage.folder.iterdir()) / 1e6
    local = statistics.median(seconds[LOCAL][1:])
    for side, (cold, *warm) in seconds.items():
        median = statistics.median(warm)
        each = " ".join(f"{value:.2f}" for value in warm)
        print(
            f"{name:<15} {side:<16} {median:7.2f} s {size_mb / median:6.1f} MB/s {stage.objects / median:7.1f} a second"
            f"  {local / median:5.2f} of the folder's  (first {cold:.2f}; {each})",
            flush=True,
        )


def upload(server: AwsServer, folder: Path, prefix: str) -> int:
    """Upload all files of the folder in parallel, and return their number."""
    client: Any = server.client("s3")
    with ThreadPoolExecutor(4) as pool:
        paths = list(folder.iterdir())
        list(pool.map(lambda path: client.upload_file(str(path), BUCKET, f"{prefix}/{path.name}"), paths))
    return len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big-mb", type=int, default=500)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("big", "small"))
    parser.add_argument("--server", choices=get_args(Kind), default="moto")
    arguments = parser.parse_args()
    os.environ.update({"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"})
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        server = AwsServer(kind=arguments.server, folder=folder / "server").start()
        try:
            spark = start_session(
                SessionSettings(
                    master=f"local[{CORES}]",
                    java_home=find_java(os.environ).home,
                    scratch=folder / "scratch",
                    log=folder / "spark.log",
                    driver_memory="4g",
                )
            )
            server.client("s3").create_bucket(Bucket=BUCKET)
            sizes = {"small": (arguments.small, 10_000), "big": (2, arguments.big_mb * 1_000_000)}
            for kind, (count, size_bytes) in sizes.items():
                if arguments.only in (None, kind):
                    make_files(folder / kind / "in", "jsonl", count, size_bytes)
                    objects = upload(server, folder / kind / "in", kind)
                    stage = Stage(spark=spark, server=server, folder=folder / kind / "in", prefix=kind, objects=objects)
                    shown = f"{size_bytes // 1_000} KB" if kind == "small" else f"{arguments.big_mb} MB"
                    compare(f"{count:,} x {shown}", stage, arguments.rounds)
            end_session(spark, at_once=True, seconds=5.0)
        finally:
            server.close()


if __name__ == "__main__":
    main()

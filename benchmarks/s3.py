"""The whole chain from S3: listing -> queue -> ledger -> Spark -> Delta, against a folder as source.

    python -m benchmarks.s3 [--big-mb 200] [--small 5000] [--rounds 5] [--only big|small] [--delay-ms 20]
                            [--all] [--json FILE]

All sides read the same files, in one session of one process. The server (`benchmarks.s3_server`) serves them from the
page cache and delays every response by ``--delay-ms``, which costs no CPU. ``GETs`` fetches all bytes, as many objects
or ranges at once as the tasks of a run, and discards them: the limit of the server and the client library. Rounds
alternate, and the first one does not count. Prints medians of seconds and of CPU seconds (user and system, of this
process, the JVM and Spark's Python workers; the server's apart), the requests of the last round, and the ratio of the
seconds to the folder's. ``floor``: the ratio if S3 added nothing to the folder's seconds but those of ``GETs``.
``--json`` writes the ratios, by name. The server shares the cores with the measured programs, so its CPU is a part of
the difference between the sides.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import fs

from benchmarks.growth.processes import children
from benchmarks.reader import DDL, make_files
from benchmarks.s3_server import FolderServer
from penstock.config import Settings
from penstock.objects.s3_store import RANGE_BYTES, RANGES_AHEAD_MAX, WHOLE_BYTES_MAX
from penstock.objects.stores import OPENED_MAX
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.runtime import Session
from penstock.storage.aws import Aws
from penstock.storage.s3 import bucket_client, service_client
from penstock.worker.shutdown import StopSignal

BUCKET = "bench"
CORES = 2
LOCAL = "from a folder"
GETS = "GETs by obstore"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The session, objects and folders that all sides of a comparison use."""

    spark: Session
    server: FolderServer
    folder: Path  # holds the files
    prefix: str  # has them in S3
    objects: int

    @property
    def aws(self) -> Aws:
        return Aws(endpoint_url=self.server.url, region="us-east-1")

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


GetRange = Callable[[str, int, int], bytes]
"""``get(key, start, stop)``: these bytes of an object."""


def with_obstore(stage: Stage) -> GetRange:
    client = bucket_client(BUCKET, stage.aws)
    return lambda key, start, stop: bytes(client.get_range(key, start=start, end=stop))


def with_boto3(stage: Stage) -> GetRange:
    client = service_client(stage.aws)

    def get(key: str, start: int, stop: int) -> bytes:
        found = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{stop - 1}")
        data: bytes = found["Body"].read()
        return data

    return get


def with_pyarrow(stage: Stage) -> GetRange:
    address = stage.server.url.removeprefix("http://")
    system = fs.S3FileSystem(endpoint_override=address, scheme="http", region="us-east-1")

    def get(key: str, start: int, stop: int) -> bytes:
        with system.open_input_file(f"{BUCKET}/{key}") as file:
            data: bytes = file.read_at(stop - start, start)
        return data

    return get


def gets(client: Callable[[Stage], GetRange], stage: Stage, out: Path) -> None:  # noqa: ARG001 - as the other sides
    """Fetch all bytes with as many requests at once as the tasks of a run, and discard them."""
    get = client(stage)
    sizes = {path.name: path.stat().st_size for path in stage.folder.iterdir()}
    ranges = [
        (f"{stage.prefix}/{name}", start, min(start + RANGE_BYTES, size))
        for name, size in sizes.items()
        for start in range(0, size, RANGE_BYTES)
    ]
    are_small = max(sizes.values()) <= WHOLE_BYTES_MAX
    with ThreadPoolExecutor(CORES * (OPENED_MAX if are_small else RANGES_AHEAD_MAX)) as pool:
        for _ in pool.map(lambda one: len(get(*one)), ranges):
            pass


SIDES: Mapping[str, Side] = {
    LOCAL: from_folder,
    "from S3": from_s3,
    "from S3 into S3": from_s3_into_s3,
    GETS: partial(gets, with_obstore),
    "GETs by boto3": partial(gets, with_boto3),
    "GETs by pyarrow": partial(gets, with_pyarrow),
}
USUAL = (LOCAL, "from S3", GETS)


@dataclass(slots=True)
class Measured:
    """The rounds of one side. The first one does not count."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    server_seconds: list[float] = field(default_factory=list)
    counts: Mapping[str, Any] = field(default_factory=dict)  # of the last round

    def median(self) -> float:
        return statistics.median(self.seconds[1:])


def compare(name: str, stage: Stage, sides: Mapping[str, Side], rounds: int) -> Mapping[str, float]:
    """Alternate the sides, print their seconds, and return the ratios of their seconds to the folder's."""
    measured = {side: Measured() for side in sides}
    for number in range(rounds + 1):
        for side in sorted(sides, reverse=bool(number % 2)):
            measure(stage, sides[side], number, measured[side])
    size_mb = sum(path.stat().st_size for path in stage.folder.iterdir()) / 1e6
    local = measured[LOCAL].median()
    for side, found in measured.items():
        median = found.median()
        cpu, server = (statistics.median(values[1:]) for values in (found.cpu_seconds, found.server_seconds))
        each = " ".join(f"{value:.2f}" for value in found.seconds[1:])
        print(
            f"{name:<15} {side:<16} {median:7.2f} s {size_mb / median:6.1f} MB/s"
            f"  CPU {cpu:6.2f} s + server {server:5.2f} s"
            f"  {median / local:5.2f} x the folder's  (first {found.seconds[0]:.2f}; {each})",
            flush=True,
        )
        if requests := found.counts["requests"]:
            listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(requests.items()))
            print(f"{'':<32} {listed}; {found.counts['in_progress_max']} at once", flush=True)
    print(f"{name:<15} {'floor':<16} {(local + measured[GETS].median()) / local:5.2f} x the folder's", flush=True)
    return {side: found.median() / local for side, found in measured.items() if side.startswith("from S3")}


def measure(stage: Stage, side: Side, number: int, into: Measured) -> None:
    """Run a side once."""
    out = Path(tempfile.mkdtemp(prefix=f"out-{stage.prefix}-{number}-", dir=stage.folder.parent))
    stage.server.counts()
    began_at, cpu_before = time.monotonic(), cpu_seconds(without_pid=stage.server.pid)
    side(stage, out)
    into.seconds.append(time.monotonic() - began_at)
    into.cpu_seconds.append(cpu_seconds(without_pid=stage.server.pid) - cpu_before)
    into.counts = stage.server.counts()
    into.server_seconds.append(into.counts["cpu_seconds"])
    shutil.rmtree(out, ignore_errors=True)


def cpu_seconds(*, without_pid: int) -> float:
    """Return the CPU seconds of this process and its descendants, without one child.

    Those that ended and were waited for are included.
    """
    return sum(_ticks_of_tree(os.getpid(), without_pid)) / _TICKS


def _ticks_of_tree(pid: int, without_pid: int) -> Iterator[int]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        started = set(children(pid))
    except (FileNotFoundError, ProcessLookupError):
        return  # ended meanwhile: its parent has counted it, or will
    yield sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    for child in started - {without_pid}:
        yield from _ticks_of_tree(child, without_pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big-mb", type=int, default=200)
    parser.add_argument("--small", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("big", "small"))
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--all", action="store_true", help="also a table in S3, and GETs by other client libraries")
    parser.add_argument("--json", type=Path, help="write the ratios into this file")
    arguments = parser.parse_args()
    os.environ.update({"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"})
    sides = {name: side for name, side in SIDES.items() if arguments.all or name in USUAL}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        (folder / "s3" / BUCKET).mkdir(parents=True)
        with FolderServer(folder / "s3", delay_ms=arguments.delay_ms) as server:
            spark = start_session(
                SessionSettings(
                    master=f"local[{CORES}]",
                    java_home=find_java(os.environ).home,
                    scratch=folder / "scratch",
                    log=folder / "spark.log",
                    driver_memory="4g",
                )
            )
            sizes = {"small": (arguments.small, 10_000), "big": (2, arguments.big_mb * 1_000_000)}
            for kind, (count, size_bytes) in sizes.items():
                if arguments.only in (None, kind):
                    stage = Stage(
                        spark=spark, server=server, folder=folder / "s3" / BUCKET / kind, prefix=kind, objects=count
                    )
                    make_files(stage.folder, "jsonl", count, size_bytes)
                    shown = f"{size_bytes // 1_000} KB" if kind == "small" else f"{arguments.big_mb} MB"
                    found = compare(f"{count:,} x {shown}", stage, sides, arguments.rounds)
                    ratios |= {f"s3 {kind}: {side} at {arguments.delay_ms:g} ms": one for side, one in found.items()}
            end_session(spark, at_once=True, seconds=5.0)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()

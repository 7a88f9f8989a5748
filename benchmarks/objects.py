"""The driver's cost per object: batches of many small objects, from the scan to the settled messages.

    python -m benchmarks.objects [--objects 1000 10000 100000] [--places local[1] local[2] cluster connect]
        [--overlap local[2]] [--rounds 3] [--size-bytes 2000] [--stages] [--profile FILE] [--folder FOLDER]

Ingests a folder into a new table: SQLite ledger and queue beside it, all objects in one batch. ``cluster`` is a
standalone cluster of two workers with one core each, ``connect`` a Spark Connect server with ``local[2]`` inside; both
are started here, from PySpark's own classes. In the places of ``--overlap``, the same objects are also ingested in four
batches: one after the other, and two in flight.

Each case runs in a process of its own, which starts Spark and ingests a few objects first; then it repeats the case in
new tables. Prints a row of medians for each case. Seconds are CPU time of the driver's Python process (its threads,
without Spark's JVM and without Spark's Python workers), in all and by stage; ``other`` is what no stage counts. "Spark"
is the time on the clock between the saved plan and the written files, all batches added up; in it the driver only
waits, except for what it sends to Spark. Memory is the growth of the resident set at its peak, against the moment
before the ingest. ``--stages`` prints all stages of each case, ``--profile`` writes a cProfile of the last round of
each case, all threads, to FILE.
"""

import argparse
import cProfile
import functools
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.services.connect_server import ConnectServer
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster

from benchmarks.reader import DDL, make_lines

_WARM = 200  # objects of the first ingest, which is not measured
_SPARK = "Spark"
_BATCHES = 4  # of a case that shows the overlap of batches
_CLUSTER, _CONNECT = "cluster", "connect"  # places that are started here
# The columns of the table, and the stages that each of them adds up.
_COLUMNS = {
    "scan": ("scan",),
    "queue": ("enqueue", "receive", "settle", "extend leases"),
    "parse, group": ("parse", "group"),
    "claim": ("claim", "claim, SQL"),
    "plan": ("plan", "save"),
    "reports, record": ("summarise", "list", "record", _SPARK),
    "commit": ("commit",),
    "publish": ("publish",),
    "progress, report": ("until done", "report to people", "events"),
}


class Stages:
    """Wall and CPU seconds by stage. A stage inside another one counts for itself alone. Thread-safe."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._lock = threading.Lock()
        self._inner = threading.local()  # the open stages of a thread: [wall, cpu] of the stages inside each

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        stack: list[list[float]] = self._inner.__dict__.setdefault("stack", [])
        stack.append([0.0, 0.0])
        began, began_cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
            inner_wall, inner_cpu = stack.pop()
            if stack:
                stack[-1][0] += wall
                stack[-1][1] += cpu
            with self._lock:
                self.wall[name] = self.wall.get(name, 0.0) + wall - inner_wall
                self.cpu[name] = self.cpu.get(name, 0.0) + cpu - inner_cpu

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Measure a function or method of a class or module. A generator is measured while it runs."""
        function = getattr(owner, attribute)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                result = function(*args, **kwargs)
            return self._each(result, name) if isinstance(result, Generator) else result

        is_static = isinstance(vars(owner).get(attribute), staticmethod) if isinstance(owner, type) else False
        setattr(owner, attribute, staticmethod(timed) if is_static else timed)

    def _each(self, items: Iterator[Any], name: str) -> Iterator[Any]:
        while True:
            with self.stage(name):
                item = next(items, self)
            if item is self:
                return
            yield item


def measure_stages(stages: Stages) -> None:
    """Wrap the functions in which an ingest spends its time."""
    from penstock.app import pending
    from penstock.app.tables import Tables
    from penstock.brokers.sqlite.broker import SqliteBroker
    from penstock.ledger.ledger import Ledger
    from penstock.objects.scanner import Scanner
    from penstock.operations.ingest import ingest as ingests
    from penstock.pipeline import attempt, batch
    from penstock.pipeline.reporting import BatchEvents
    from penstock.pipeline.spark import run
    from penstock.pipeline.spark.source.plan import ReadPlan
    from penstock.worker import executor, leases, prefetch, settler

    wrap = stages.wrap
    wrap(Scanner, "chunks", "scan")
    wrap(pending.PendingObjects, "take", "enqueue")
    wrap(pending.PendingObjects, "begin", "enqueue")
    wrap(pending.PendingObjects, "advance", "until done")
    wrap(ingests, "_report", "report to people")
    wrap(SqliteBroker, "receive", "receive")
    wrap(prefetch, "collect", "receive")
    wrap(leases.LeaseBook, "register", "receive")
    wrap(batch.PipelineHandler, "weigh", "parse")
    wrap(batch.BatchExecution, "_open", "parse")
    wrap(batch.BatchExecution, "_suspects", "group")
    wrap(batch, "groups", "group")
    wrap(attempt.Attempts, "_claim", "claim")
    wrap(attempt.ClaimGuard, "_take", "claim")
    wrap(Ledger, "claim", "claim, SQL")
    wrap(run, "make_plan", "plan")
    wrap(ReadPlan, "save", "save")
    wrap(run, "read", _SPARK)
    wrap(run, "write", _SPARK)
    wrap(run, "summarise", "summarise")
    wrap(run.SparkRun, "result", "list")
    wrap(run, "save", "record")
    wrap(Ledger, "commit", "commit")
    wrap(Tables, "publish", "publish")
    wrap(batch.BatchExecution, "_settle_all", "settle")
    wrap(SqliteBroker, "settle", "settle")
    wrap(SqliteBroker, "extend", "extend leases")
    wrap(settler.Settler, "submit", "settle")
    wrap(executor.Executor, "_settle", "settle")
    wrap(leases.LeaseBook, "still_leased", "group")
    for name in vars(BatchEvents):
        if name.startswith("emit_"):
            wrap(BatchEvents, name, "events")


def make_files(folder: Path, count: int, size_bytes: int) -> None:
    """Write files of whole lines, a thousand in a folder."""
    block = b"".join(make_lines(1))
    for number in range(count):
        if number % 1000 == 0:
            inside = folder / f"{number // 1000:04}"
            inside.mkdir(parents=True)
        start = block.index(b"\n", number * 7919 % (len(block) - size_bytes - 1000)) + 1
        lines = block[start : block.rindex(b"\n", start, start + size_bytes) + 1]
        (inside / f"part-{number:06}.jsonl").write_bytes(lines)


def resident_mb(field: str) -> float:
    """Return a memory size of this process in MB: ``VmRSS`` now, ``VmHWM`` its peak."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table. Passed to the process that measures it as JSON."""

    objects: int
    place: str
    batches: int = 1
    in_flight: int = 2
    url: str | None = None  # of the cluster or server

    @property
    def name(self) -> str:
        overlap = ", one at a time" if self.in_flight == 1 else f", {self.in_flight} in flight"
        return f"{self.objects:,} | {self.place} | {self.batches}{overlap if self.batches > 1 else ''}"


def cases_of(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases: those of one batch for each place, then those that show the overlap."""
    for place in arguments.places:
        for count in arguments.objects:
            yield Case(objects=count, place=place)
    for place in arguments.overlap:
        for count in arguments.objects:
            for in_flight in (1, 2):
                yield Case(objects=count, place=place, batches=_BATCHES, in_flight=in_flight)


def ingest_once(spark: Any, source: Path, out: Path, case: Case) -> None:
    """Ingest the folder into a new table."""
    from penstock.config import Settings
    from penstock.operations.ingest.ingest import ingest
    from penstock.operations.ingest.pipeline import IngestRequest
    from penstock.worker.shutdown import StopSignal

    batch_objects = -(-case.objects // case.batches)
    settings = Settings(objects_max_batch_objects=batch_objects, objects_batches_in_flight=case.in_flight)
    request = IngestRequest(source=str(source), table=str(out / "table"), schema=DDL, settings=settings)
    report = ingest(request, stop=StopSignal(), spark=spark)
    if report.objects_processed != case.objects or report.batches != case.batches:
        raise SystemExit(
            f"{report.objects_processed} of {case.objects} objects in {report.batches} batches, and not {case.batches}"
        )


@contextmanager
def session_at(case: Case, work: Path) -> Iterator[Any]:
    """Yield a Spark session of this process in the place of the case."""
    from pyspark.sql import SparkSession

    from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
    from penstock.pipeline.spark.java import find_java

    if case.place == _CONNECT:
        spark = SparkSession.builder.remote(str(case.url)).create()
        try:
            yield spark
        finally:
            spark.stop()
    elif case.place == _CLUSTER:
        os.environ |= {"JAVA_HOME": str(find_java(os.environ).home), "PYSPARK_PYTHON": sys.executable}
        conf = {
            **FROM_DRIVER,
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(work / "scratch"),
            "spark.ui.enabled": "false",
        }
        builder = SparkSession.builder.master(str(case.url))
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
    else:
        spark = start_session(
            SessionSettings(
                master=case.place,
                java_home=find_java(os.environ).home,
                scratch=work / "scratch",
                log=work / "spark.log",
                driver_memory="3g",
            )
        )
        try:
            yield spark
        finally:
            end_session(spark, at_once=True, seconds=5.0)


def begin_profile() -> cProfile.Profile:
    """Profile this thread, and those that start from now on."""
    profile = cProfile.Profile()
    threading.setprofile(lambda *_: profile.enable())
    profile.enable()
    return profile


def run_case(case: Case, arguments: argparse.Namespace) -> None:
    """Measure one case in this process, and print a JSON line for each round."""
    work = Path(arguments.work)
    source = work / f"in-{case.objects}"
    with session_at(case, work) as spark:
        stages = Stages()
        measure_stages(stages)
        warm = Case(objects=_WARM, place=case.place)
        ingest_once(spark, work / "in-warm", work / f"out-warm-{os.getpid()}", warm)
        for number in range(arguments.rounds):
            stages.wall.clear()
            stages.cpu.clear()
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before_mb = resident_mb("VmRSS")
            out = work / f"out-{os.getpid()}-{number}"
            profile = begin_profile() if arguments.profile and number == arguments.rounds - 1 else None
            began, began_cpu = time.perf_counter(), time.process_time()
            ingest_once(spark, source, out, case)
            wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            if profile is not None:
                threading.setprofile(None)
                profile.disable()
                profile.dump_stats(arguments.profile)
            values = {"wall": wall, "cpu": cpu, "mb": resident_mb("VmHWM") - before_mb}
            print(json.dumps({**values, "stages": stages.wall, "stages_cpu": stages.cpu}), flush=True)
            shutil.rmtree(out)


def measured(case: Case, number: int, arguments: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    """Run one case in a process of its own and return its rounds."""
    command = [sys.executable, "-m", "benchmarks.objects", "--one", json.dumps(asdict(case))]
    command += ["--rounds", str(arguments.rounds), "--work", arguments.work]
    if arguments.profile:
        command += ["--profile", f"{arguments.profile}.{number}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row_of(case: Case, rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return the row of a case."""

    def median(values: Iterable[float]) -> float:
        return statistics.median(values)

    stages = {
        column: median(sum(one["stages_cpu"].get(name, 0.0) for name in names) for one in rounds)
        for column, names in _COLUMNS.items()
    }
    cpu = median(one["cpu"] for one in rounds)
    mb = median(one["mb"] for one in rounds)
    cells = [
        f"{cpu / case.objects * 1e6:.0f}",
        *(f"{seconds:.2f}" for seconds in (cpu, *stages.values(), max(0.0, cpu - sum(stages.values())))),
        f"{mb:.0f}",
        f"{mb * 1024 / case.objects:.1f}",
        f"{median(one['stages'][_SPARK] for one in rounds):.1f}",
        f"{median(one['wall'] for one in rounds):.1f}",
    ]
    return f"| {case.name} | " + " | ".join(cells) + " |"


def header() -> Sequence[str]:
    """Return the first two lines of the table."""
    names = ["objects", "place", "batches", "CPU, us an object", "CPU, s", *_COLUMNS, "other", "memory, MB"]
    names += ["kB an object", "Spark, s", "all, s"]
    return [f"| {' | '.join(names)} |", "|---:|---|---|" + "---:|" * (len(names) - 3)]


def all_stages(case: Case, rounds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each stage of a case: CPU time per object and seconds on the clock."""
    names = dict.fromkeys(name for one in rounds for name in one["stages"])
    for name in names:
        us = statistics.median(one["stages_cpu"].get(name, 0.0) for one in rounds) / case.objects * 1e6
        seconds = statistics.median(one["stages"].get(name, 0.0) for one in rounds)
        yield f"    {name:20} {us:7.2f} us an object  {seconds:8.3f} s on the clock"


@contextmanager
def servers_of(arguments: argparse.Namespace) -> Iterator[Mapping[str, str]]:
    """Yield the addresses of the places that have to be started, by place."""
    work, urls = Path(arguments.work), {}
    with ExitStack() as stack:
        if _CLUSTER in (*arguments.places, *arguments.overlap):
            cluster = SparkCluster(folder=work / _CLUSTER)
            stack.callback(cluster.close)
            urls[_CLUSTER] = cluster.start().url
        if _CONNECT in (*arguments.places, *arguments.overlap):
            server = ConnectServer(folder=work / _CONNECT)
            stack.callback(server.close)
            urls[_CONNECT] = server.start().url
        yield urls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--places", nargs="*", default=["local[1]", "local[2]", _CLUSTER, _CONNECT])
    parser.add_argument("--overlap", nargs="*", default=["local[2]"], help="places in which four batches are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size-bytes", type=int, default=2_000)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--profile")
    parser.add_argument(
        "--folder", help="where the files, tables and ledgers are; default: the folder of temporary files"
    )
    parser.add_argument("--one", type=lambda text: Case(**json.loads(text)), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        run_case(arguments.one, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as arguments.work:
        work = Path(arguments.work)
        for count in (_WARM, *arguments.objects):
            make_files(work / ("in-warm" if count == _WARM else f"in-{count}"), count, arguments.size_bytes)
        print("\n".join(header()), flush=True)
        with servers_of(arguments) as urls:
            for number, case in enumerate(cases_of(arguments)):
                case = replace(case, url=urls.get(case.place))
                rounds = measured(case, number, arguments)
                print(row_of(case, rounds), flush=True)
                if arguments.stages:
                    print("\n".join(all_stages(case, rounds)), flush=True)


if __name__ == "__main__":
    main()

"""The driver's cost per object: one batch of many small objects, from the scan to the settled messages.

    python -m benchmarks.objects [--objects 1000 10000 100000] [--masters local[1] local[2]] [--rounds 3]
        [--size-bytes 2000] [--profile FILE]

Ingests a folder into a new table: SQLite ledger and queue beside it, all objects in one batch. Each case runs in a
process of its own, which starts Spark and ingests a few objects first; then it repeats the case in new tables. Prints
medians: seconds by stage, and in all the CPU time of the driver's Python process (its threads, without Spark's JVM and
without Spark's Python workers), per object. ``Spark`` is the time between the saved plan and the written files; in it
the driver only waits, except for what it sends to Spark. Memory is the growth of the resident set at its peak, against
the moment before the ingest. ``--profile`` writes a cProfile of the last round of each case, all threads, to FILE.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.reader import DDL, make_lines

_WARM = 200  # objects of the first ingest, which is not measured
_SPARK = "Spark"


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
            return self._each(result, name) if hasattr(result, "send") else result

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


def ingest_once(spark: Any, source: Path, out: Path, count: int) -> None:
    """Ingest the folder into a new table."""
    from penstock.config import Settings
    from penstock.operations.ingest.ingest import ingest
    from penstock.operations.ingest.pipeline import IngestRequest
    from penstock.worker.shutdown import StopSignal

    settings = Settings(objects_max_batch_objects=100_000)
    request = IngestRequest(source=str(source), table=str(out / "table"), schema=DDL, settings=settings)
    report = ingest(request, stop=StopSignal(), spark=spark)
    if report.objects_processed != count or report.batches != 1:
        raise SystemExit(f"{report.objects_processed} of {count} objects in {report.batches} batches, expected one")


def begin_profile() -> cProfile.Profile:
    """Profile this thread, and those that start from now on."""
    profile = cProfile.Profile()
    threading.setprofile(lambda *_: profile.enable())
    profile.enable()
    return profile


def run_case(arguments: argparse.Namespace) -> None:
    """Measure one case in this process, and print a JSON line for each round."""
    from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
    from penstock.pipeline.spark.java import find_java

    work, count = Path(arguments.work), arguments.one
    source = work / f"in-{count}"
    spark = start_session(
        SessionSettings(
            master=arguments.masters[0],
            java_home=find_java(os.environ).home,
            scratch=work / "scratch",
            log=work / "spark.log",
            driver_memory="3g",
        )
    )
    stages = Stages()
    measure_stages(stages)
    ingest_once(spark, work / "in-warm", work / f"out-warm-{os.getpid()}", _WARM)
    for number in range(arguments.rounds):
        stages.wall.clear()
        stages.cpu.clear()
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before_mb = resident_mb("VmRSS")
        out = work / f"out-{count}-{number}"
        profile = begin_profile() if arguments.profile and number == arguments.rounds - 1 else None
        began, began_cpu = time.perf_counter(), time.process_time()
        ingest_once(spark, source, out, count)
        wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        if profile is not None:
            threading.setprofile(None)
            profile.disable()
            profile.dump_stats(arguments.profile)
        record = next((out / "table" / "_penstock" / "batches").iterdir()).stat().st_size
        values = {"wall": wall, "cpu": cpu, "mb": resident_mb("VmHWM") - before_mb, "record": record}
        print(json.dumps({**values, "stages": stages.wall, "stages_cpu": stages.cpu}), flush=True)
        shutil.rmtree(out)
    end_session(spark, at_once=True, seconds=5.0)


def measured(work: Path, master: str, count: int, arguments: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    """Run one case in a process of its own and return its rounds."""
    command = [sys.executable, "-m", "benchmarks.objects", "--one", str(count), "--masters", master]
    command += ["--rounds", str(arguments.rounds), "--work", str(work)]
    if arguments.profile:
        command += ["--profile", f"{arguments.profile}.{master}.{count}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(cases: Mapping[str, tuple[int, Sequence[Mapping[str, Any]]]]) -> Iterator[str]:
    """Yield the lines of the table, one column for each case."""

    def row(name: str, value: Callable[[int, Mapping[str, Any]], float], shown: str = "{:.3f}") -> str:
        medians = [statistics.median(value(count, one) for one in rounds) for count, rounds in cases.values()]
        return f"| {name} | " + " | ".join(shown.format(median) for median in medians) + " |"

    yield "| | " + " | ".join(cases) + " |"
    yield "|---|" + "---:|" * len(cases)
    names = list(dict.fromkeys(name for _, rounds in cases.values() for one in rounds for name in one["stages"]))
    for name in [name for name in names if name != _SPARK]:
        yield row(name, lambda _, one, name=name: one["stages"].get(name, 0.0))  # type: ignore[misc]
    yield "| CPU us an object, by stage: | " + " | ".join("" for _ in cases) + " |"
    for name in names:
        yield row(name, lambda n, one, name=name: one["stages_cpu"].get(name, 0.0) / n * 1e6, "{:.2f}")  # type: ignore[misc]
    yield row(f"{_SPARK}, seconds", lambda _, one: one["stages"][_SPARK], "{:.2f}")
    yield row("all, seconds", lambda _, one: one["wall"], "{:.2f}")
    yield row(
        "driver without Spark, us an object", lambda n, one: (one["wall"] - one["stages"][_SPARK]) / n * 1e6, "{:.1f}"
    )
    yield row("driver, CPU us an object", lambda n, one: one["cpu"] / n * 1e6, "{:.1f}")
    yield row("driver's memory, MB", lambda _, one: one["mb"], "{:.0f}")
    yield row("driver's memory, kB an object", lambda n, one: one["mb"] * 1024 / n, "{:.2f}")
    yield row("record of the batch, bytes an object", lambda n, one: one["record"] / n, "{:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--masters", nargs="+", default=["local[1]", "local[2]"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size-bytes", type=int, default=2_000)
    parser.add_argument("--profile")
    parser.add_argument(
        "--folder", help="where the files, tables and ledgers are; default: the folder of temporary files"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        run_case(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as name:
        work = Path(name)
        make_files(work / "in-warm", _WARM, arguments.size_bytes)
        cases: dict[str, tuple[int, Sequence[Mapping[str, Any]]]] = {}
        for count in arguments.objects:
            make_files(work / f"in-{count}", count, arguments.size_bytes)
            for master in arguments.masters:
                cases[f"{count:,}, {master}"] = count, measured(work, master, count, arguments)
            shutil.rmtree(work / f"in-{count}")
        print("\n".join(table(cases)), flush=True)


if __name__ == "__main__":
    main()

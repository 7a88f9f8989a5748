"""Work that is not done for each object: sweeps, garbage collection and the status, by the batches of a pipeline.

Real batches of one object each, as `benchmarks.growth.objects` makes them without Spark. The calls are those of
processes that run all the time, or often: the start and the end of an ingest that finds nothing new, garbage
collection as a worker does it every six hours, and the status as the dashboard reads it: what it reads every two
seconds, and what it scans at most once in thirty, and for a hundredth of the time.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth.curves import Curve, Series
from benchmarks.objects import make_files

_SIZE_BYTES = 300
_ROUNDS = 5
_UNITS = {
    "an ingest that finds nothing new": "ingest",
    "sweep after an ingest": "call",
    "garbage collection": "call",
    "status, read again": "call",
    "status, with its scans": "call",
}


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    """Measure all sizes in one process of its own, in which Spark is replaced."""
    command = [sys.executable, "-m", "benchmarks.growth.upkeep", str(folder), *map(str, sizes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    series = Series("upkeep", _UNITS)
    for line in done.stdout.splitlines():
        found = json.loads(line)
        for operation, spent in found["spent"].items():
            series.add(operation, **spent)
        series.done(found["size"])
    return series.curves()


def main() -> None:
    """Measure in this process. Prints a line of JSON for each size."""
    from tests.chaos.in_process import replace_spark

    replace_spark()
    folder, made = Path(sys.argv[1]), 0
    for size in map(int, sys.argv[2:]):
        make_files(folder / "in" / str(size), size - made, _SIZE_BYTES)
        _ingest(folder, batches=size - made)
        made = size
        series = Series("upkeep", _UNITS)
        _measure(series, folder)
        print(json.dumps({"size": size, "spent": series.spent()}), flush=True)


def _measure(series: Series, folder: Path) -> None:
    from penstock.app.paths import table_paths
    from penstock.app.scope import ScopeRequest, find_scope
    from penstock.app.tables import Tables
    from penstock.events import Bus
    from penstock.ledger import Ledger
    from penstock.operations.status.status import StatusReader

    for _ in range(_ROUNDS):
        with series.of("an ingest that finds nothing new"):
            _ingest(folder, batches=0)
    where = table_paths(str(folder / "table"))
    ledger = Ledger.open(where.state / "ledger.db")
    for _ in range(_ROUNDS):
        tables = Tables(where, ledger, bus=Bus())
        with series.of("sweep after an ingest"):
            tables.sweep()
        with series.of("garbage collection"):
            tables.collect_garbage(dry_run=False)
    ledger.close()
    scope = find_scope(ScopeRequest(table=str(folder / "table")), here=folder)
    for _ in range(_ROUNDS):
        reader = StatusReader(scope)
        with series.of("status, with its scans"):
            reader.read()
        with series.of("status, read again"):
            reader.read()


def _ingest(folder: Path, *, batches: int) -> None:
    from benchmarks.reader import DDL
    from penstock.config import Settings
    from penstock.operations.ingest.ingest import ingest
    from penstock.operations.ingest.pipeline import IngestRequest
    from penstock.worker.shutdown import StopSignal

    settings = Settings(objects_max_batch_objects=1)
    request = IngestRequest(source=str(folder / "in"), table=str(folder / "table"), schema=DDL, settings=settings)
    report = ingest(request, stop=StopSignal())
    if report.batches != batches:
        raise SystemExit(f"{report.batches} batches were committed, and not {batches}")


if __name__ == "__main__":
    main()

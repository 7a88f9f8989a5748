"""Objects: one ingest of a folder of small files into a new table, and a second one that finds nothing new.

Everything is the product's except Spark: each batch of 5,000 objects is read and written in this process, by the
product's reader (`tests.chaos.in_process`). That part is measured and left out, as Spark's part is in
`benchmarks.objects`. What is left is the driver's: scan, notifications, queue, claims, plans, reports, records,
commits, publishes and settlements.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth.curves import Curve, Meter, Series
from benchmarks.objects import Stages, make_files, resident_mb

_FIRST, _AGAIN = "one ingest", "nothing new"
_MEMORY = ", peak memory in MB"
_SIZE_BYTES = 300  # of one object: only its cost for the driver is measured
_ENGINE = "the engine"


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    """Measure each size in a process of its own."""
    memory = {f"{operation}{_MEMORY}": "process" for operation in (_FIRST, _AGAIN)}
    series = Series("objects", {_FIRST: "object", _AGAIN: "object", **memory})
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.growth.objects", str(size), str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                series.add_memory(f"{found['operation']}{_MEMORY}", size=size, mb=found.pop("peak_mb"))
                series.add(**found)
        series.done(size)
    return series.curves()


def main() -> None:
    """Measure one size in this process. Prints a line of JSON for each ingest."""
    from tests.chaos.in_process import InProcessEngine, replace_spark

    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    replace_spark()
    stages = Stages()
    stages.wrap(InProcessEngine, "_written", _ENGINE)
    source, out = folder / f"in-{size}", folder / f"out-{size}"
    make_files(source, size, _SIZE_BYTES)
    for operation, new in ((_FIRST, size), (_AGAIN, 0)):
        stages.cpu.clear()
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        meter = Meter()
        meter.begin()
        _ingest(source, out, new=new)
        cpu, wall = meter.end()
        spent = {"cpu_seconds": cpu - stages.cpu.get(_ENGINE, 0.0), "wall_seconds": wall}
        print(json.dumps({"operation": operation, "units": size, **spent, "peak_mb": resident_mb("VmHWM")}), flush=True)


def _ingest(source: Path, out: Path, *, new: int) -> None:
    from benchmarks.reader import DDL
    from penstock.operations.ingest.ingest import ingest
    from penstock.operations.ingest.pipeline import IngestRequest
    from penstock.worker.shutdown import StopSignal

    report = ingest(IngestRequest(source=str(source), table=str(out / "table"), schema=DDL), stop=StopSignal())
    if report.objects_processed != new:
        raise SystemExit(f"{report.objects_processed} objects were processed, and not {new}")


if __name__ == "__main__":
    main()

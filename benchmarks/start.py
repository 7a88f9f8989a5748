"""The time from the start of a `penstock ingest` of a small folder to its first commit, and to its end.

    python -m benchmarks.start [--before PATH] [--rounds 5] [--files 10] [--json FILE]

Each round is a new process and a new table. With ``--before``, the checkout at that path takes turns with this one,
such as a git worktree of an earlier commit. Without it, bare PySpark does: a script that starts a session, reads the
same folder and writes it as Parquet. Both sides have had a run before, after which Penstock has made its archive of
Spark's classes; the time of that run is printed, too.

Prints medians. CPU seconds are those of all processes that were waited for; Spark's daemon does not wait for the Python
workers that it forks. ``--json`` writes the ratios, below 1 if this tree is faster.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHIVE_SECONDS_MAX = 300.0
LINES = 100  # per file

_INGEST = "import sys; from penstock.cli.main import main; sys.exit(main())"
_BARE = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[*]").getOrCreate()
spark.read.json(sys.argv[1]).write.parquet(sys.argv[2])
print("committed", file=sys.stderr, flush=True)
spark.stop()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The seconds of one process, from its start."""

    commit: float
    end: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout; default: bare PySpark")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--json", type=Path, help="a file for the ratios")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = _source(folder / "source", arguments.files)
        other = "bare PySpark" if arguments.before is None else "before"
        sides: dict[str, Callable[[], Run]] = {"this tree": lambda: _ingested(ROOT, source, folder)}
        if arguments.before is None:
            sides[other] = lambda: _run([_BARE, str(source), str(folder / "table")], folder, {})
        else:
            sides[other] = lambda: _ingested(arguments.before.resolve(), source, folder)
        print(f"{arguments.files} files of {LINES} lines, load {os.getloadavg()[0]:.1f}")
        print(f"{'':20} {'commit s':>9} {'end s':>9} {'CPU s':>9}")
        for side, run in sides.items():
            _print(f"{side}, first", run())
        _wait_for_archive(folder)
        runs: dict[str, list[Run]] = {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, run in sides.items():
                runs[side].append(run())
    medians = {side: _median(found) for side, found in runs.items()}
    for side, median in medians.items():
        _print(side, median)
    ours, theirs = medians["this tree"], medians[other]
    ratios = Run(commit=ours.commit / theirs.commit, end=ours.end / theirs.end, cpu=ours.cpu / theirs.cpu)
    _print("ratio", ratios)
    if arguments.json is not None:
        found = {"start_commit": ratios.commit, "start_end": ratios.end, "start_cpu": ratios.cpu}
        arguments.json.write_text(json.dumps({name: round(ratio, 3) for name, ratio in found.items()}))


def _source(folder: Path, files: int) -> Path:
    folder.mkdir()
    for number in range(files):
        lines = (
            json.dumps({"id": number * LINES + line, "name": f"n{line}", "v": line / 3, "at": "2026-01-02T03:04:05Z"})
            for line in range(LINES)
        )
        (folder / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def _ingested(tree: Path, source: Path, folder: Path) -> Run:
    command = [_INGEST, "ingest", str(source), str(folder / "table")]
    return _run(command, folder, {"PYTHONPATH": str(tree / "src")})


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Run:
    """Run a Python program in a process of its own, whose standard error has a line with "committed"."""
    shutil.rmtree(folder / "table", ignore_errors=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "XDG_CACHE_HOME": str(folder / "cache"),
        **variables,
    }
    cpu_before, began_at = _cpu_of_children(), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        committed_at, output = None, []
        for line in process.stderr:
            output.append(line)
            if committed_at is None and "committed" in line:
                committed_at = time.perf_counter()
    end = time.perf_counter() - began_at
    if process.returncode or committed_at is None:
        sys.exit(f"ended with {process.returncode}:\n{''.join(output)}")
    return Run(commit=committed_at - began_at, end=end, cpu=_cpu_of_children() - cpu_before)


def _wait_for_archive(folder: Path) -> None:
    """Wait until this tree's archive is made, with which all but the first run of a user start."""
    until = time.monotonic() + ARCHIVE_SECONDS_MAX
    while not list((folder / "cache").glob("penstock/spark-*.jsa")):
        if time.monotonic() > until:
            print("(no archive of Spark's classes was made)")
            return
        time.sleep(0.2)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _median(runs: Sequence[Run]) -> Run:
    return Run(
        commit=statistics.median(run.commit for run in runs),
        end=statistics.median(run.end for run in runs),
        cpu=statistics.median(run.cpu for run in runs),
    )


def _print(name: str, run: Run) -> None:
    print(f"{name:20} {run.commit:>9.2f} {run.end:>9.2f} {run.cpu:>9.2f}", flush=True)


if __name__ == "__main__":
    main()

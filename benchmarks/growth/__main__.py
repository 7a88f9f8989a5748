"""Measure how the cost per unit grows: of objects, ledger rows, a table's commits, waiting messages, and groups.

    python -m benchmarks.growth [--only PART] [--quick] [--json FILE] [--folder FOLDER]

The parts are objects, memory, ledger, servers, table, upkeep, queue and groups. Prints CPU and wall time per unit at
each size, and the growth of each curve: its last point by its second one. CPU time is that of the process, its children
and a server. `--quick` measures small sizes only; the whole takes an hour and a half and 14 GB of disk. `--json` adds
the curves to a file, replacing those of the measured parts, and `python -m benchmarks.growth.page FILE` writes
docs/run/growth.md and its charts from it.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth import ledger, memory, objects, queues, servers, table, upkeep
from benchmarks.growth.curves import Curve, load, store


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The curves of one size, and the sizes at which they are measured."""

    measure: Callable[[Sequence[int], Path], Sequence[Curve]]
    sizes: Sequence[int]
    quick: Sequence[int]


PARTS: Mapping[str, Part] = {
    "objects": Part(measure=objects.measure, sizes=(1_000, 10_000, 100_000, 1_000_000), quick=(200, 1_000, 5_000)),
    "memory": Part(measure=memory.measure, sizes=(1_000, 10_000, 100_000), quick=(200, 1_000)),
    "ledger": Part(measure=ledger.measure, sizes=(0, 100_000, 1_000_000, 10_000_000), quick=(0, 20_000, 100_000)),
    "servers": Part(measure=servers.measure, sizes=(0, 100_000, 1_000_000, 10_000_000), quick=(0, 20_000, 100_000)),
    "table": Part(measure=table.measure, sizes=(1, 100, 1_000, 10_000), quick=(1, 100, 300)),
    "upkeep": Part(measure=upkeep.measure, sizes=(1, 100, 1_000, 10_000), quick=(1, 50, 200)),
    "queue": Part(measure=queues.measure_queue, sizes=(0, 1_000, 100_000, 1_000_000), quick=(0, 1_000, 10_000)),
    "groups": Part(measure=queues.measure_groups, sizes=(1, 100, 10_000, 100_000), quick=(1, 100, 1_000)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--json", type=Path, help="add the curves to this file")
    parser.add_argument("--folder", type=Path, help="where to put files; a temporary folder by default")
    arguments = parser.parse_args()
    for name, part in PARTS.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
            curves = part.measure(part.quick if arguments.quick else part.sizes, Path(folder))
        for curve in curves:
            status = "flat" if curve.is_flat else "grows"
            print(f"{name:8} {curve.operation:30} {status}: {curve.growth:.2f} times", flush=True)
        if arguments.json is not None:
            others = [one for one in load(arguments.json) if one.part != name]
            store(arguments.json, [*others, *curves])


if __name__ == "__main__":
    main()

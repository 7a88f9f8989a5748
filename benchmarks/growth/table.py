"""A table: the publish of one batch with one file, by the number of commits that the table has.

The commits are real ones, made by the same publishes. A publish loads the newest version, checks position and file, and
commits; every hundredth commit to a Delta table also writes a checkpoint with all files, whose cost is a part of the
mean. The table is a folder.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.growth.curves import Curve, Series
from benchmarks.publish import make_file, publish
from penstock.sinks.registry import SINKS, open_sink
from penstock.storage.local import LocalFiles

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
_ROUNDS = 100  # one checkpoint of Delta, and three merges of Iceberg's manifests


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    series = Series("table", {f"publish, {scheme}": "commit" for scheme in SINKS})
    sinks = {}
    for scheme in SINKS:
        root = LocalFiles(folder / scheme)
        sinks[scheme] = open_sink(root, pipeline="clicks", scheme=scheme), root
        sinks[scheme][0].ensure_schema(_SCHEMA)
    made = dict.fromkeys(SINKS, 0)
    for size in sizes:
        for scheme, (sink, root) in sinks.items():
            rounds = _ROUNDS if size > _ROUNDS else 1
            while made[scheme] < size - rounds:
                made[scheme] += 1
                publish(sink, made[scheme], [make_file(root, made[scheme])])
            files = [make_file(root, made[scheme] + number + 1) for number in range(rounds)]
            with series.of(f"publish, {scheme}", rounds):
                for file in files:
                    made[scheme] += 1
                    publish(sink, made[scheme], [file])
        series.done(size)
    return series.curves()

"""One schedule of objects whose rows are merged by key, in a table of any format.

As `tests.simulation.changing`, with rows that insert, update and delete a few keys, each of which may be in every
object: put, append, correct, delete and restore in random order, notifications that are late, lost or repeated, workers
that die at any step, and beside them a compaction, a fold of the deletes, garbage collection and another program that
rewrites files. The ledger, the attempts, publishing, merging and folding are the real code.

Checked at every commit to the table: it shows the rows that `MergeByKey` computes from the batches up to its position.

``python -m tests.simulation.merging SEED [FORMAT]`` runs a schedule again, and prints its log.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.simulation.change_rules import MergeByKey
from tests.simulation.changing import ChangeSabotage, ChangingRunner, ChangingSchedule
from tests.simulation.changing_store import Stored, StoreEngine
from tests.simulation.changing_tables import FORMATS

from penstock.ledger import Ledger
from penstock.ledger.records import BatchRecord
from penstock.messaging.steps import Step
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.engine import Engine
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.tombstones import fold_deletes
from penstock.pipeline.spark.table_schema import agreement
from penstock.sinks.manifest import encode
from penstock.sinks.sink import TableSink

MERGE = Merge(key="key", order_by="rank", delete_when="operation = 'D'", drop="operation")
SCHEMA = pa.schema([("key", pa.string()), ("rank", pa.int64()), ("line", pa.string()), ("_object", pa.string())])
_DELETES = pa.schema([SCHEMA.field(name) for name in MERGE.compared])
ROW_KEYS = ("k1", "k2", "k3")
RANKS = 4
FOLDED_MIN = 2


@dataclass(slots=True, kw_only=True)
class MergingEngine(StoreEngine):
    """Writes rows into the table's files, and deletes beside the table."""

    def write(self, attempt_id: str, found: Sequence[Stored]) -> BatchRecord:
        rows, deletes = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        for stored in found:
            for line in stored.lines:
                key, rank, operation, _ = line.split()
                if operation == "D":
                    deletes.append((key, int(rank)))
                else:
                    rows.append((key, int(rank), line, stored.ref.uri))
        files = self.write_rows(f"data/{attempt_id}/r0", rows, self.schema)
        gone = self.write_rows(f"{TOMBSTONES_FOLDER}/{attempt_id}", deletes, _DELETES)
        self.probe(Step.DELETES_WRITTEN)
        return BatchRecord(
            rows=sum(file.rows for file in files),
            bytes=1,
            manifest=encode(files),
            merge=MERGE.text(),
            tombstones=encode(gone) if gone else "",
        )


class MergingSchedule(ChangingSchedule):
    """The state of one schedule."""

    schema = SCHEMA
    merges = True

    def __init__(self, *given: Any, sabotage: ChangeSabotage | None = None, **options: Any) -> None:
        super().__init__(*given, rule="add", sabotage=sabotage, **options)
        self.rule = MergeByKey()

    def engine(self, ledger: Ledger) -> Engine:
        return MergingEngine(
            store=self.store,
            table=self.table.root,
            scheduler=self.scheduler,
            probe=self.probe,
            agree=partial(agreement, ledger, self.table.sink(), self.pipeline),
            read=self.read,
            overtake=self.overtake,
            schema=SCHEMA,
        )

    def events(self) -> Sequence[tuple[float, Callable[[], object]]]:
        """Return those that a merged table allows: no retraction, and no rows of other writers."""
        return [one for one in super().events() if one[1] not in (self.retract, self.foreign_append)]

    def compact(self, sink: TableSink) -> None:
        super().compact(sink)
        fold_deletes(
            self.ledger,
            sink.root,
            pipeline=self.pipeline,
            now=self.clock.now(),
            probe=self.probe,
            files_min=FOLDED_MIN,
        )

    def _line(self) -> str:
        self._lines += 1
        operation = self.random.choice("IUUD")
        return f"{self.random.choice(ROW_KEYS)} {self.random.randrange(RANKS)} {operation} {self._lines}"


def main(seed: int, format: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runner = ChangingRunner(Path(folder), MergingSchedule)
        with runner.schedule(seed, format) as schedule:
            try:
                schedule.run()
            finally:
                sys.stdout.write("\n".join([*schedule.scheduler.log, "", *schedule.steps, ""]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else FORMATS[0])

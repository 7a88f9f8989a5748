"""Put back what overwritten commits showed; see `penstock.pipeline.overwritten`.

Every function makes at most one commit, on the snapshot that was inspected. Its caller loads the table again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from ulid import ULID

from penstock.errors import PublishHalted
from penstock.events import Bus, CommitOverwritten, CompactionUndone, ForeignCommit
from penstock.ledger.records import BatchRow
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.overwritten import (
    UNDO,
    CommitWatch,
    Conflict,
    Inspection,
    LostFile,
    Repeat,
    Unreplaced,
    gone,
    named,
)
from penstock.pipeline.rewriting import is_abandoned
from penstock.sinks.checks import check_files
from penstock.sinks.schema import additions
from penstock.sinks.sink import Append, TableSnapshot

FILES_MAX = 10_000  # per commit; a single batch may exceed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """Put back what commits of one table lost."""

    watch: CommitWatch
    pipeline: str
    bus: Bus
    probe: Probe
    clock: Clock

    def put_back(
        self, found: Inspection, table: TableSnapshot, tip: BatchRow | None, columns: pa.Schema | None
    ) -> bool:
        """Return True if the table was committed to, so that it has to be loaded and inspected again.

        Args:
            found: The result of the inspection.
            table: The snapshot that was inspected.
            tip: The batch at its position.
            columns: The columns that this batch needs.

        Raises:
            PublishConflict: Another writer committed first.
            PublishHalted: A commit of another writer is hidden from some readers, and only that writer can repeat it.
        """
        if tip is not None and columns is not None:
            if found.foreign and additions(table.schema, columns, table=self.watch.sink.uri):
                self.watch.sink.ensure_schema(columns)
                return True
            due = next((one for one in found.unreplaced if one.seq <= tip.seq), None)
            if due is not None:
                self._replace_again(table, tip, found, due)
                return True
            if found.lost:
                self._republish(table, tip, found, _first_files(found.lost))
                return True
        undoable = [conflict for conflict in found.conflicts if conflict.removed]
        if undoable:
            self._undo(table, undoable[0])
            return True
        if found.repeats:
            self._repeat(table, found.repeats[0])
            return True
        return False

    def settle(self, found: Inspection) -> None:
        """Remember the inspected commits, and report those of other writers."""
        self.watch.remember(found)
        for conflict in found.conflicts:
            self._emit_undone(conflict, None)
        for commit in found.foreign:
            self.bus.emit(
                ForeignCommit(
                    pipeline=self.pipeline,
                    sink=self.watch.sink.uri,
                    version=commit.version,
                    operation=commit.operation,
                    engine=commit.engine or "",
                )
            )

    def _replace_again(self, table: TableSnapshot, tip: BatchRow, found: Inspection, one: Unreplaced) -> None:
        self.check(found, one)
        self._republish(table, tip, found, [lost for lost in found.lost if lost.seq == one.seq], again=one)

    def check(self, found: Inspection, one: Unreplaced) -> None:
        """Raise `PublishHalted` if the commit that took the place of this one contradicts it, or gc gave it up.

        The snapshot that the next commit is made on was loaded before: see `penstock.pipeline.rewriting`.
        """
        by = next(commit for commit in found.foreign if commit.version == one.version)
        written = [file.path for file in one.added if file.path.startswith(f"{one.folder}/")]
        if written and is_abandoned(self.watch.sink.root, one.folder, written):
            raise gone(self.watch.sink.uri, by, one.seq, one.folder)
        if one.contradicted:
            raise PublishHalted(
                f"In the table {self.watch.sink.uri}, {named(by)} took the place of a commit of Penstock that replaced "
                f"rows, and removed files that this one had written again: rows may be in the table twice. Let that "
                f"writer restore version {one.version - 1}, and process the objects of batch {one.seq} and later again."
            )

    def _republish(
        self,
        table: TableSnapshot,
        tip: BatchRow,
        found: Inspection,
        lost: Sequence[LostFile],
        *,
        again: Unreplaced | None = None,
    ) -> None:
        """Add lost files once more; with ``again``, the rows that their batch replaces leave in the same commit."""
        first = again.seq if again is not None else lost[0].seq
        self.probe(Step.REPUBLISHING)
        version = table.append(
            Append(
                seq=tip.seq,
                attempt_id=tip.attempt_id,
                files=[*(one.file for one in lost), *(() if again is None else again.added)],
                republished_after=first - 1,
                replaced=() if again is None else again.removed,
                replacing=None if again is None else again.seq,
                rewritten_in="" if again is None else again.folder,
            )
        )
        self.probe(Step.REPUBLISHED)
        by = found.overwriting or found.foreign[-1]
        self.bus.emit(
            CommitOverwritten(
                pipeline=self.pipeline,
                sink=self.watch.sink.uri,
                version=by.version,
                operation=by.operation,
                engine=by.engine or "",
                first_seq=first,
                last_seq=first if again is not None else lost[-1].seq,
                files=len(lost),
                table_version=version,
            )
        )

    def _undo(self, table: TableSnapshot, conflict: Conflict) -> None:
        sink, history = self.watch.sink, self.watch.history
        if history is None:
            raise AssertionError("a conflict was found in the history")
        check_files(sink.root, conflict.added, partition_by=table.partition_by)
        self.probe(Step.REPUBLISHING)
        version = history.replace_files(
            version=table.version,
            removed=conflict.removed,
            added=conflict.added,
            now=self.clock.now(),
            engine=f"{UNDO} {conflict.version} {ULID()}",
        )
        self.probe(Step.REPUBLISHED)
        self._emit_undone(conflict, version)

    def _repeat(self, table: TableSnapshot, repeat: Repeat) -> None:
        if repeat.hides_columns:
            raise PublishHalted(
                f"Version {repeat.version} of the table {self.watch.sink.uri}, by another writer, replaced a commit of "
                f"Penstock after a checkpoint was made, so readers disagree on the table's columns or properties. "
                f"Make the change of that version once more with that writer, and publishing continues."
            )
        self.probe(Step.REPUBLISHING)
        self.watch.log.apply_again(
            version=table.version, of_version=repeat.version, paths=repeat.paths, now=self.clock.now()
        )
        self.probe(Step.REPUBLISHED)

    def _emit_undone(self, conflict: Conflict, table_version: int | None) -> None:
        uri = self.watch.sink.uri
        self.bus.emit(
            CompactionUndone(pipeline=self.pipeline, sink=uri, version=conflict.version, table_version=table_version)
        )


def _first_files(lost: Sequence[LostFile]) -> Sequence[LostFile]:
    """Return the files of the oldest lost batches that fit into one commit; at least one batch."""
    if len(lost) <= FILES_MAX:
        return lost
    end = max(lost[FILES_MAX].seq, lost[0].seq + 1)
    return [one for one in lost if one.seq < end]

"""A ledger that was rolled back, while its table went on, is brought up to the table again.

A ledger that loses what it had acknowledged (restored from a backup, an asynchronous failover) is outside the promise:
publishing halts. What the table shows is then the truth. It is imported with the objects it came from, as far as the
records beside the table name them; what the ledger committed in the meantime follows behind it, unless its objects are
in what is imported; and every attempt that is open is given up, since it was begun on what the ledger had forgotten.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from ulid import ULID

from penstock.errors import PublishHalted, TableError
from penstock.events import Bus, LedgerRepairBegan, LedgerRepairEnded
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.ledger.repair_records import ImportedBatch, LedgerRepair, LedgerRepaired
from penstock.pipeline.batch_record import BatchRecord, load, recorded
from penstock.pipeline.layout import DATA_FOLDER
from penstock.pipeline.repair_import import files_of, imported_batch, widened
from penstock.pipeline.repair_numbers import Numbers, numbers_of
from penstock.pipeline.repair_tail import Tail, tail_of
from penstock.sinks.delta import DeltaTableSink
from penstock.sinks.manifest import attempt_token, decode
from penstock.sinks.schema import encode as encode_columns

KNOWN_IN_A_ROW = 200  # records of attempts that the ledger knows, newest first, before no older one is looked at
_PAGE = 1_000  # objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a repair would do. Nothing: ledger and tables agree."""

    pipeline: str
    agrees_at: int  # the last batch that ledger and tables both have
    ledger_at: int  # the last batch of the ledger
    shown_at: int  # the last batch that a table shows
    repair: LedgerRepair | None
    unnamed: Sequence[int]  # imported batches whose objects nobody can name
    unshown_rows: Sequence[int]  # of those, the ones of which the rows were not visible yet: their objects come again
    open_attempts: Sequence[str]
    forgotten_objects: Sequence[str]  # of batches that were committed, or about to be, and never shown: their addresses
    log_is_whole: bool

    @property
    def objects_imported(self) -> int:
        return sum(len(batch.objects) for batch in self.repair.imported) if self.repair is not None else 0


class Repairer:
    """Looks at one pipeline's ledger and tables, and repairs what it has found. For one look."""

    def __init__(
        self, ledger: Ledger, *, pipeline: str, rows: DeltaTableSink, quarantine: DeltaTableSink, adopt: bool = False
    ) -> None:
        """``adopt``: take over a table with which the ledger has nothing in common."""
        self._ledger = ledger
        self._pipeline = pipeline
        self._rows = rows
        self._quarantine = quarantine
        self._adopt = adopt
        self._next_seq = ledger.ensure_pipeline(pipeline).next_seq  # before anything else is looked at

    def find(self) -> Findings:
        """Look, and change nothing.

        Raises `PublishHalted` where ledger and tables have nothing in common, `TableError` where they contradict each
        other.
        """
        if not any(tail.shown for tail in self._tails):
            return self._findings(None)
        self._check_common()
        return self._findings(self._repair())

    def apply(self, findings: Findings, bus: Bus) -> LedgerRepaired | None:
        """Repair what was found; None where there was nothing. Raises `TemporaryError` where the ledger moved since."""
        repair = findings.repair
        if repair is None:
            return None
        bus.emit(LedgerRepairBegan(pipeline=self._pipeline, agrees_at=findings.agrees_at, shown_at=findings.shown_at))
        done = self._ledger.repair(repair)
        bus.emit(
            LedgerRepairEnded(
                pipeline=self._pipeline,
                batches=len(repair.imported),
                objects=findings.objects_imported,
                moved=len(repair.moved),
                withdrawn=len(done.withdrawn),
                abandoned=len(done.abandoned),
            )
        )
        return done

    # What is there

    @cached_property
    def _tails(self) -> Sequence[Tail]:
        return tail_of(self._rows, self._knows), tail_of(self._quarantine, self._knows)

    def _knows(self, seq: int, token: int | None) -> bool:
        batch = self._ledger.batch(self._pipeline, seq)
        return batch is not None and attempt_token(batch.attempt_id) == token

    @cached_property
    def _batches(self) -> Mapping[int, BatchRow]:
        """The ledger's, from where the first table went on without it."""
        first = min(tail.shown[0].after_seq for tail in self._tails if tail.shown)
        return {batch.seq: batch for batch in self._ledger.batches_after(self._pipeline, first)}

    @cached_property
    def _numbers(self) -> Numbers:
        return numbers_of(self._tails, list(self._batches.values()), named=self._named())

    def _named(self) -> set[str]:
        """Attempts whose names are left, where the log itself may not tell them any more."""
        if all(tail.whole for tail in self._tails):
            return set()
        folders = [name for sink in (self._rows, self._quarantine) for name in sink.root.names(DATA_FOLDER)]
        return {*recorded(self._rows.root), *(name.rstrip("/") for name in folders)}

    @cached_property
    def _records(self) -> Mapping[str, BatchRecord]:
        """Of what is imported, as far as there are records."""
        found = {id: load(self._rows.root, id) for id in self._numbers.imported.values()}
        return {id: record for id, record in found.items() if record is not None and self._is_true(record)}

    def _is_true(self, record: BatchRecord) -> bool:
        """A record that does not name what the tables show is none: that would be somebody else's."""
        recorded_files = {file.path for text in (record.manifest, record.quarantine_manifest) for file in decode(text)}
        shown = {file.path for tail in self._tails for file in files_of(tail, record.attempt_id)}
        if record.pipeline == self._pipeline and shown <= recorded_files:
            return True
        raise TableError(
            f"The record of the attempt {record.attempt_id} in {self._rows.root} is of {record.pipeline}, or of other "
            "files than the table shows; move it away, and its batch is imported without its objects."
        )

    def _check_common(self) -> None:
        if self._adopt and (self._next_seq == 1 or all(tail.whole for tail in self._tails)):
            return
        if not self._numbers.agrees_at:
            raise PublishHalted(
                f"The ledger has no batch of {self._pipeline} in common with {self._rows.uri}: it is another table's, "
                "or began anew. Name the state that was used with this table (--state); only if there is none any "
                "more, and nobody writes to the table from another one, let the ledger take the table over (--adopt)."
            )

    # What is to be done

    def _findings(self, repair: LedgerRepair | None) -> Findings:
        lost = self._lost if repair is not None else ()
        positions = [tail.position.seq for tail in self._tails]
        imported = self._numbers.imported if repair is not None else {}
        unnamed = sorted(seq for seq, attempt_id in imported.items() if attempt_id not in self._records)
        return Findings(
            pipeline=self._pipeline,
            agrees_at=self._numbers.agrees_at if repair is not None else max(positions),
            ledger_at=self._next_seq - 1,
            shown_at=max(positions),
            repair=repair,
            unnamed=unnamed,
            unshown_rows=[seq for seq in unnamed if seq > positions[0] and not files_of(self._tails[0], imported[seq])],
            open_attempts=[row.id for row in self._ledger.open_attempts(self._pipeline)] if repair is not None else [],
            forgotten_objects=[one.ref.uri for record in lost for one in record.objects],
            log_is_whole=all(tail.whole for tail in self._tails),
        )

    def _repair(self) -> LedgerRepair:
        numbers = self._numbers
        imported = [
            imported_batch(seq, attempt_id, tails=self._tails, record=self._records.get(attempt_id))
            for seq, attempt_id in sorted(numbers.imported.items())
        ]
        imported += [ImportedBatch(seq=seq, attempt_id=str(ULID()), objects=()) for seq in numbers.blank]
        imported_ids = {one.candidate.object_id for batch in imported for one in batch.objects}
        columns = self._columns()
        moved: dict[int, int] = {}
        withdrawn: list[int] = []
        for seq in numbers.unshown:
            wider = widened(columns, self._batches[seq].table_schema, table=self._rows.uri)
            if wider is None or not imported_ids.isdisjoint(self._objects_of(seq)):
                withdrawn.append(seq)
            else:
                moved[seq] = numbers.tip + len(moved) + 1
                columns = wider
        return LedgerRepair(
            pipeline=self._pipeline,
            seen_next_seq=self._next_seq,
            next_seq=numbers.tip + len(moved) + 1,
            table_schema=encode_columns(columns) if columns is not None else None,
            imported=imported,
            moved={seq: new_seq for seq, new_seq in moved.items() if seq != new_seq},
            withdrawn=withdrawn,
            forgotten=[record.attempt_id for record in self._lost],
        )

    def _columns(self) -> pa.Schema | None:
        """The table's, with those that imported batches add and the table does not show yet."""
        table = self._tails[0].table
        columns = table.schema if table is not None else None
        for record in self._records.values():
            columns = widened(columns, record.columns, table=self._rows.uri) or columns
        return columns

    def _objects_of(self, seq: int) -> Iterator[bytes]:
        after = b""
        while page := self._ledger.processed_objects(self._pipeline, seq, after=after, limit=_PAGE):
            yield from (row.object_id for row in page)
            after = page[-1].object_id

    @cached_property
    def _lost(self) -> Sequence[BatchRecord]:
        """Records of attempts of this pipeline that no table shows and the ledger does not know: nobody ever commits
        them, for a claim comes before a record. Where the log is not whole they may have been shown long ago."""
        if not all(tail.whole for tail in self._tails):
            return ()
        found: list[BatchRecord] = []
        known_in_a_row = 0
        shown = set(self._numbers.imported.values())
        for attempt_id in reversed(recorded(self._rows.root)):
            if attempt_id in shown or self._ledger.attempt(attempt_id) is not None:
                known_in_a_row += 1
                if known_in_a_row == KNOWN_IN_A_ROW:
                    break
                continue
            known_in_a_row = 0
            record = load(self._rows.root, attempt_id)
            if record is not None and record.pipeline == self._pipeline:
                found.append(record)
        return found

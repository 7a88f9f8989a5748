"""Repair a ledger that was rolled back while its table went on: bring it up to the table again.

A ledger that loses acknowledged data (a restored backup, an asynchronous failover) is outside the guarantees:
publishing halts. The table's content is then the truth. The repair imports its batches, with their objects as far as
the records beside the table name them. Batches that the ledger committed in the meantime follow behind, unless their
objects are among the imported ones. Every open attempt is abandoned, since it began without the forgotten batches.

Pure functions turn the log entries and the record of a batch into rows for the ledger (`imported_batch`), and find the
number of each batch (`numbers_of`). `Repairer` reads ledger and tables, and applies the repair.

About the numbers: a commit to a table names its last batch, and holds the files of all batches since the commit before.
The order of batches within one commit does not matter, as long as the last one is the one named and both tables agree.
Batches of the ledger beyond the agreement were committed after it was rolled back, or never became visible.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import pyarrow as pa
from ulid import ULID

from penstock.errors import PublishHalted, TableError
from penstock.events import Bus, LedgerRepairFinished, LedgerRepairStarted
from penstock.ledger import Ledger
from penstock.ledger.records import (
    BadLines,
    BatchRecord,
    BatchRow,
    Candidate,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    LedgerRepaired,
    ObjectResult,
    OnChange,
    OriginalMessage,
)
from penstock.messaging.wording import counted
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import (
    DATA_FOLDER,
    TOMBSTONES_FOLDER,
    RecordedBatch,
    RecordedObject,
    load,
    recorded,
)
from penstock.pipeline.maintenance.gc import is_attempt_id
from penstock.pipeline.maintenance.table_history import TableTail, VisibleCommit, tail_of
from penstock.pipeline.quarantined import bad_lines, replays
from penstock.sinks.manifest import DataFile, attempt_token, decode, encode, is_empty
from penstock.sinks.schema import additions
from penstock.sinks.schema import decode as decode_columns
from penstock.sinks.schema import encode as encode_columns
from penstock.sinks.sink import TableSink

_UNKNOWN_MESSAGE = OriginalMessage(
    message_id="", enqueued_at=0.0
)  # the message that named an imported object is unknown

KNOWN_IN_A_ROW = 200  # consecutive records of known attempts, newest first, after which the search ends
_PAGE = 1_000  # objects per query


def imported_batch(
    seq: int, attempt_id: str, *, tails: Sequence[TableTail], saved: RecordedBatch | None
) -> ImportedBatch:
    """Return the batch to import. ``tails``: of rows and quarantine. Without a record it has files but no objects."""
    rows, quarantine = tails
    if saved is None:
        files, bad_files = files_of(rows, attempt_id), files_of(quarantine, attempt_id)
        return ImportedBatch(
            seq=seq,
            attempt_id=attempt_id,
            objects=(),
            record=BatchRecord(
                rows=sum(file.rows for file in files),
                lines_quarantined=sum(file.rows for file in bad_files),
                manifest=encode(files),
                quarantine_manifest=encode(bad_files),
            ),
            claimed_at=_claimed_at(attempt_id),
            committed_at=_shown_since(tails, attempt_id),
        )
    return ImportedBatch(
        seq=seq,
        attempt_id=attempt_id,
        objects=[_imported_object(recorded) for recorded in saved.objects],
        record=saved.record,
        claimed_at=_claimed_at(attempt_id),
        committed_at=_shown_since(tails, attempt_id),
        bad=() if is_empty(saved.record.quarantine_manifest) else _bad_lines(saved),
        replays=replays(*_results(saved)),
        on_change=OnChange.REPLACE if saved.replaces_versions else OnChange.ADD,
    )


def _bad_lines(saved: RecordedBatch) -> Sequence[BadLines]:
    return bad_lines(*_results(saved), attempt_id=saved.attempt_id, place=saved.place)


def _results(saved: RecordedBatch) -> tuple[Mapping[bytes, ObjectRef], Sequence[ObjectResult]]:
    refs = {one.ref.object_id: one.ref for one in saved.objects}
    return refs, [
        ObjectResult(object_id=one.ref.object_id, rows=one.rows, lines_quarantined=one.lines_quarantined)
        for one in saved.objects
    ]


def files_of(tail: TableTail, attempt_id: str) -> Sequence[DataFile]:
    """Return the files of an attempt that the table shows."""
    return [file for shown in tail.shown for file in shown.files.get(attempt_id, ())]


def widened(columns: pa.Schema | None, wanted: str | None, *, table: str) -> pa.Schema | None:
    """Return ``columns`` plus those that only ``wanted`` has, or None if the two are incompatible."""
    if wanted is None:
        return columns
    if columns is None:
        return decode_columns(wanted)
    try:
        return pa.schema([*columns, *additions(columns, decode_columns(wanted), table=table)])
    except TableError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairNumbers:
    """The work of a repair, as batch numbers."""

    agrees_at: int  # up to here the ledger has the batches that the tables show
    tip: int  # the last batch that a table shows
    imported: Mapping[int, str]  # attempts that the tables show and the ledger lacks
    blank: Sequence[int]  # numbers without a file in any table: their batches had none
    unshown: Sequence[int]  # batches of the ledger that no table shows and that cannot keep their number


def numbers_of(tails: Sequence[TableTail], batches: Sequence[BatchRow], *, named: Collection[str]) -> RepairNumbers:
    """Assign a number to each batch.

    Args:
        batches: The ledger's batches after the earliest agreement.
        named: Attempt ids found in file and folder names, to identify a tip whose files the log no longer has.

    Raises:
        TableError: No numbering is consistent with tables and ledger.
    """
    seq_of = {batch.attempt_id: batch.seq for batch in batches}
    spans = _spans(tails, {*seq_of, *named})
    known = {attempt_id: seq_of[attempt_id] for attempt_id in spans if attempt_id in seq_of}
    for attempt_id, seq in known.items():
        if seq not in range(spans[attempt_id][0], spans[attempt_id][1] + 1):
            raise _contradiction(tails, seq)
    agrees_at = max([tail.agrees_at for tail in tails] + list(known.values()))
    tip = max(tail.position.seq for tail in tails)
    wanted = {attempt_id: span for attempt_id, span in spans.items() if attempt_id not in known}
    held = {batch.seq for batch in batches if batch.seq <= agrees_at}
    empty = {batch.seq for batch in batches if batch.seq > agrees_at and _is_empty(batch)}
    free = [seq for seq in range(_first(tails) + 1, tip + 1) if seq not in held]
    imported = _assigned(wanted, [seq for seq in free if seq not in empty]) or _assigned(wanted, free)
    if imported is None:
        raise _contradiction(tails, tip)
    for batch in batches:
        if batch.seq <= agrees_at and _is_hidden(tails, batch):
            raise _contradiction(tails, batch.seq)
    staying = {seq for seq in empty if seq <= tip and seq not in imported}
    return RepairNumbers(
        agrees_at=agrees_at,
        tip=tip,
        imported=imported,
        blank=[seq for seq in range(agrees_at + 1, tip + 1) if seq not in imported and seq not in staying],
        unshown=[batch.seq for batch in batches if batch.seq > agrees_at and batch.seq not in staying],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairFindings:
    """The result of an inspection. ``repair`` is None if ledger and tables agree."""

    pipeline: str
    agrees_at: int  # the last batch that ledger and tables both have
    ledger_at: int  # the last batch of the ledger
    shown_at: int  # the last batch that a table shows
    repair: LedgerRepair | None
    unnamed: Sequence[int]  # imported batches with unknown objects
    unshown_rows: Sequence[int]  # those of them whose rows were not visible yet: their objects are processed again
    open_attempts: Sequence[str]
    forgotten_objects: Sequence[str]  # addresses of objects in batches that the ledger lost before they became visible
    log_is_whole: bool

    @property
    def objects_imported(self) -> int:
        return sum(len(batch.objects) for batch in self.repair.imported) if self.repair is not None else 0


class Repairer:
    """One inspection of a pipeline's ledger and tables, and the repair that follows from it."""

    def __init__(
        self, ledger: Ledger, *, pipeline: str, rows: TableSink, quarantine: TableSink, adopt: bool = False
    ) -> None:
        """``adopt``: take over a table that has nothing in common with the ledger."""
        self._ledger = ledger
        self._pipeline = pipeline
        self._rows = rows
        self._quarantine = quarantine
        self._adopt = adopt
        self._next_seq = ledger.ensure_pipeline(pipeline).next_seq  # read before anything else, to detect later changes

    def find(self) -> RepairFindings:
        """Inspect ledger and tables, and change nothing.

        Raises `PublishHalted` if they have nothing in common, `TableError` if they contradict each other, or if rows
        are merged by key and the record of a batch to import is missing.
        """
        if not any(tail.shown for tail in self._tails):
            return self._findings(None)
        self._check_common()
        self._check_deletes()
        return self._findings(self._repair())

    def apply(self, findings: RepairFindings, bus: Bus) -> LedgerRepaired | None:
        """Apply the repair, or return None if there is none. Raise `TemporaryError` if the ledger has changed since."""
        repair = findings.repair
        if repair is None:
            return None
        bus.emit(
            LedgerRepairStarted(pipeline=self._pipeline, common_seq=findings.agrees_at, table_seq=findings.shown_at)
        )
        done = self._ledger.repair(repair)
        bus.emit(
            LedgerRepairFinished(
                pipeline=self._pipeline,
                batches=len(repair.imported),
                objects=findings.objects_imported,
                renumbered=len(repair.moved),
                withdrawn=len(done.withdrawn),
                abandoned=len(done.abandoned),
            )
        )
        return done

    # Inspection

    @cached_property
    def _tails(self) -> Sequence[TableTail]:
        return tail_of(self._rows, self._knows), tail_of(self._quarantine, self._knows)

    def _knows(self, seq: int, token: int | None) -> bool:
        batch = self._ledger.batch(self._pipeline, seq)
        return batch is not None and attempt_token(batch.attempt_id) == token

    @cached_property
    def _batches(self) -> Mapping[int, BatchRow]:
        """The ledger's batches after its earliest agreement with one of the tables."""
        first = min(tail.shown[0].after_seq for tail in self._tails if tail.shown)
        return {batch.seq: batch for batch in self._ledger.batches_after(self._pipeline, first)}

    @cached_property
    def _numbers(self) -> RepairNumbers:
        return numbers_of(self._tails, list(self._batches.values()), named=self._named())

    def _named(self) -> set[str]:
        """Return attempt ids from record and folder names, if the log is too short to contain them all.

        A batch that only replaces rows has no file in the log.
        """
        if all(tail.whole and all(map(_names_tip, tail.shown)) for tail in self._tails):
            return set()
        folders = [name for sink in (self._rows, self._quarantine) for name in sink.root.names(DATA_FOLDER)]
        return {*recorded(self._rows.root), *(name.rstrip("/") for name in folders)}

    @cached_property
    def _records(self) -> Mapping[str, RecordedBatch]:
        """The records of imported batches, as far as they exist."""
        found = {id: load(self._rows.root, id) for id in self._numbers.imported.values()}
        return {id: batch for id, batch in found.items() if batch is not None and self._is_true(batch)}

    def _is_true(self, batch: RecordedBatch) -> bool:
        """Return True if the record names the files that the tables show; raise if it belongs to another batch."""
        manifests = (batch.record.manifest, batch.record.quarantine_manifest)
        recorded_files = {file.path for manifest in manifests for file in decode(manifest)}
        shown = {file.path for tail in self._tails for file in files_of(tail, batch.attempt_id)}
        if batch.pipeline == self._pipeline and shown <= recorded_files:
            return True
        raise TableError(
            f"The record of the attempt {batch.attempt_id} in {self._rows.root} is of {batch.pipeline}, or of other "
            "files than the table shows; move it away, and its batch is imported without its objects."
        )

    def _check_common(self) -> None:
        if self._adopt and (self._next_seq == 1 or all(tail.whole for tail in self._tails)):
            return
        if not self._numbers.agrees_at:
            raise PublishHalted(
                f"The ledger has no batch of {self._pipeline} in common with {self._rows.uri}: it is another table's, "
                "or began anew. Name the data directory that was used with this table (--data-dir). Only if it no "
                "longer exists, and no other ledger writes to the table, let this ledger take the table over (--adopt)."
            )

    def _check_deletes(self) -> None:
        """Raise `TableError` if deletes of a batch would be forgotten.

        Only its record names them. A batch that has nothing but deletes is found by its commit alone.
        """
        if self._numbers.blank and not all(tail.whole for tail in self._tails) and self._merges():
            raise TableError(
                f"Rows of {self._rows.uri} are merged by key, and its log was cleaned up: batches that the ledger "
                "lacks may have had nothing but deletes, and without these, deleted keys could come back. Bring back a "
                "newer backup of the ledger; otherwise load all objects into a new table."
            )
        missing = [id for _, id in sorted(self._numbers.imported.items()) if id not in self._records]
        if missing and self._merges():
            raise TableError(
                f"Rows of {self._rows.uri} are merged by key, and {self._rows.root} has no record of "
                f"{counted(len(missing), 'batch', 'batches')} that the ledger lacks (attempt {missing[0]}): without "
                "its deletes, deleted keys could come back. Bring back the record from a backup or an earlier version "
                "of the bucket, or a newer backup of the ledger; otherwise load all objects into a new table."
            )

    def _merges(self) -> bool:
        if self._ledger.ensure_pipeline(self._pipeline).merge is not None:
            return True
        records = [batch.record for batch in self._records.values()] + [one.record for one in self._batches.values()]
        return any(record.merge is not None for record in records) or bool(self._rows.root.names(TOMBSTONES_FOLDER))

    # Planning

    def _findings(self, repair: LedgerRepair | None) -> RepairFindings:
        lost = self._lost if repair is not None else ()
        positions = [tail.position.seq for tail in self._tails]
        imported = self._numbers.imported if repair is not None else {}
        unnamed = sorted(seq for seq, attempt_id in imported.items() if attempt_id not in self._records)
        return RepairFindings(
            pipeline=self._pipeline,
            agrees_at=self._numbers.agrees_at if repair is not None else max(positions),
            ledger_at=self._next_seq - 1,
            shown_at=max(positions),
            repair=repair,
            unnamed=unnamed,
            unshown_rows=[seq for seq in unnamed if seq > positions[0] and not files_of(self._tails[0], imported[seq])],
            open_attempts=[row.id for row in self._ledger.open_attempts(self._pipeline)] if repair is not None else [],
            forgotten_objects=[recorded.ref.uri for batch in lost for recorded in batch.objects],
            log_is_whole=all(tail.whole for tail in self._tails),
        )

    def _repair(self) -> LedgerRepair:
        numbers = self._numbers
        imported = [
            imported_batch(seq, attempt_id, tails=self._tails, saved=self._records.get(attempt_id))
            for seq, attempt_id in sorted(numbers.imported.items())
        ]
        imported += [ImportedBatch(seq=seq, attempt_id=str(ULID()), objects=()) for seq in numbers.blank]
        imported_ids = {recorded.candidate.object_id for batch in imported for recorded in batch.objects}
        columns = self._columns()
        moved: dict[int, int] = {}
        withdrawn: list[int] = []
        for seq in numbers.unshown:
            wider = widened(columns, self._batches[seq].table_schema, table=self._rows.uri)
            if self._is_retraction(seq):
                moved[seq] = numbers.tip + len(moved) + 1
            elif (
                wider is None
                # What was appended to a version that is not the last one any more cannot be shown.
                or (imported and self._batches[seq].grown_objects)
                or not imported_ids.isdisjoint(self._objects_of(seq))
            ):
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
            forgotten=[batch.attempt_id for batch in self._lost],
        )

    def _columns(self) -> pa.Schema | None:
        """Return the table's columns, plus those that imported batches add and the table does not show yet."""
        table = self._tails[0].table
        columns = table.schema if table is not None else None
        for batch in self._records.values():
            columns = widened(columns, batch.columns, table=self._rows.uri) or columns
        return columns

    def _is_retraction(self, seq: int) -> bool:
        """Return True if the batch only replaces rows; never withdrawn, it replaces rows of imported batches too."""
        batch = self._batches[seq]
        return bool(batch.record.replaces) and not batch.objects

    def _objects_of(self, seq: int) -> Iterator[bytes]:
        after = b""
        while page := self._ledger.processed_objects(self._pipeline, seq, after=after, limit=_PAGE):
            yield from (row.object_id for row in page)
            after = page[-1].object_id
        yield from self._ledger.reopenings.of_batch(self._pipeline, seq)

    @cached_property
    def _lost(self) -> Sequence[RecordedBatch]:
        """Records of this pipeline's attempts that neither a table nor the ledger knows. They can never be committed,
        since a claim comes before a record. Empty if the log is incomplete: such attempts may have been visible long
        ago."""
        if not all(tail.whole for tail in self._tails):
            return ()
        found: list[RecordedBatch] = []
        known_in_a_row = 0
        shown = set(self._numbers.imported.values())
        for attempt_id in reversed(recorded(self._rows.root)):
            if attempt_id in shown or self._ledger.attempt(attempt_id) is not None:
                known_in_a_row += 1
                if known_in_a_row == KNOWN_IN_A_ROW:
                    break
                continue
            known_in_a_row = 0
            batch = load(self._rows.root, attempt_id)
            if batch is not None and batch.pipeline == self._pipeline:
                found.append(batch)
        return found


def _shown_since(tails: Sequence[TableTail], attempt_id: str) -> float | None:
    """Return the time of the commit to the table, the best substitute for the lost time of the ledger's commit."""
    times = [shown.committed_at for tail in tails for shown in tail.shown if attempt_id in shown.files]
    return min((at for at in times if at is not None), default=None)


def _claimed_at(attempt_id: str) -> float | None:
    """Return the claim's time from the attempt id, by the clock of the process that claimed."""
    return ULID.from_str(attempt_id).timestamp if is_attempt_id(attempt_id) else None


def _imported_object(recorded: RecordedObject) -> ImportedObject:
    ref = recorded.ref
    return ImportedObject(
        candidate=Candidate(
            object_id=ref.object_id,
            bucket=ref.bucket,
            key=ref.key_bytes,
            size_bytes=ref.size_bytes,
            uri=ref.uri,
            original_message=_UNKNOWN_MESSAGE,
            version_id=ref.version_id,
            etag=ref.etag,
            sequencer=ref.sequencer,
        ),
        rows=recorded.rows,
        lines_quarantined=recorded.lines_quarantined,
        beginning=recorded.beginning,
        appended_to=recorded.appended_to,
    )


def _first(tails: Sequence[TableTail]) -> int:
    """Return the position before all commits that are newer than an agreement."""
    return min((tail.shown[0].after_seq for tail in tails if tail.shown), default=0)


def _spans(tails: Sequence[TableTail], named: Collection[str]) -> Mapping[str, tuple[int, int]]:
    """Return the smallest and largest possible number of each attempt."""
    spans: dict[str, tuple[int, int]] = {}
    by_token = {attempt_token(attempt_id): attempt_id for attempt_id in named}
    for shown in (shown for tail in tails for shown in tail.shown):
        tip = next((attempt_id for attempt_id in shown.files if attempt_token(attempt_id) == shown.token), None)
        tip = tip or by_token.get(shown.token or -1)
        if tip is None:
            raise TableError(
                f"Nothing is left that says which batch has the number {shown.seq}: its files were compacted and the "
                f"log was cleaned up; bring back the ledger from a newer backup."
            )
        for attempt_id in {*shown.files, tip}:
            least, greatest = spans.get(attempt_id, (0, shown.seq))
            spans[attempt_id] = _narrowed(shown, least, greatest, is_tip=attempt_id == tip)
    return spans


def _names_tip(shown: VisibleCommit) -> bool:
    """Return True if the commit's files tell which attempt its last batch is of."""
    return any(attempt_token(attempt_id) == shown.token for attempt_id in shown.files)


def _narrowed(shown: VisibleCommit, least: int, greatest: int, *, is_tip: bool) -> tuple[int, int]:
    if is_tip:
        return max(least, shown.seq), min(greatest, shown.seq)
    return max(least, shown.after_seq + 1), min(greatest, shown.seq - 1)


def _is_hidden(tails: Sequence[TableTail], batch: BatchRow) -> bool:
    """Return True if a table would never show files of a batch, as its position is past it and no commit has them."""
    manifests = (batch.record.manifest, batch.record.quarantine_manifest)
    return any(
        tail.whole
        and not is_empty(manifest)
        and any(shown.after_seq < batch.seq <= shown.seq for shown in tail.shown)
        and not any(_shows(shown, batch.attempt_id) for shown in tail.shown)
        for tail, manifest in zip(tails, manifests, strict=True)
    )


def _shows(shown: VisibleCommit, attempt_id: str) -> bool:
    return attempt_id in shown.files or attempt_token(attempt_id) == shown.token


def _assigned(wanted: Mapping[str, tuple[int, int]], free: Sequence[int]) -> Mapping[int, str] | None:
    """Assign a free number to each attempt, earliest deadline first: this finds an assignment if one exists."""
    found: dict[int, str] = {}
    waiting = sorted(((least, attempt_id) for attempt_id, (least, _) in wanted.items()), reverse=True)
    fitting: list[tuple[int, str]] = []  # a heap, by the largest number that fits
    for seq in free:
        while waiting and waiting[-1][0] <= seq:
            attempt_id = waiting.pop()[1]
            heappush(fitting, (wanted[attempt_id][1], attempt_id))
        if fitting:
            greatest, attempt_id = heappop(fitting)
            if greatest < seq:
                return None
            found[seq] = attempt_id
    return None if waiting or fitting else found


def _is_empty(batch: BatchRow) -> bool:
    manifests = (batch.record.manifest, batch.record.quarantine_manifest, batch.record.tombstones)
    return all(map(is_empty, manifests)) and not batch.record.replaces


def _contradiction(tails: Sequence[TableTail], seq: int) -> TableError:
    where = " and ".join(tail.uri for tail in tails)
    return TableError(
        f"{where} do not go together with one another, or with the ledger: no numbering of their batches up to {seq} "
        f"fits all of them. They were written to from two ledgers; bring back all three from one backup."
    )

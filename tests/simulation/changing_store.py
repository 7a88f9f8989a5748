"""A store whose objects change, and an engine that reads it and writes real Parquet files."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.simulation.change_rules import Version
from tests.simulation.scheduler import Scheduler

from penstock.errors import TemporaryError
from penstock.ledger.records import AttemptFailure, BatchRecord, Beginning, ObjectResult
from penstock.messaging.steps import Step
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.pipeline.engine import ReadFailure, RunCancelled, RunRequest, RunResult
from penstock.pipeline.spark.table_schema import Agree
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.storage.local import LocalFiles

SCHEMA = pa.schema([("line", pa.string()), ("_object", pa.string())])


class StoreKind(StrEnum):
    """How a store tells versions apart."""

    FOLDER = "folder"  # by time and size; a file that is moved back has its old ones
    UNVERSIONED = "unversioned"  # by the digest of the content
    VERSIONED = "versioned"  # by an id; deleting the newest version brings the one before it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version, as the store has it."""

    ref: ObjectRef
    lines: Sequence[str]

    @property
    def version(self) -> Version:
        return Version(key=self.ref.key, id=self.ref.object_id, lines=tuple(self.lines))


@dataclass(slots=True, kw_only=True)
class ChangingStore:
    """The objects of a store by key. Each change returns the version that its notification names, or None."""

    kind: StoreKind
    now: Callable[[], int]  # the turn of the schedule
    current: dict[str, Stored] = field(default_factory=dict)
    checks_reads: bool = True  # False: reads return what is there, whatever they ask for
    _below: defaultdict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))  # newest last
    _left_at: dict[tuple[str, bytes], int] = field(default_factory=dict)  # when a version ceased to be the current one
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def put(self, key: str, lines: Sequence[str]) -> Stored:
        stored = Stored(ref=self._ref(key, lines), lines=tuple(lines))
        self._leave(key)
        self._set(key, stored)
        return stored

    def append(self, key: str, line: str) -> Stored | None:
        stored = self.current.get(key)
        return None if stored is None else self.put(key, [*stored.lines, line])

    def correct(self, key: str, line: str) -> Stored | None:
        """Replace the first line."""
        stored = self.current.get(key)
        return None if stored is None else self.put(key, [line, *stored.lines[1:]])

    def delete(self, key: str) -> None:
        self._leave(key)
        self._set(key, None)

    def restore(self, key: str, chance: Random, *, preferred: bytes | None = None) -> Stored | None:
        """Bring an earlier version back; in a bucket with versions the one before, without a notification."""
        stored = self.current.get(key)
        now = None if stored is None else stored.ref.object_id
        earlier = [one for one in self._below[key] if one.ref.object_id != now]
        if not earlier:
            return None
        if self.kind is StoreKind.VERSIONED:
            if now is not None:
                self._left_at[key, now] = self.now()
            self._set(key, self._below[key].pop())
            return None
        back = next((one for one in earlier if one.ref.object_id == preferred), None) or chance.choice(earlier)
        self._leave(key)
        again = Stored(ref=self._renumbered(back.ref), lines=back.lines)
        self._set(key, again)
        return again

    def check(self, ref: ObjectRef, *, current_only: bool) -> Stored | ReadFailure:
        """Return what a read of this version finds."""
        stored = self.current.get(ref.key)
        if stored is not None and stored.ref.object_id == ref.object_id:
            return stored
        if (self.kind is StoreKind.VERSIONED and not current_only) or not self.checks_reads:
            older = next((one for one in self._below[ref.key] if one.ref.object_id == ref.object_id), None)
            if older is not None:
                return older
        if stored is None:
            return ReadFailure(failure=AttemptFailure.DELETED, reason="missing")
        return ReadFailure(failure=AttemptFailure.SUPERSEDED, reason="another version exists")

    def was_current(self, version: Version, *, since: int) -> bool:
        """Return True if the store had this version as the key's current one at that turn or later."""
        stored = self.current.get(version.key)
        if stored is not None and stored.ref.object_id == version.id:
            return True
        return self._left_at.get((version.key, version.id), -1) >= since

    def versions(self) -> Mapping[str, Version]:
        return {key: stored.version for key, stored in self.current.items()}

    def _set(self, key: str, stored: Stored | None) -> None:
        """Make this the current version; None deletes the object."""
        if stored is None:
            self.current.pop(key, None)
        else:
            self.current[key] = stored

    def _leave(self, key: str) -> None:
        stored = self.current.get(key)
        if stored is not None:
            self._left_at[key, stored.ref.object_id] = self.now()
            self._below[key].append(stored)

    def _ref(self, key: str, lines: Sequence[str]) -> ObjectRef:
        number = next(self._numbers)
        size_bytes = sum(len(line) + 1 for line in lines)
        digest = hashlib.md5("\n".join(lines).encode(), usedforsecurity=False).hexdigest()
        if self.kind is StoreKind.FOLDER:
            return ObjectRef(bucket=LOCAL_BUCKET, key=key, size_bytes=size_bytes, etag=f"{number:x}-{size_bytes}")
        version_id = f"v{number}" if self.kind is StoreKind.VERSIONED else None
        return ObjectRef(
            bucket="landing",
            key=key,
            size_bytes=size_bytes,
            etag=digest,
            version_id=version_id,
            sequencer=f"{number:016X}",
        )

    def _renumbered(self, ref: ObjectRef) -> ObjectRef:
        """Return the reference in the notification of an event of its own."""
        if ref.sequencer is None:
            return ref
        sequencer = f"{next(self._numbers):016X}"
        return ObjectRef(bucket=ref.bucket, key=ref.key, size_bytes=ref.size_bytes, etag=ref.etag, sequencer=sequencer)


@dataclass(slots=True, kw_only=True)
class StoreEngine:
    """Reads the store, and writes the rows of a run into one or two files. One per process."""

    store: ChangingStore
    table: LocalFiles
    scheduler: Scheduler
    probe: Callable[[Step], None]
    agree: Agree
    read: dict[str, Sequence[Version]]  # by attempt, of all processes
    overtake: Callable[[str], None]  # lets a newer version of a key arrive, and other actors run
    tails: bool = False  # of an object that grew it returns only what was appended
    checks_beginnings: bool = True  # False: every longer version is taken for one that grew
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)
    _cancelled: set[str] = field(default_factory=set)

    def cancel(self, attempt_id: str) -> None:
        self._cancelled.add(attempt_id)

    def run(self, request: RunRequest) -> RunResult:
        self._check_cancelled(request)
        self.probe(Step.PLANNED)
        agreed = self.agree(self.schema)
        if self.scheduler.chance(0.01):
            raise TemporaryError("no space left on device")
        failed: dict[bytes, ReadFailure] = {}
        found: list[Stored] = []
        for ref in request.objects:
            self.scheduler.step("reads an object")
            match self.store.check(ref, current_only=request.current_only):
                case Stored() as stored:
                    found.append(stored)
                    self.overtake(ref.key)
                case failure:
                    failed[ref.object_id] = failure
        results = [self._result(request, stored) for stored in found]
        parts = [
            replace(stored, lines=stored.lines[len(stored.lines) - result.rows :])
            for stored, result in zip(found, results, strict=True)
        ]
        record = self.write(request.attempt_id, parts)
        self.probe(Step.WRITTEN)
        self._check_cancelled(request)
        self.probe(Step.MANIFESTED)
        self.probe(Step.RECORDED)
        self.read[request.attempt_id] = [stored.version for stored in found]
        return RunResult(
            processed=results,
            failed=failed,
            record=record,
            schema_id=agreed.schema_id,
            new_schema=agreed.new_schema,
            works=True,
        )

    def _result(self, request: RunRequest, stored: Stored) -> ObjectResult:
        content = "".join(f"{line}\n" for line in stored.lines).encode()
        known = request.beginnings.get(stored.ref.object_id)
        rows, base = len(stored.lines), None
        if self.tails and known is not None and 0 < known.beginning.size_bytes < len(content):
            begun = content[: known.beginning.size_bytes]
            if _digest(begun) == known.beginning.digest or not self.checks_beginnings:
                rows, base = content[known.beginning.size_bytes :].count(b"\n"), known.attempt_id
        beginning = None
        if self.tails and content and rows % 4 != 3:  # some versions are no beginning, as if their last line was open
            beginning = Beginning(size_bytes=len(content), digest=_digest(content), reading="r")
        return ObjectResult(
            object_id=stored.ref.object_id, rows=rows, lines_quarantined=0, beginning=beginning, appended_to=base
        )

    def write(self, attempt_id: str, found: Sequence[Stored]) -> BatchRecord:
        """Write the rows of these versions or their ends, and return the record of their batch."""
        rows = [(line, stored.ref.uri) for stored in found for line in stored.lines]
        files = self.write_rows(f"data/{attempt_id}/r0", rows, self.schema)
        return BatchRecord(rows=sum(file.rows for file in files), bytes=1, manifest=encode(files))

    def write_rows(self, folder: str, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> Sequence[DataFile]:
        """Write rows into one or two files."""
        if not rows:
            return ()
        count = self.scheduler.random.choice((1, 1, 2))
        for number in range(count):
            self.scheduler.step("writes a file")
            part = rows[number::count]
            if part:
                with self.table.open_output(f"{folder}/part-{number}.parquet") as output:
                    pq.write_table(pa.table(list(zip(*part, strict=True)), schema=schema), output)
        return list_files(self.table, folder, partition_by=(), schema=schema)

    def _check_cancelled(self, request: RunRequest) -> None:
        if request.attempt_id in self._cancelled:
            raise RunCancelled("cancelled")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

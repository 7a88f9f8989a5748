"""Tables and data directories as ingests or the workers of an app leave them, made without Spark, for the commands to
show.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from penstock.app.housekeeping import Presence
from penstock.app.paths import LEDGER_FILE, TablePaths, declared_table_paths, table_paths
from penstock.app.state import QUEUE_FILE, StateFolder, open_state
from penstock.app.tables import Tables
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import load_settings
from penstock.events import Bus, WorkerStarted
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    BatchRecord,
    Candidate,
    FailedObject,
    ObjectClaims,
    ObjectResult,
    OnChange,
    OriginalMessage,
    UnknownCounts,
)
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter, Release
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.replays import replay_of
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, run_files, save
from penstock.pipeline.quarantined import bad_lines, replays
from penstock.pipeline.spark.source.quarantine import QuarantineFile
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema
from penstock.worker.shutdown import StopSignal

LEASE_SECONDS = 600.0
SCHEMA = pa.schema([("id", pa.int64())])

HOSTILE_NAMES = (
    "two\nlines",
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "\u202egnp.exe",  # right-to-left override
    "emoji😀",
    "名前",
    "not-utf8-\udcff",
)


@dataclass(kw_only=True)
class Scene:
    """Build one table's history step by step. The data directory is closed between calls, as between processes."""

    where: TablePaths
    source: Path
    queue: str = ""  # of an app; an ingest's queue is derived from the source

    @staticmethod
    def at(folder: Path) -> "Scene":
        folder = folder.resolve()
        scene = Scene(where=table_paths(folder / "clicks"), source=folder / "landing")
        with scene._state():
            pass
        return scene

    @staticmethod
    def of_app(folder: Path, name: str = "clicks") -> "Scene":
        """Create a pipeline that an app declares, with the data directory in its default place."""
        folder = folder.resolve()
        where = declared_table_paths(name, folder / "tables" / name, load_settings(data_dir=str(folder / ".penstock")))
        scene = Scene(where=where, source=folder / "landing", queue=f"{name}-files")
        with scene._state():
            pass
        return scene

    @property
    def table(self) -> Path:
        """Return the folder of the table."""
        return Path(str(self.where.table))

    def ref(self, name: str, *, version: str = "1") -> ObjectRef:
        return ObjectRef(bucket=LOCAL_BUCKET, key=f"{self.source}/{name}", size_bytes=1_000, etag=f"{version}-1000")

    def process(
        self,
        *names: str,
        rows: int = 2,
        bad_lines: int = 0,
        version: str = "1",
        unknown: UnknownCounts | None = None,
        transform: str | None = None,
    ) -> None:
        """Commit one batch, with its files written and not yet published."""
        with self._state() as state:
            claim = self._claim(state, names, version=version)
            files = self._write(claim.attempt_id, rows * len(names))
            row = state.ledger.ensure_pipeline(self.where.pipeline)
            schema = encode_schema(SCHEMA)
            state.ledger.commit(
                BatchOutcome(
                    pipeline=self.where.pipeline,
                    attempt_id=claim.attempt_id,
                    processed=[
                        ObjectResult(object_id=object_id, rows=rows, lines_quarantined=bad_lines, unknown=unknown)
                        for object_id in claim.claimed
                    ],
                    record=BatchRecord(
                        rows=rows * len(names),
                        lines_quarantined=bad_lines * len(names),
                        bytes=1_000 * len(names),
                        manifest=encode(files),
                        stage_seconds={"read and write": 1.25},
                        transform=transform,
                    ),
                    schema_id=row.schema_id,
                    new_schema=None if row.table_schema == schema else schema,
                )
            )

    def read(
        self, ids_by_name: Mapping[str, Sequence[int]], *, version: str = "1", on_change: OnChange = OnChange.ADD
    ) -> None:
        """Commit one batch whose rows name their object, with its record beside the table; not yet published."""
        schema = pa.schema([*SCHEMA, ("_object", pa.string())])
        pairs = [(id, self.ref(name).uri) for name, ids in ids_by_name.items() for id in ids]
        refs = [self.ref(name, version=version) for name in ids_by_name]
        with self._state() as state:
            claim = self._claim_refs(state, refs, on_change=on_change)
            directory = f"data/{claim.attempt_id}/r0"
            (self.table / directory).mkdir(parents=True)
            table = pa.table([[id for id, _ in pairs], [uri for _, uri in pairs]], schema=schema)
            pq.write_table(table, self.table / directory / "a.parquet")
            files = list_files(self.where.table, directory, partition_by=(), schema=schema)
            row, text = state.ledger.ensure_pipeline(self.where.pipeline), encode_schema(schema)
            record = BatchRecord(rows=len(pairs), manifest=encode(files))
            results = [
                ObjectResult(object_id=ref.object_id, rows=len(ids), lines_quarantined=0)
                for ref, ids in zip(refs, ids_by_name.values(), strict=True)
            ]
            save(
                self.where.table,
                RecordedBatch(
                    pipeline=self.where.pipeline,
                    attempt_id=claim.attempt_id,
                    objects=[
                        RecordedObject(ref=ref, rows=result.rows, lines_quarantined=0)
                        for ref, result in zip(refs, results, strict=True)
                    ],
                    columns=text,
                    record=record,
                ),
            )
            state.ledger.commit(
                BatchOutcome(
                    pipeline=self.where.pipeline,
                    attempt_id=claim.attempt_id,
                    processed=results,
                    record=record,
                    schema_id=row.schema_id,
                    new_schema=None if row.table_schema == text else text,
                    on_change=on_change,
                    since_seq=claim.next_seq,
                )
            )

    def quarantine(self, name: str, *lines: bytes, rows: int = 0) -> str:
        """Write a source file with these bad lines, after ``rows`` good ones, and commit it; return the attempt."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        good = b'{"id": 1}\n' * rows
        path.write_bytes(good + b"".join(line + b"\n" for line in lines))
        ref = LocalStore(str(self.source)).describe(path)
        with self._state() as state:
            claim = self._claim_refs(state, [ref])
            file = QuarantineFile(self.where.quarantine, run_files(claim.attempt_id, 0), 0)
            offset = len(good)
            for line in lines:
                file.add(ref.uri, offset, line, "malformed", "no object")
                offset += len(line) + 1
            written = file.finish()
            assert written is not None
            self._commit(state, claim, [ref], rows=rows, lines=len(lines), files=[written])
        return claim.attempt_id

    def replay(self, name: str, attempt_id: str) -> None:
        """Commit the replay of an attempt's bad lines, all of which are good now."""
        ref = replay_of(LocalStore(str(self.source)).describe(self.source / name), attempt_id)
        with self._state() as state:
            self._commit(state, self._claim_refs(state, [ref]), [ref], rows=1, lines=0, files=())

    def fail_replay(self, name: str, attempt_id: str, failure: AttemptFailure, reason: str) -> None:
        """Commit the failure of the replay of an attempt's bad lines."""
        ref = replay_of(LocalStore(str(self.source)).describe(self.source / name), attempt_id)
        with self._state() as state:
            claim = self._claim_refs(state, [ref])
            failed = [FailedObject(object_id=ref.object_id, failure=failure, reason=reason)]
            pipeline, attempt = self.where.pipeline, claim.attempt_id
            state.ledger.commit(BatchOutcome(pipeline=pipeline, attempt_id=attempt, processed=(), failed=failed))

    def bodies(self) -> list[bytes]:
        """Return the messages in the queue, and leave them there."""
        with self._state() as state:
            found = state.broker.receive(self._queue, messages_max=100, lease_seconds=LEASE_SECONDS)
            state.broker.settle([(delivery, Release(delay_seconds=0.0, uncounted=True)) for delivery in found])
            return [delivery.message.body for delivery in found]

    def fail(
        self, name: str, failure: AttemptFailure, reason: str, *, version: str = "1", message_id: str = "m"
    ) -> None:
        with self._state() as state:
            claim = self._claim(state, [name], version=version, message_id=message_id)
            failed = [FailedObject(object_id=id, failure=failure, reason=reason) for id in claim.claimed]
            state.ledger.commit(
                BatchOutcome(
                    pipeline=self.where.pipeline,
                    attempt_id=claim.attempt_id,
                    processed=(),
                    failed=failed,
                    record=BatchRecord(rows=0),
                )
            )

    def leave_files(self, name: str) -> int:
        """Let an attempt write files and be abandoned; return their bytes."""
        with self._state() as state:
            claim = self._claim(state, [name])
            files = self._write(claim.attempt_id, 3)
            state.ledger.abandon(claim.attempt_id, reason="test", outcome="failed", uncounted=True, unattributed=False)
            return sum(file.size_bytes for file in files)

    def publish(self) -> None:
        with self._state() as state:
            Tables(self.where, state.ledger, bus=Bus()).publish()

    def send(self, *names: str) -> None:
        with self._state() as state:
            state.broker.send(self._queue, [Outgoing(body=announce(self.ref(name))) for name in names])

    def dead_letter(self, body: bytes, reason: str, *, exception: str | None = None) -> str:
        """Dead-letter a message at its first attempt; return the id it had."""
        with self._state() as state:
            state.broker.send(self._queue, [Outgoing(body=body)])
            (delivery,) = state.broker.receive(self._queue, messages_max=1, lease_seconds=LEASE_SECONDS)
            assert not state.broker.settle([(delivery, DeadLetter(reason=reason, exception=exception))])
            return delivery.message.id

    @contextmanager
    def worker(self) -> Iterator[str]:
        """Hold the data directory open as a living process."""
        with self._state() as state:
            yield state.worker

    @contextmanager
    def serving(self, *queues: str, drained: bool = False) -> Iterator[str]:
        """Record a living worker of the app that serves these queues, or is draining."""
        worker = "here-1"
        settings = load_settings(data_dir=str(self.where.state))
        with (
            closing(SqliteBroker(self.where.state / QUEUE_FILE, holder=worker)) as broker,
            closing(Ledger.open(self.where.state / LEDGER_FILE)) as ledger,
        ):
            stop = StopSignal()
            if drained:
                stop.pause()
            presence = Presence(settings=settings, broker=broker, worker=worker, stop=stop, clock=SystemClock())
            (keeper,) = presence.listeners
            keeper(WorkerStarted(queues=queues, concurrency=1))
            with presence.register(ledger=lambda: ledger, emit=lambda event: None, random=lambda: 0.5):
                yield worker

    @property
    def _queue(self) -> str:
        return self.queue or self.where.queue(self.source)

    @contextmanager
    def _state(self) -> Iterator[StateFolder]:
        with open_state(self.where.state) as state:
            state.ledger.ensure_pipeline(self.where.pipeline)
            yield state

    def _claim(
        self, state: StateFolder, names: Sequence[str], *, version: str = "1", message_id: str = "m"
    ) -> ObjectClaims:
        return self._claim_refs(state, [self.ref(name, version=version) for name in names], message_id=message_id)

    def _commit(
        self,
        state: StateFolder,
        claim: ObjectClaims,
        refs: Sequence[ObjectRef],
        *,
        rows: int,
        lines: int,
        files: Sequence[DataFile],
    ) -> None:
        processed = [ObjectResult(object_id=ref.object_id, rows=rows, lines_quarantined=lines) for ref in refs]
        by_id = {ref.object_id: ref for ref in refs}
        samples = {ref.object_id: [(0, "malformed: no object")] for ref in refs}
        state.ledger.commit(
            BatchOutcome(
                schema_id=state.ledger.ensure_pipeline(self.where.pipeline).schema_id,
                pipeline=self.where.pipeline,
                attempt_id=claim.attempt_id,
                processed=processed,
                record=BatchRecord(rows=rows, lines_quarantined=lines, quarantine_manifest=encode(files)),
                bad=bad_lines(by_id, processed, attempt_id=claim.attempt_id, place="_offset", samples=samples),
                replays=replays(by_id, processed),
            )
        )

    def _claim_refs(
        self,
        state: StateFolder,
        refs: Sequence[ObjectRef],
        *,
        message_id: str = "m",
        on_change: OnChange = OnChange.ADD,
    ) -> ObjectClaims:
        wanted = [
            Candidate(
                object_id=ref.object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                size_bytes=ref.size_bytes,
                uri=ref.uri,
                original_message=OriginalMessage(message_id=message_id, enqueued_at=0.0),
                etag=ref.etag,
            )
            for ref in refs
        ]
        claim = state.ledger.claim(
            self.where.pipeline,
            wanted,
            attempt_id=str(ULID()),
            worker=state.worker,
            lease_seconds=LEASE_SECONDS,
            on_change=on_change,
        )
        assert len(claim.claimed) == len(refs)
        return claim

    def _write(self, attempt_id: str, rows: int) -> tuple[DataFile, ...]:
        directory = f"data/{attempt_id}/r0"
        folder = self.table / directory
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(rows))}, schema=SCHEMA), folder / "a.parquet")
        return list_files(self.where.table, directory, partition_by=(), schema=SCHEMA)

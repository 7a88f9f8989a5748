"""Pipelines with objects in every state, made with the ledger's own calls, and a dashboard over them."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from starlette.testclient import TestClient

from penstock.app.scope import Scope
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import (
    AttemptFailure,
    BadLines,
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
from penstock.ledger.retractions import Retraction
from penstock.objects.reference import ObjectRef
from penstock.sinks.manifest import DataFile, encode

LEASE_SECONDS = 600.0
TRACEBACK = "Traceback (most recent call last):\n  File \"clean.py\", line 7, in clean\nKeyError: 'amount'"


def settings_in(folder: Path) -> Settings:
    return Settings(broker=f"sqlite:///{folder}/queue.db", ledger=f"sqlite:///{folder}/ledger.db", data_dir=str(folder))


@dataclass
class ObjectScene:
    """The ledger of an app with the pipelines `clicks` and `orders`."""

    folder: Path
    ledger: Ledger = field(init=False)
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.ledger = Ledger.open(self.settings.ledger)
        for name in self.scope.served:
            self.ledger.ensure_pipeline(name)
        broker = SqliteBroker(self.folder / "queue.db", holder="")
        for queue in self.scope.served.values():
            broker.stats(queue)
        broker.close()

    @property
    def settings(self) -> Settings:
        return settings_in(self.folder)

    @property
    def scope(self) -> Scope:
        served = {"clicks": "clicks-files", "orders": "orders-files"}
        return Scope(settings=self.settings, served=served, options=" --app shop:app")

    def ref(self, name: str, *, version: str = "1") -> ObjectRef:
        return ObjectRef(bucket="landing", key=name, size_bytes=2_048, etag=f"etag-{version}")

    def claim(
        self, *names: str, pipeline: str = "clicks", version: str = "1", on_change: OnChange = OnChange.REPLACE
    ) -> ObjectClaims:
        refs = [self.ref(name, version=version) for name in names]
        candidates = [
            Candidate(
                object_id=ref.object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                size_bytes=ref.size_bytes,
                uri=ref.uri,
                original_message=OriginalMessage(message_id=f"message of {name}", enqueued_at=1_700_000_000.0),
                etag=ref.etag,
            )
            for ref, name in zip(refs, names, strict=True)
        ]
        return self.ledger.claim(
            pipeline,
            candidates,
            attempt_id=f"01ATTEMPT{next(self.numbers):04}",
            worker="worker-1",
            lease_seconds=LEASE_SECONDS,
            on_change=on_change,
        )

    def process(
        self,
        *names: str,
        pipeline: str = "clicks",
        version: str = "1",
        record: BatchRecord | None = None,
        bad_lines: int = 0,
        rows: int = 20,  # of each object
        unknown: UnknownCounts | None = None,
    ) -> int:
        claim = self.claim(*names, pipeline=pipeline, version=version)
        refs = {self.ref(name, version=version).object_id: self.ref(name, version=version) for name in names}
        file = DataFile(path=f"data/{claim.attempt_id}/a.parquet", size_bytes=900, rows=len(names), modified_at=1.0)
        committed = self.ledger.commit(
            BatchOutcome(
                pipeline=pipeline,
                attempt_id=claim.attempt_id,
                processed=[
                    ObjectResult(object_id=object_id, rows=rows, lines_quarantined=bad_lines, unknown=unknown)
                    for object_id in claim.claimed
                ],
                record=record
                or BatchRecord(
                    rows=rows * len(names),
                    lines_quarantined=bad_lines,
                    bytes=2_048 * len(names),
                    manifest=encode([file]),
                    stage_seconds={"read and write": 3.0, "list": 1.0},
                    spark_ui_url="http://spark.test:4040/jobs/",
                    transform="shop:clean",
                ),
                bad=[_bad_lines(refs[object_id], bad_lines, rows=rows) for object_id in claim.claimed]
                if bad_lines
                else (),
                on_change=OnChange.REPLACE,
                since_seq=claim.next_seq,
            )
        )
        assert committed is not None
        return committed.seq

    def fail(
        self,
        *names: str,
        failure: AttemptFailure = AttemptFailure.DEAD,
        reason: str = "it is truncated",
        traceback: str | None = TRACEBACK,
        pipeline: str = "clicks",
    ) -> None:
        claim = self.claim(*names, pipeline=pipeline)
        failed = [
            FailedObject(object_id=object_id, failure=failure, reason=reason, traceback=traceback)
            for object_id in claim.claimed
        ]
        self.ledger.commit(BatchOutcome(pipeline=pipeline, attempt_id=claim.attempt_id, processed=(), failed=failed))

    def retract(self, *names: str) -> None:
        self.ledger.retractions.retract(
            Retraction(
                pipeline="clicks",
                attempt_id=f"01ATTEMPT{next(self.numbers):04}",
                worker="worker-1",
                addresses=sorted(self.ref(name).uri for name in names),
                reason="retracted by ann: sent twice",
            )
        )

    def reopen(self, *names: str) -> None:
        self.ledger.reopenings.reopen("clicks", [self.ref(name).uri for name in names])

    def reconciled(self, *, missing: int, sent: int, pipeline: str = "clicks") -> None:
        self.ledger.record_reconciliation(
            ReconcileResult(
                pipeline=pipeline,
                as_of=1_700_000_000.0,
                source="s3://landing/",
                listed=1_234,
                missing=missing,
                sent=sent,
                seconds=12.0,
            )
        )

    def close(self) -> None:
        self.ledger.close()


def _bad_lines(ref: ObjectRef, lines: int, *, rows: int) -> BadLines:
    return BadLines(
        object_id=ref.object_id,
        replay_id=bytes(16),
        bucket=ref.bucket,
        key=ref.key_bytes,
        uri=ref.uri,
        size_bytes=ref.size_bytes,
        version_id=None,
        etag=ref.etag,
        place="_offset",
        rows=rows,
        lines_quarantined=lines,
        reason="no JSON",
    )


def refresh(client: TestClient) -> None:
    """Make the next page show the present counts."""
    client.app.state.context.sampler.refresh()  # type: ignore[attr-defined]

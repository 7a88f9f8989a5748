"""A restored ledger and a table whose batches have only the appended lines of some objects.

Version n of an object has n lines, so each begins with the one before it. A version that is ``open`` ends within a
line, so that none is appended to it.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.repair.scene import LEASE_SECONDS, PIPELINE, Scene, table_rows
from ulid import ULID

from penstock.ledger.records import (
    BatchOutcome,
    BatchRecord,
    Beginning,
    Candidate,
    Committed,
    ObjectResult,
    OnChange,
    OriginalMessage,
)
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, load, save
from penstock.sinks.manifest import encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema

SCHEMA = pa.schema([("_object", pa.string()), ("line", pa.int64())])


def ref(key: str, number: int) -> ObjectRef:
    return ObjectRef(bucket="landing", key=key, size_bytes=number, etag=f"etag-{number}")


def process(scene: Scene, key: str, number: int) -> Committed:
    """Claim, run and commit one version of an object in a pipeline that reads what was appended."""
    one = ref(key, number)
    candidate = Candidate(
        object_id=one.object_id,
        bucket=one.bucket,
        key=one.key_bytes,
        size_bytes=one.size_bytes,
        uri=one.uri,
        original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
        etag=one.etag,
    )
    claim = scene.ledger.claim(
        PIPELINE,
        [candidate],
        attempt_id=str(ULID()),
        worker="w",
        lease_seconds=LEASE_SECONDS,
        on_change=OnChange.TAIL,
    )
    assert claim.claimed
    known = scene.ledger.beginnings(PIPELINE, claim.attempt_id).get(one.object_id)
    if known is not None and known.beginning.size_bytes >= number:
        known = None
    first = 0 if known is None else known.beginning.size_bytes
    rows = [{"_object": one.uri, "line": line} for line in range(first, number)]
    table, folder = scene.table_paths.table, f"data/{claim.attempt_id}/r0"
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), buffer)
    table.write(f"{folder}/part-0.parquet", buffer.getvalue().to_pybytes())
    record = BatchRecord(
        rows=len(rows), bytes=1, manifest=encode(list_files(table, folder, partition_by=(), schema=SCHEMA))
    )
    done = ObjectResult(
        object_id=one.object_id,
        rows=len(rows),
        lines_quarantined=0,
        beginning=Beginning(size_bytes=number, digest="d", reading="r"),
        appended_to=None if known is None else known.attempt_id,
    )
    saved = RecordedBatch(
        pipeline=PIPELINE,
        attempt_id=claim.attempt_id,
        objects=[
            RecordedObject(
                ref=one, rows=len(rows), lines_quarantined=0, beginning=done.beginning, appended_to=done.appended_to
            )
        ],
        columns=encode_schema(SCHEMA),
        record=record,
        replaces_versions=True,
    )
    save(table, saved)
    assert load(table, claim.attempt_id) == saved
    row = scene.ledger.ensure_pipeline(PIPELINE)
    committed = scene.ledger.commit(
        BatchOutcome(
            pipeline=PIPELINE,
            attempt_id=claim.attempt_id,
            processed=[done],
            record=record,
            schema_id=row.schema_id,
            new_schema=None if row.table_schema else encode_schema(SCHEMA),
            on_change=OnChange.TAIL,
            since_seq=claim.next_seq,
        )
    )
    assert committed is not None
    return committed


def published(scene: Scene, key: str, number: int) -> Committed:
    committed = process(scene, key, number)
    scene.tables.publish()
    return committed


def lines(scene: Scene, key: str) -> Sequence[int]:
    rows = table_rows(scene.table_paths.table, ["_object", "line"])
    return sorted(row["line"] for row in rows if row["_object"] == ref(key, 1).uri)


def test_imported_batches_keep_the_beginnings_they_were_appended_to(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    published(scene, "a", 2)
    backup = scene.dump()
    assert published(scene, "a", 3) == Committed(seq=2, grown_objects=1, appended_rows=1)
    assert published(scene, "a", 5) == Committed(seq=3, grown_objects=1, appended_rows=2)
    published(scene, "b", 1)
    scene.restore(backup)

    scene.repair()

    assert [batch.record.replaces for batch in scene.ledger.batches_after(PIPELINE, 0)] == [""] * 4
    assert [batch.grown_objects for batch in scene.ledger.batches_after(PIPELINE, 0)] == [0, 1, 1, 0]
    assert lines(scene, "a") == [0, 1, 2, 3, 4]
    assert published(scene, "a", 6) == Committed(seq=5, grown_objects=1, appended_rows=1)
    assert published(scene, "b", 2) == Committed(seq=6, grown_objects=1, appended_rows=1)
    assert lines(scene, "a") == [0, 1, 2, 3, 4, 5]
    assert published(scene, "a", 1) == Committed(seq=7, replaced_objects=1, replaced_rows=6)
    assert (lines(scene, "a"), lines(scene, "b")) == ([0], [0, 1])


def test_rows_appended_after_the_rollback_to_an_older_beginning_are_read_again(sqlite_scene: Scene) -> None:
    """The table has more of the object by then, and would have some lines twice."""
    scene = sqlite_scene
    published(scene, "a", 2)
    backup = scene.dump()
    published(scene, "a", 3)
    scene.restore(backup)
    assert process(scene, "a", 4) == Committed(seq=2, grown_objects=1, appended_rows=2)

    findings = scene.repair()

    assert findings.repair is not None
    assert findings.repair.withdrawn == [2]
    assert lines(scene, "a") == [0, 1, 2]
    assert published(scene, "a", 4) == Committed(seq=3, grown_objects=1, appended_rows=1)
    assert lines(scene, "a") == [0, 1, 2, 3]

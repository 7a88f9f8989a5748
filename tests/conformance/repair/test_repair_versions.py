"""A restored ledger and a table whose batches replaced versions: a repair computes again what each of them replaced."""

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.repair.scene import LEASE_SECONDS, PIPELINE, Scene, table_rows
from ulid import ULID

from penstock.errors import PublishHalted
from penstock.ledger.records import (
    BatchOutcome,
    BatchRecord,
    Candidate,
    Committed,
    ObjectResult,
    ObjectState,
    OnChange,
    OriginalMessage,
)
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, save
from penstock.sinks.manifest import encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema

SCHEMA = pa.schema([("_object", pa.string()), ("version", pa.int64()), ("line", pa.int64())])
LINES = 3  # of each version

Version = tuple[str, int]


def ref(version: Version) -> ObjectRef:
    return ObjectRef(bucket="landing", key=version[0], size_bytes=100, etag=f"etag-{version[1]}")


def process(scene: Scene, *versions: Version) -> Committed:
    """Claim, run and commit a batch of a pipeline that replaces rows."""
    claim = scene.ledger.claim(
        PIPELINE,
        [
            Candidate(
                object_id=one.object_id,
                bucket=one.bucket,
                key=one.key_bytes,
                size_bytes=one.size_bytes,
                uri=one.uri,
                original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
                etag=one.etag,
            )
            for one in map(ref, versions)
        ],
        attempt_id=str(ULID()),
        worker="w",
        lease_seconds=LEASE_SECONDS,
        on_change=OnChange.REPLACE,
    )
    assert len(claim.claimed) == len(versions)
    table, folder = scene.table_paths.table, f"data/{claim.attempt_id}/r0"
    rows = [
        {"_object": ref(version).uri, "version": version[1], "line": line}
        for version in versions
        for line in range(LINES)
    ]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), buffer)
    table.write(f"{folder}/part-0.parquet", buffer.getvalue().to_pybytes())
    files = list_files(table, folder, partition_by=(), schema=SCHEMA)
    record = BatchRecord(rows=len(rows), bytes=100, manifest=encode(files))
    known = scene.ledger.ensure_pipeline(PIPELINE)
    saved = RecordedBatch(
        pipeline=PIPELINE,
        attempt_id=claim.attempt_id,
        objects=[RecordedObject(ref=ref(version), rows=LINES, lines_quarantined=0) for version in versions],
        columns=encode_schema(SCHEMA),
        record=record,
        replaces_versions=True,
    )
    save(table, saved)
    done = [ObjectResult(object_id=ref(version).object_id, rows=LINES, lines_quarantined=0) for version in versions]
    committed = scene.ledger.commit(
        BatchOutcome(
            pipeline=PIPELINE,
            attempt_id=claim.attempt_id,
            processed=done,
            record=record,
            schema_id=known.schema_id,
            new_schema=None if known.table_schema else encode_schema(SCHEMA),
            on_change=OnChange.REPLACE,
            since_seq=claim.next_seq,
        )
    )
    assert committed is not None
    return committed


def published(scene: Scene, *versions: Version) -> None:
    process(scene, *versions)
    scene.tables.publish()


def shown(scene: Scene) -> Sequence[Version]:
    """Return the versions that the table shows; fail if it lacks a line of one or has one twice."""
    rows = table_rows(scene.table_paths.table, ["_object", "version", "line"])
    lines = sorted((row["_object"], row["version"], row["line"]) for row in rows)
    found = sorted({(address, version) for address, version, _ in lines})
    assert lines == [(*version, line) for version in found for line in range(LINES)]
    return [(address.removeprefix("s3://landing/"), version) for address, version in found]


def replaced(scene: Scene) -> Sequence[str]:
    return [batch.record.replaces for batch in scene.ledger.batches_after(PIPELINE, 0)]


def test_imported_batches_replace_the_versions_before_them(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    published(scene, ("a", 1), ("b", 1))
    backup = scene.dump()
    for versions in ([("a", 2), ("c", 1)], [("b", 2)], [("a", 1), ("c", 2)], [("d", 1)]):
        published(scene, *versions)
    before = replaced(scene)
    assert before == ["", '["s3://landing/a"]', '["s3://landing/b"]', '["s3://landing/a","s3://landing/c"]', ""]
    scene.restore(backup)
    with pytest.raises(PublishHalted):
        scene.tables.publish()

    scene.repair()

    assert replaced(scene) == before
    assert shown(scene) == [("a", 1), ("b", 2), ("c", 2), ("d", 1)]
    states = scene.ledger.states(PIPELINE, [ref(("a", number)).object_id for number in (1, 2)])
    assert set(states.values()) == {ObjectState.PROCESSED}
    known = scene.ledger.known_among(
        PIPELINE, [ref(("a", number)).object_id for number in (1, 2)], seen_at=math.inf, on_change=OnChange.REPLACE
    )
    assert known == {ref(("a", 1)).object_id}, "the version that the table shows"
    assert process(scene, ("a", 3), ("b", 3)) == Committed(seq=6, replaced_objects=2, replaced_rows=2 * LINES)
    scene.tables.publish()
    assert shown(scene) == [("a", 3), ("b", 3), ("c", 2), ("d", 1)]


def test_batches_committed_after_the_rollback_replace_versions_of_imported_ones(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    published(scene, ("a", 1))
    backup = scene.dump()
    published(scene, ("a", 2), ("b", 1))
    scene.restore(backup)
    process(scene, ("a", 3))
    process(scene, ("b", 2))  # the ledger does not know the first version
    assert replaced(scene) == ["", '["s3://landing/a"]', ""]

    scene.repair()

    assert replaced(scene) == ["", '["s3://landing/a"]', '["s3://landing/a"]', '["s3://landing/b"]']
    assert shown(scene) == [("a", 3), ("b", 2)]


def test_a_version_processed_again_after_the_rollback_is_read_once_more(sqlite_scene: Scene) -> None:
    """Its own batch is withdrawn, and the imported one came before the other version's.

    So the table shows that one, and a listing finds that the object changed back.
    """
    scene = sqlite_scene
    published(scene, ("a", 1))
    backup = scene.dump()
    published(scene, ("a", 2))
    published(scene, ("a", 3))
    scene.restore(backup)
    process(scene, ("a", 2))

    findings = scene.repair()

    assert findings.repair is not None
    assert findings.repair.withdrawn == [2]
    assert shown(scene) == [("a", 3)]
    ids = [ref(("a", number)).object_id for number in (1, 2, 3)]
    known = scene.ledger.known_among(PIPELINE, ids, seen_at=math.inf, on_change=OnChange.REPLACE)
    assert known == {ids[2]}
    published(scene, ("a", 2))
    assert shown(scene) == [("a", 2)]

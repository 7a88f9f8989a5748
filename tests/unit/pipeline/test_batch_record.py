"""The record of a batch that is stored beside its table."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import TableError
from penstock.ledger.records import BatchRecord, OnChange
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, forget, load, recorded, save
from penstock.pipeline.maintenance.repair import imported_batch
from penstock.pipeline.maintenance.table_history import TableTail
from penstock.storage.local import LocalFiles

RECORD = RecordedBatch(
    pipeline="clicks",
    attempt_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
    objects=[
        RecordedObject(
            ref=ObjectRef(bucket="file", key="/in/not-utf8-\udcff.jsonl", size_bytes=7, etag="1-7"),
            rows=2,
            lines_quarantined=1,
        ),
        RecordedObject(
            ref=ObjectRef(bucket="b", key="名前 %41", size_bytes=0, version_id="v", sequencer="0A"),
            rows=0,
            lines_quarantined=0,
        ),
    ],
    columns='{"type":"struct","fields":[]}',
    record=BatchRecord(
        rows=2,
        lines_quarantined=1,
        bytes=7,
        manifest="[]",
        quarantine_manifest="",
        stage_seconds={"read and write": 1.5},
        spark_ui_url="http://history/1",
    ),
)
STORED = (
    b'{"version":1,"pipeline":"clicks","attempt_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","rows":2,"lines_quarantined":1,'
    b'"bytes":7,"manifest":"[]","quarantine_manifest":"","columns":"{\\"type\\":\\"struct\\",\\"fields\\":[]}",'
    b'"stage_seconds":{"read and write":1.5},"spark_ui_url":"http://history/1","objects":[{"bucket":"file",'
    b'"key":"/in/not-utf8-%FF.jsonl","size_bytes":7,"etag":"1-7","rows":2,"lines_quarantined":1},{"bucket":"b",'
    b'"key":"%E5%90%8D%E5%89%8D%20%2541","size_bytes":0,"version_id":"v","sequencer":"0A","rows":0,'
    b'"lines_quarantined":0}]}'
)


@pytest.fixture
def table(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "clicks")


def test_a_saved_record_is_loaded_with_every_object_id(table: LocalFiles) -> None:
    save(table, RECORD)
    found = load(table, RECORD.attempt_id)
    assert found == RECORD
    assert [one.ref.object_id for one in found.objects] == [one.ref.object_id for one in RECORD.objects]


def test_the_stored_form_never_changes(table: LocalFiles) -> None:
    save(table, RECORD)
    path = f"_penstock/batches/{RECORD.attempt_id}.json.gz"
    assert gzip.decompress(table.read(path)) == STORED


@pytest.mark.parametrize("transform", ["", "cleaning:clean"])
def test_the_name_of_the_transform_is_kept_for_a_repair(table: LocalFiles, transform: str) -> None:
    known = replace(RECORD, record=replace(RECORD.record, transform=transform))
    save(table, known)
    assert load(table, RECORD.attempt_id) == known


@pytest.mark.parametrize("name", ["pipeline", "columns", "rows", "manifest"])
def test_a_record_without_a_required_field_cannot_be_read(table: LocalFiles, name: str) -> None:
    document = json.loads(STORED)
    del document[name]
    table.write(f"_penstock/batches/{RECORD.attempt_id}.json.gz", gzip.compress(json.dumps(document).encode()))
    with pytest.raises(TableError, match=name):
        load(table, RECORD.attempt_id)


def test_fields_of_a_newer_version_are_ignored(table: LocalFiles) -> None:
    document = json.loads(STORED)
    document["files_of_a_newer_version"] = 3
    document["objects"][0]["storage_class"] = "GLACIER"
    table.write(f"_penstock/batches/{RECORD.attempt_id}.json.gz", gzip.compress(json.dumps(document).encode()))
    assert load(table, RECORD.attempt_id) == RECORD


def test_a_record_of_a_batch_that_replaces_rows_is_refused_by_versions_that_would_ignore_it(table: LocalFiles) -> None:
    replacing = replace(RECORD, objects=[], record=replace(RECORD.record, replaces='["s3://b/a"]'))
    save(table, replacing)
    assert load(table, RECORD.attempt_id) == replacing
    document = json.loads(gzip.decompress(table.read(f"_penstock/batches/{RECORD.attempt_id}.json.gz")))
    assert (document["version"], document["replaces"]) == (2, '["s3://b/a"]')


def test_a_record_of_a_merged_batch_is_refused_by_versions_that_would_add_its_rows(table: LocalFiles) -> None:
    merged = replace(RECORD, objects=[], record=replace(RECORD.record, merge='{"key":["id"]}', tombstones="[]"))
    save(table, merged)
    assert load(table, RECORD.attempt_id) == merged
    document = json.loads(gzip.decompress(table.read(f"_penstock/batches/{RECORD.attempt_id}.json.gz")))
    assert (document["version"], document["merge"], document["tombstones"]) == (3, '{"key":["id"]}', "[]")
    save(table, RECORD)
    document = json.loads(gzip.decompress(table.read(f"_penstock/batches/{RECORD.attempt_id}.json.gz")))
    assert (document["version"], "merge" in document, "tombstones" in document) == (1, False, False)


def test_records_are_listed_oldest_first_and_deleted(table: LocalFiles) -> None:
    assert recorded(table) == []
    older = "01ARZ3NDEKTSV4RRFFQ69G5FAA"
    save(table, RECORD)
    save(table, replace(RECORD, attempt_id=older))
    assert recorded(table) == [older, RECORD.attempt_id]
    forget(table, [RECORD.attempt_id, "never"])
    assert recorded(table) == [older]
    assert load(table, RECORD.attempt_id) is None


@pytest.mark.parametrize("change", [lambda data: data[:20], lambda _: b"no gzip", lambda _: b""])
def test_a_damaged_record_is_refused(table: LocalFiles, change: object) -> None:
    save(table, RECORD)
    path = f"_penstock/batches/{RECORD.attempt_id}.json.gz"
    table.write(path, change(table.read(path)))  # type: ignore[operator]  # each is a function
    with pytest.raises(TableError, match=r"The record .*json\.gz of a batch cannot be read"):
        load(table, RECORD.attempt_id)


def test_a_record_of_more_objects_than_a_slice_is_one_document(table: LocalFiles) -> None:
    refs = [ObjectRef(bucket="b", key=str(number), size_bytes=number, etag="e") for number in range(2_001)]
    many = replace(RECORD, objects=[RecordedObject(ref=ref, rows=1, lines_quarantined=0) for ref in refs])
    save(table, many)
    assert load(table, RECORD.attempt_id) == many
    save(table, none := replace(RECORD, objects=[]))
    assert load(table, RECORD.attempt_id) == none


def test_a_record_has_the_kind_of_places_if_it_is_not_the_usual_one(table: LocalFiles) -> None:
    save(table, by_row := replace(RECORD, place="_row"))
    assert load(table, RECORD.attempt_id) == by_row


def test_a_record_says_that_its_batch_replaces_versions_and_older_releases_refuse_it(table: LocalFiles) -> None:
    replacing = replace(RECORD, replaces_versions=True)
    save(table, replacing)
    assert load(table, RECORD.attempt_id) == replacing
    document = json.loads(gzip.decompress(table.read(f"_penstock/batches/{RECORD.attempt_id}.json.gz")))
    assert document["version"] == 2


@pytest.mark.parametrize("replaces", [True, False])
def test_a_repair_imports_the_rule_for_versions_from_the_record(replaces: bool) -> None:
    tail = TableTail(uri="clicks", table=None, agrees_at=0, shown=())
    saved = replace(RECORD, replaces_versions=replaces)
    imported = imported_batch(1, RECORD.attempt_id, tails=(tail, tail), saved=saved)
    assert imported.on_change is (OnChange.REPLACE if replaces else OnChange.ADD)

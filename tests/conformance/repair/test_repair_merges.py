"""A lost ledger and a table whose rows were merged by key: a repair finds the merge and the deletes again."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.conformance.publishing.merge_maker import MERGE, SCHEMA, Change, MergeMaker

from penstock.errors import TableError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import RECORDS_FOLDER, RecordedBatch, RecordedObject, save
from penstock.pipeline.maintenance.repair import Repairer
from penstock.sinks.registry import open_sink
from penstock.sinks.schema import encode as encode_schema
from penstock.storage.local import LocalFiles


@pytest.fixture(params=["delta", "iceberg"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MergeMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger, scheme=request.param)
    ledger.close()


def published(table: MergeMaker, *changes: Change) -> None:
    """Commit a batch with its record, and publish it."""
    seq = table.changes(changes)
    batch = table.ledger.batch(table.pipeline, seq)
    assert batch is not None
    recorded = RecordedBatch(
        pipeline=table.pipeline,
        attempt_id=batch.attempt_id,
        objects=[
            RecordedObject(
                ref=ObjectRef(bucket="b", key=str(seq), size_bytes=1), rows=len(changes), lines_quarantined=0
            )
        ],
        columns=encode_schema(SCHEMA),
        record=batch.record,
    )
    save(LocalFiles(table.root), recorded)
    table.publish()


def repaired(table: MergeMaker, ledger: Ledger) -> MergeMaker:
    """Import the table into a ledger, and return the table with it."""
    location = LocalFiles(table.root)
    rows = open_sink(location, scheme=table.scheme, pipeline=table.pipeline)
    quarantine = open_sink(location.beside("t_quarantine"), scheme=table.scheme, pipeline=table.pipeline)
    found = Repairer(ledger, pipeline=table.pipeline, rows=rows, quarantine=quarantine, adopt=True)
    found.apply(found.find(), Bus())
    return MergeMaker(root=table.root, ledger=ledger, scheme=table.scheme)


def ids(rows: Sequence[tuple[object, ...]]) -> list[object]:
    return [row[0] for row in rows]


def test_deletes_and_the_merge_are_known_again(table: MergeMaker, tmp_path: Path) -> None:
    published(table, Change(id=5, at=7, is_delete=True))  # before there is a row
    published(table, Change(id=1, at=1), Change(id=2, at=1))
    published(table, Change(id=1, at=0), Change(id=3, at=1))  # partly older: its file is written again
    published(table, Change(id=2, at=3, is_delete=True))  # without a file of its own
    published(table, Change(id=1, at=0))  # changes nothing
    other = Ledger.open(tmp_path / "other.db")
    again = repaired(table, other)
    batches = list(other.batches_after(table.pipeline, 0))
    assert [batch.record.merge for batch in batches] == [MERGE.text()] * 5
    assert other.ensure_pipeline(table.pipeline).merge == MERGE.text()
    again.changes([Change(id=2, at=2), Change(id=5, at=6), Change(id=3, at=2, value=9.0)])
    again.publish()
    assert ids(again.rows()) == [1, 3]
    other.close()


@pytest.mark.parametrize("known_by", ["records", "deletes", "the ledger"])
def test_a_batch_without_a_record_is_not_imported_since_its_deletes_would_be_forgotten(
    table: MergeMaker, tmp_path: Path, known_by: str
) -> None:
    records = table.root / RECORDS_FOLDER
    other = Ledger.open(tmp_path / "other.db")
    published(table, Change(id=1, at=1))
    if known_by == "the ledger":
        repaired(table, other)
    kept = set(records.iterdir()) if known_by != "deletes" else set()
    published(table, Change(id=1, at=2), Change(id=2, at=9, is_delete=known_by == "deletes"))
    lost = set(records.iterdir()) - kept
    for path in lost:
        path.rename(tmp_path / path.name)
    with pytest.raises(TableError, match=r"are merged by key, and .* has no record of .*Bring back the record"):
        repaired(table, other)
    for path in lost:
        (tmp_path / path.name).rename(path)
    again = repaired(table, other)
    again.changes([Change(id=2, at=8)])
    again.publish()
    assert [row[:2] for row in again.rows()] == [(1, 2)] if known_by == "deletes" else [(1, 2), (2, 9)]
    other.close()


def test_a_cleaned_up_log_in_which_a_batch_of_deletes_is_lost_is_refused(tmp_path: Path) -> None:
    with closing(Ledger.open(tmp_path / "ledger.db")) as ledger:
        table = MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger, scheme="delta")
        published(table, Change(id=1, at=1))
        published(table, Change(id=2, at=9, is_delete=True))
        published(table, Change(id=3, at=1))
    DeltaTable(table.root).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(table.root).create_checkpoint()
    DeltaTable(table.root).cleanup_metadata()
    says = r"are merged by key, and its log was cleaned up: .*Bring back a newer"
    with closing(Ledger.open(tmp_path / "other.db")) as other, pytest.raises(TableError, match=says):
        repaired(table, other)

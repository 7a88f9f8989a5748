"""Statements of another writer on a pipeline's table: publishing goes on, or stops and says what to do.

The statements are delta-spark's, imitated by `SparkWriter`. Each has one outcome, as docs/run/other-writers.md says.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.publishing.shared_table import SharedTable
from tests.services.spark_writer import ENGINE, PendingCommit, SparkWriter

from penstock.errors import PublishHalted, TableError
from penstock.events import CommitOverwritten, ForeignCommit
from penstock.ledger import Ledger
from penstock.pipeline.maintenance.table_history import shortfall
from penstock.storage.local import LocalFiles

Statement = Callable[[SparkWriter], PendingCommit]
COLUMN = {"name": "score", "type": "double", "nullable": True, "metadata": {}}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SharedTable]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    table = SharedTable(files=LocalFiles(tmp_path.resolve() / "clicks"), ledger=ledger)
    for number in (1, 2, 3):
        table.published(number)
    yield table
    ledger.close()


def protocol(*features: str, concerns_readers: bool = True) -> Mapping[str, Any]:
    if not concerns_readers:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [*features]}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [*features],
        "writerFeatures": [*features],
    }


def optimize(spark: SparkWriter) -> PendingCommit:
    commit = spark.optimize()
    assert commit is not None
    return commit


GOES_ON: Mapping[str, tuple[Statement, list[int]]] = {
    "an append": (lambda spark: spark.append({"id": [100], "word": ["x"]}), [1, 2, 3, 100]),
    "OPTIMIZE": (optimize, [1, 2, 3]),
    "DELETE": (lambda spark: spark.delete({2}), [1, 3]),
    "UPDATE": (lambda spark: spark.update({2}), [1, 2, 3]),
    "MERGE": (lambda spark: spark.update({1, 2}, operation="MERGE"), [1, 2, 3]),
    "RESTORE": (lambda spark: spark.restore(2), [1, 2]),
    "an overwrite": (lambda spark: spark.overwrite({"id": [100], "word": ["x"]}), [100]),
    "a replaced table": (lambda spark: spark.replace_table(spark.columns(), {"id": [100], "word": ["x"]}), [100]),
    "an added column": (
        lambda spark: spark.set_metadata("ADD COLUMNS", columns=[*spark.columns(), COLUMN]),
        [1, 2, 3],
    ),
    "a property": (
        lambda spark: spark.set_metadata("SET TBLPROPERTIES", configuration={"delta.appendOnly": "true"}),
        [1, 2, 3],
    ),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_publishing_goes_on_after(table: SharedTable, name: str) -> None:
    statement, rows = GOES_ON[name]
    version = statement(table.spark).put()
    table.published(4)
    table.published(5)
    assert table.ids() == table.ids_of_log() == sorted([*rows, 4, 5])
    foreign = [event for event in table.events if isinstance(event, ForeignCommit)]
    assert [(event.version, event.engine) for event in foreign] == [(version, ENGINE)]
    assert not any(isinstance(event, CommitOverwritten) for event in table.events)


def test_publishing_goes_on_after_a_vacuum_and_files_of_the_table_are_kept(table: SharedTable) -> None:
    optimize(table.spark).put()
    for commit in table.spark.vacuum():
        commit.put()
    assert len(table.spark.vacuum_files()) == 3
    table.published(4)
    table.publish()
    table.assert_complete()


def test_a_vacuum_that_deleted_files_before_they_were_published_halts_with_the_file(table: SharedTable) -> None:
    table.batch(4)
    table.spark.vacuum_files()
    with pytest.raises(PublishHalted, match=r"data/.*does not exist.*restore it"):
        table.publish()


def test_publishing_goes_on_after_the_log_was_cleaned_up(table: SharedTable) -> None:
    optimize(table.spark).put()
    table.checkpoint(4)
    table.clean_up_log(before=4)
    table.published(4)
    table.publish()
    assert table.ids() == [1, 2, 3, 4]


def typed(spark: SparkWriter, type_: str) -> list[dict[str, Any]]:
    first, *others = spark.columns()
    return [{**first, "type": type_}, *others]


def mapped(spark: SparkWriter) -> list[dict[str, Any]]:
    return [
        {**one, "metadata": {"delta.columnMapping.id": index, "delta.columnMapping.physicalName": one["name"]}}
        for index, one in enumerate(spark.columns(), 1)
    ]


def enabled(property_: str, value: str, *features: str, concerns_readers: bool = True) -> Statement:
    """Return the statement that sets a property, and thereby enables features of the table."""
    return lambda spark: spark.set_metadata(
        "SET TBLPROPERTIES",
        configuration={property_: value},
        protocol=protocol(*features, concerns_readers=concerns_readers),
    )


def with_column_mapping(operation: str, columns: slice = slice(None)) -> Statement:
    """Return a statement that enables column mapping, and leaves these columns."""
    return lambda spark: spark.set_metadata(
        operation,
        columns=mapped(spark)[columns],
        configuration={"delta.columnMapping.mode": "name"},
        protocol=protocol("columnMapping"),
    )


STOPS: Mapping[str, tuple[Statement, str]] = {
    "deletion vectors": (enabled("delta.enableDeletionVectors", "true", "deletionVectors"), "deletionVectors"),
    "row tracking": (
        enabled("delta.enableRowTracking", "true", "rowTracking", "domainMetadata", concerns_readers=False),
        "domainMetadata",
    ),
    "column mapping": (with_column_mapping("SET TBLPROPERTIES"), "columnMapping"),
    "v2 checkpoints": (enabled("delta.checkpointPolicy", "v2", "v2Checkpoint"), "v2Checkpoint"),
    "in-commit timestamps": (
        enabled("delta.enableInCommitTimestamps", "true", "inCommitTimestamp", concerns_readers=False),
        "inCommitTimestamp",
    ),
    "a widened type": (
        lambda spark: spark.set_metadata(
            "CHANGE COLUMN", columns=typed(spark, "double"), protocol=protocol("typeWidening")
        ),
        "typeWidening",
    ),
    "a changed type": (
        lambda spark: spark.replace_table(typed(spark, "string"), {"id": ["1"], "word": ["x"]}),
        "id",
    ),
    "a dropped column": (with_column_mapping("DROP COLUMNS", slice(1)), "columnMapping"),
    "a constraint": (
        lambda spark: spark.set_metadata("ADD CONSTRAINT", configuration={"delta.constraints.positive": "id > 0"}),
        "CHECK constraint positive",
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_publishing_stops_and_names_the_writer_after(table: SharedTable, name: str) -> None:
    statement, words = STOPS[name]
    commit = statement(table.spark)
    operation = json.loads(commit.data.splitlines()[0])["commitInfo"]["operation"]
    version = commit.put()
    table.batch(4)
    with pytest.raises(TableError) as stopped:
        table.publish()
    message = str(stopped.value)
    assert words in message
    assert message.endswith(f"The table was last changed by its version {version} ({operation} by {ENGINE}).")
    assert table.newest == version


def test_publishing_continues_where_it_stopped_once_the_feature_is_removed(table: SharedTable) -> None:
    statement, _ = STOPS["deletion vectors"]
    before = table.spark.metadata()
    statement(table.spark).put()
    table.batch(4)
    with pytest.raises(TableError):
        table.publish()
    table.spark.set_metadata(
        "DROP FEATURE",
        columns=json.loads(before["schemaString"])["fields"],
        protocol={"minReaderVersion": 1, "minWriterVersion": 2},
    ).put()
    table.publish()
    assert table.ids() == [1, 2, 3, 4]


def test_a_delete_with_deletion_vectors_in_a_table_without_the_feature_loses_no_batch(table: SharedTable) -> None:
    """Only a defective writer does that; the table's other files stay readable."""
    statement, _ = STOPS["deletion vectors"]
    statement(table.spark).put()
    table.spark.delete_with_vectors({2}).put()
    table.batch(4)
    with pytest.raises(TableError, match="deletionVectors"):
        table.publish()


def test_rows_removed_by_a_restore_are_reported_and_not_published_again(table: SharedTable) -> None:
    table.spark.restore(2).put()
    table.publish()
    assert table.ids() == [1, 2]
    short = shortfall(
        table.ledger,
        table.sink,
        pipeline="clicks",
        written=lambda seq: table.ledger.written_to("clicks", seq)[0],
        manifest_of=lambda batch: batch.record.manifest,
    )
    assert short is not None
    assert "RESTORE, by another writer" in short.text
    assert "batch 3" in short.text


def test_a_change_hidden_by_a_checkpoint_halts_until_it_is_made_again(table: SharedTable) -> None:
    metadata = {**table.spark.metadata(), "configuration": {"delta.appendOnly": "true"}}
    late = table.spark.replace_table(table.spark.columns(), {"id": [100], "word": ["x"]})
    table.published(4)
    table.checkpoint(4)
    late.put()
    table.batch(5)
    with pytest.raises(PublishHalted, match=r"Version 4 .* Make the change of that version once more"):
        table.publish()
    table.spark.set_metadata("SET TBLPROPERTIES", configuration=metadata["configuration"]).put()
    table.publish()
    assert table.ids() == table.ids_of_log() == [4, 5, 100]

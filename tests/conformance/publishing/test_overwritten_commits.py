"""Commits that another writer overwrites: each row of a batch stays in the table once, whatever was replaced."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.publishing.shared_table import SCHEMA, SharedTable
from tests.services.spark_writer import ENGINE, PendingCommit

from penstock.events import CommitOverwritten, CompactionUndone, ForeignCommit
from penstock.ledger import Ledger
from penstock.messaging.steps import Step
from penstock.pipeline import overwritten
from penstock.storage.local import LocalFiles


class Died(BaseException):
    """Simulates the death of the process."""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SharedTable]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield SharedTable(files=LocalFiles(tmp_path.resolve() / "clicks"), ledger=ledger)
    ledger.close()


def pending(commit: PendingCommit | None) -> PendingCommit:
    assert commit is not None
    return commit


def append_overtaken_by_batch_2(table: SharedTable) -> PendingCommit:
    """Publish two batches. Return another writer's append of row 100, which it began between them."""
    table.published(1)
    late = table.foreign_append(100)
    table.published(2)
    return late


def optimize_overtaken_by_a_compaction(table: SharedTable) -> PendingCommit:
    """Publish and merge three batches. Return another writer's OPTIMIZE of the first two, begun before the third."""
    table.published(1)
    table.published(2)
    late = pending(table.spark.optimize())
    table.published(3)
    table.compact()
    return late


def dies_at(step: Step) -> Callable[[Step], None]:
    def probe(at: Step) -> None:
        if at is step:
            raise Died

    return probe


def overwritten_events(table: SharedTable) -> list[CommitOverwritten]:
    return [event for event in table.events if isinstance(event, CommitOverwritten)]


def test_an_unwatched_publish_loses_the_rows_of_an_overwritten_commit(table: SharedTable) -> None:
    """The imitated writer does what the check is for."""
    table.published(1)
    late = table.foreign_append(100)
    table.batch(2)
    table.publish(watched=False)
    late.put()
    table.batch(3)
    table.publish(watched=False)
    assert table.ids() == [1, 2, 3, 100]  # the last commit was replaced: its batch is published as usual
    again = table.foreign_append(101)
    table.batch(4)
    table.publish(watched=False)
    table.batch(5)
    table.publish(watched=False)
    again.put()
    table.publish(watched=False)
    assert table.ids() == [1, 2, 3, 5, 100, 101]


def test_the_last_commit_is_published_again_after_it_was_overwritten(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    late.put()
    table.publish()
    table.assert_complete(100)


@pytest.mark.parametrize("later", [1, 2, 5])
def test_a_commit_overwritten_below_later_ones_is_published_again(table: SharedTable, later: int) -> None:
    table.published(1)
    late = table.foreign_append(100)
    for number in range(later + 1):
        table.published(2 + number)
    assert late.put() == 2
    assert 2 not in table.ids()
    done = table.publish()
    table.assert_complete(100)
    assert done.position.seq == later + 2
    (event,) = overwritten_events(table)
    assert (event.version, event.engine, event.operation, event.first_seq, event.last_seq) == (2, ENGINE, "WRITE", 2, 2)
    assert event.table_version == table.newest


def test_a_second_publish_finds_nothing_left_to_put_back(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    table.published(3)
    late.put()
    table.publish()
    newest = table.newest
    table.events.clear()
    table.publish()
    assert (table.newest, table.events) == (newest, [])


def test_a_commit_overwritten_before_it_was_remembered_is_published_again(table: SharedTable) -> None:
    """The process died between the table's commit and the ledger's memory, twice."""
    table.published(1)
    late = table.foreign_append(100)
    for number in (2, 3):
        table.batch(number)
        with pytest.raises(Died):
            table.publish(probe=dies_at(Step.ROWS_PUBLISHED))
    late.put()
    table.publish()
    table.assert_complete(100)
    (found,) = [commit for commit in table.seen if commit.engine is not None]
    assert (found.version, found.lost_from, found.lost_to) == (2, 2, 2)


@pytest.mark.parametrize("step", [Step.REPUBLISHING, Step.REPUBLISHED])
def test_a_publisher_that_dies_while_it_puts_back_leaves_the_rest_to_the_next(table: SharedTable, step: Step) -> None:
    late = append_overtaken_by_batch_2(table)
    table.published(3)
    late.put()
    with pytest.raises(Died):
        table.publish(probe=dies_at(step))
    table.publish()
    table.assert_complete(100)


def test_two_publishers_that_put_back_at_once_add_the_rows_once(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    table.published(3)
    late.put()
    overtaken: list[bool] = []

    def stall(at: Step) -> None:
        if at is Step.REPUBLISHING and not overtaken:
            overtaken.append(True)
            table.publish()

    table.publish(probe=stall)
    assert overtaken
    table.assert_complete(100)
    adds = [action for version in range(table.newest + 1) for action in table.actions(version) if "add" in action]
    assert [action["add"]["path"] for action in adds].count(table.file_of(2)) == 1


def test_the_republishing_commit_may_be_overwritten_too(table: SharedTable) -> None:
    table.published(1)
    late = table.foreign_append(100)
    for number in (2, 3):
        table.published(number)
    late.put()
    later = table.foreign_append(101)
    table.publish()
    table.published(4)
    later.put()
    table.published(5)
    table.assert_complete(100, 101)


def test_a_batch_is_put_back_again_after_the_position_had_fallen_behind_another_commit(
    table: SharedTable,
) -> None:
    """The commit that shows it for the second time is remembered with the position to which the table fell back."""
    table.published(1)
    first = table.foreign_append(100)
    table.published(2)
    table.foreign_append(101).put()
    table.publish()
    second = table.foreign_append(102)
    assert first.put() == 2
    table.publish()
    table.published(3)
    assert second.put() == 4
    table.publish()
    table.assert_complete(100, 101, 102)


def test_several_overwritten_commits_are_published_again_in_order(table: SharedTable) -> None:
    table.published(1)
    lates = []
    for number in range(2, 6):
        lates.append(table.foreign_append(100 + number))
        table.published(number)
    table.published(6)
    for late in lates:
        late.put()
    table.publish()
    table.assert_complete(102, 103, 104, 105)
    (event,) = overwritten_events(table)
    assert (event.first_seq, event.last_seq, event.files) == (2, 5, 4)
    adds = [action["add"]["path"] for action in table.actions(event.table_version) if "add" in action]
    assert adds == [table.file_of(seq) for seq in range(2, 6)]


def test_lost_files_that_do_not_fit_into_one_commit_take_several(
    table: SharedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.republish.FILES_MAX", 2)
    table.published(1)
    late = table.foreign_append(100)
    for number in range(2, 7):
        table.batch(number)
    table.publish()  # in one commit
    table.published(7)
    late.put()
    table.publish()
    table.assert_complete(100)
    assert [(event.first_seq, event.last_seq) for event in overwritten_events(table)] == [(2, 3), (4, 5), (6, 6)]


def test_a_file_merged_by_a_later_compaction_is_not_added_again(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    table.compact()  # merges the files of batches 1 and 2
    table.published(3)
    late.put()
    table.publish()
    table.assert_complete(100)
    assert not overwritten_events(table)


def test_a_batch_whose_last_commit_was_replaced_is_not_added_beside_the_compaction_that_merged_it(
    table: SharedTable,
) -> None:
    """The position falls back, so the batch is published as if it were new; its rows are in the merged file."""
    late = append_overtaken_by_batch_2(table)
    table.compact()
    late.put()
    assert table.sink.load() is not None
    done = table.publish()
    assert done.position.seq == 2
    table.assert_complete(100)


def test_a_publisher_that_dies_after_the_position_fell_back_leaves_the_reason_to_the_next(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    table.compact()
    table.publish()
    late.put()
    with pytest.raises(Died):
        table.publish(probe=dies_at(Step.PUBLISHING))
    table.publish()
    table.assert_complete(100)


@pytest.mark.parametrize("remembered", [False, True])
def test_a_batch_that_was_lost_and_merged_is_lost_again_without_coming_back_twice(
    table: SharedTable, remembered: bool
) -> None:
    late = append_overtaken_by_batch_2(table)
    table.batch(3)
    table.compact()  # merges batches 1 and 2 at version 3
    if remembered:
        table.watch.remember(table.watch.inspect(table.loaded, table.loaded.position))
    late.put()
    again = pending(table.spark.optimize())
    assert table.publish().table_version == again.version
    table.published(4)
    table.published(5)
    again.put()
    table.publish()
    table.assert_complete(100)


def test_rows_deleted_by_a_later_statement_stay_deleted(table: SharedTable) -> None:
    late = append_overtaken_by_batch_2(table)
    table.spark.delete({2}).put()
    table.published(3)
    late.put()
    table.publish()
    table.expected.remove(2)
    table.assert_complete(100)


def test_an_overwritten_compaction_leaves_the_files_as_they_were(table: SharedTable) -> None:
    table.published(1)
    table.published(2)
    late = table.foreign_append(100)
    table.compact()
    late.put()
    table.published(3)
    table.assert_complete(100)
    table.compact()
    table.publish()
    table.assert_complete(100)


def test_an_added_column_whose_commit_was_overwritten_is_added_again(table: SharedTable) -> None:
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    table.published(1)
    late = table.foreign_append(100)
    table.published(2, schema=wider)  # one commit adds the column, the next the batch
    late.put()
    assert "score" not in [column["name"] for column in table.spark.columns()]
    table.publish()
    assert "score" in [column["name"] for column in table.spark.columns()]
    table.assert_complete(100)


def test_an_optimize_that_overwrites_a_batch_keeps_every_row_once(table: SharedTable) -> None:
    table.published(1)
    table.published(2)
    late = pending(table.spark.optimize())
    table.published(3)
    table.published(4)
    late.put()
    table.publish()
    table.assert_complete()


def test_a_compaction_of_files_that_an_overwriting_optimize_merged_is_undone(table: SharedTable) -> None:
    optimize_overtaken_by_a_compaction(table).put()
    assert table.ids() == [1, 1, 2, 2, 3]
    table.published(4)
    table.assert_complete()
    assert [event.table_version is not None for event in table.events if isinstance(event, CompactionUndone)] == [True]
    table.compact()
    table.publish()
    table.assert_complete()


def test_deleted_rows_do_not_come_back_by_the_compaction_that_merged_them(table: SharedTable) -> None:
    table.published(1, 10)
    table.published(2)
    late = table.spark.delete({10})
    table.published(3)
    table.compact()
    late.put()
    table.publish()
    table.expected.remove(10)
    table.assert_complete()


def test_a_contradicting_compaction_whose_file_was_rewritten_is_reported(table: SharedTable) -> None:
    optimize_overtaken_by_a_compaction(table).put()
    pending(table.spark.optimize()).put()
    table.publish()
    (event,) = [event for event in table.events if isinstance(event, CompactionUndone)]
    assert event.table_version is None
    assert event.error is not None
    assert "twice" in event.error
    table.events.clear()
    table.publish()  # goes on
    assert table.events == []


def test_a_compaction_of_a_lost_compactions_file_is_undone(table: SharedTable) -> None:
    table.published(1)
    table.published(2)
    late = table.foreign_append(100)
    table.compact()
    table.published(3)
    table.compact()  # merges the first one's file
    late.put()
    assert table.ids() == [1, 1, 2, 2, 3, 100]
    table.publish()
    table.assert_complete(100)


@pytest.mark.parametrize("later", [0, 1])
def test_a_checkpoint_made_before_a_batch_was_overwritten_changes_nothing(table: SharedTable, later: int) -> None:
    late = append_overtaken_by_batch_2(table)
    for number in range(later):
        table.published(3 + number)
    table.checkpoint(2 + later)
    late.put()
    assert 100 not in table.ids()
    assert 2 not in table.ids_of_log()
    table.published(9)
    table.assert_complete(100)


def test_an_optimize_hidden_by_a_checkpoint_is_committed_again(table: SharedTable) -> None:
    table.published(1)
    table.published(2)
    late = pending(table.spark.optimize())
    table.published(3)
    table.checkpoint(3)
    late.put()
    table.published(4)
    table.assert_complete()
    table.spark.delete({1}).put()  # by what that writer sees
    table.expected.remove(1)
    table.assert_complete()


def test_a_replaced_file_with_the_same_commit_is_no_loss(table: SharedTable) -> None:
    """A copied bucket or a restored folder has other tags."""
    table.published(1)
    table.published(2)
    for version in range(table.newest + 1):
        path = f"_delta_log/{version:020}.json"
        table.files.write(path, table.files.read(path))
    newest = table.newest
    table.publish()
    assert table.newest == newest
    assert not any(isinstance(event, (CommitOverwritten, ForeignCommit)) for event in table.events)
    table.assert_complete()


def test_the_memory_is_bounded_and_an_old_table_begins_anew(
    table: SharedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overwritten, "COMMITS_KEPT", 4)
    for number in range(8):
        table.published(number)
    table.publish()
    assert [commit.version for commit in table.seen] == [5, 6, 7, 8]
    table.ledger.table_commits.remember("clicks", table.files.uri, [], first=100, last=100)
    assert table.seen == []
    table.publish()
    assert [(commit.version, commit.after_seq, commit.seq) for commit in table.seen] == [(8, 7, 8)]
    table.published(8)
    table.assert_complete()


def test_a_log_cleaned_up_by_another_writer_is_no_loss(table: SharedTable) -> None:
    for number in range(6):
        table.published(number)
    table.checkpoint(5)
    table.clean_up_log(before=5)
    table.published(6)
    table.publish()
    assert table.ids() == sorted(table.expected)
    assert [commit.version for commit in table.seen][-1] == table.newest


def test_a_new_table_in_the_same_place_is_not_compared_with_the_old_one(table: SharedTable) -> None:
    for number in range(5):
        table.published(number)
    for info in list(table.files.list("_delta_log")):
        table.files.delete([info.path])
    table.publish()
    table.publish()
    table.assert_complete()
    assert table.seen[-1].version == table.newest == 1


def test_a_repair_of_the_ledger_forgets_the_commits(table: SharedTable) -> None:
    from penstock.ledger.records import LedgerRepair

    table.published(1)
    table.published(2)
    assert table.seen
    row = table.ledger.ensure_pipeline("clicks")
    table.ledger.repair(
        LedgerRepair(
            pipeline="clicks", seen_next_seq=row.next_seq, next_seq=row.next_seq, table_schema=None, imported=(),
            moved={}, withdrawn=(), forgotten=(),
        )
    )  # fmt: skip
    assert table.seen == []
    table.published(3)
    table.assert_complete()

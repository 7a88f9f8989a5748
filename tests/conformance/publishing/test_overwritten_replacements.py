"""Commits that replace rows and are overwritten: no row is there twice, and no replaced row comes back."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.publishing.shared_table import SharedTable, choose
from tests.services.spark_writer import PendingCommit

from penstock.errors import PublishHalted
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.maintenance.leftovers import AGE_SECONDS_MIN, collect_leftovers
from penstock.pipeline.rewriting import MARK
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

SCHEMA = pa.schema([("id", pa.int64()), ("_object", pa.string())])
WALKS = 40
STEPS = 25


class Died(BaseException):
    """Simulates the death of the process."""


class Objects:
    """The table with rows of objects. Each batch is of one object."""

    def __init__(self, table: SharedTable) -> None:
        self.table = table
        self.rows: dict[str, list[int]] = {}

    def add(self, name: str, *ids: int) -> int:
        """Commit a batch that adds rows of an object."""
        self.rows.setdefault(name, []).extend(ids)
        return self.table.batch(*ids, schema=SCHEMA, object_name=name)

    def replace(self, name: str, *ids: int) -> int:
        """Commit a batch that replaces the rows of an object."""
        self.rows[name] = list(ids)
        seq = self.table.batch(*ids, schema=SCHEMA, object_name=name)
        self.table.replaced[seq] = [name]
        return seq

    def foreign_append(self, id: int) -> PendingCommit:
        return self.table.spark.append({"id": [id], "_object": [None]})

    def check(self, *others: int) -> None:
        self.table.expected[:] = [id for ids in self.rows.values() for id in ids]
        self.table.assert_complete(*others)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SharedTable]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield SharedTable(files=LocalFiles(tmp_path.resolve() / "clicks"), ledger=ledger)
    ledger.close()


@pytest.fixture
def objects(table: SharedTable) -> Objects:
    found = Objects(table)
    found.add("s3://b/a", 1)
    found.add("s3://b/b", 2)
    table.publish()
    table.compact()  # both objects are in one file
    return found


def replaced_and_overwritten(objects: Objects, *later: Callable[[], object]) -> PendingCommit:
    """Replace the rows of an object and publish, do what is given, and return an append begun before."""
    late = objects.foreign_append(100)
    objects.replace("s3://b/a", 10)
    objects.table.publish()
    for work in later:
        work()
        objects.table.publish()
    return late


def test_the_last_commit_is_made_again(table: SharedTable, objects: Objects) -> None:
    replaced_and_overwritten(objects).put()
    table.publish()
    objects.check(100)


def test_below_a_later_commit_the_replaced_rows_leave_again(table: SharedTable, objects: Objects) -> None:
    replaced_and_overwritten(objects, lambda: objects.add("s3://b/c", 3)).put()
    assert table.ids() == [1, 2, 3, 100], "an unwatched reader sees the old row"
    table.publish()
    objects.check(100)
    newest = table.newest
    table.publish()
    assert table.newest == newest, "nothing is left to put back"


def test_rows_that_a_later_commit_replaced_too_are_there_once(table: SharedTable, objects: Objects) -> None:
    replaced_and_overwritten(objects, lambda: objects.replace("s3://b/b", 20)).put()
    table.publish()
    objects.check(100)


def test_the_same_object_replaced_twice_keeps_its_last_rows(table: SharedTable, objects: Objects) -> None:
    replaced_and_overwritten(objects, lambda: objects.replace("s3://b/a", 11, 12)).put()
    table.publish()
    objects.check(100)


def test_a_batch_that_only_removes_rows_removes_them_again(table: SharedTable, objects: Objects) -> None:
    late = objects.foreign_append(100)
    objects.replace("s3://b/b")
    table.publish()
    objects.add("s3://b/c", 3)
    table.publish()
    late.put()
    table.publish()
    objects.check(100)


def test_rows_that_a_compaction_of_ours_moved_are_there_once(table: SharedTable, objects: Objects) -> None:
    late = replaced_and_overwritten(objects, lambda: objects.add("s3://b/c", 3))
    table.compact()
    late.put()
    table.publish()
    objects.check(100)


def test_two_lost_replacements_are_put_back_in_order(table: SharedTable, objects: Objects) -> None:
    first = objects.foreign_append(100)
    objects.replace("s3://b/a", 10)
    table.publish()
    second = objects.foreign_append(101)
    objects.replace("s3://b/b", 20)
    table.publish()
    objects.add("s3://b/c", 3)
    table.publish()
    first.put()
    second.put()
    table.publish()
    objects.check(100, 101)


def test_nothing_leaves_if_nothing_was_replaced(table: SharedTable, objects: Objects) -> None:
    late = objects.foreign_append(100)
    objects.replace("s3://b/new", 10)
    table.publish()
    objects.add("s3://b/c", 3)
    table.publish()
    late.put()
    table.publish()
    objects.check(100)


@pytest.mark.parametrize("step", [Step.REPUBLISHING, Step.REPUBLISHED])
def test_a_publisher_that_dies_while_it_puts_back_leaves_it_to_the_next(
    table: SharedTable, objects: Objects, step: Step
) -> None:
    replaced_and_overwritten(objects, lambda: objects.add("s3://b/c", 3)).put()

    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    with pytest.raises(Died):
        table.publish(probe=dying)
    table.publish()
    objects.check(100)


def test_a_commit_that_was_overwritten_at_once_after_it_is_remembered(table: SharedTable, objects: Objects) -> None:
    """Its publisher dies after the commit; the next one remembers it before it commits anything."""
    late = objects.foreign_append(100)
    objects.replace("s3://b/a", 10)

    def dying(reached: Step) -> None:
        if reached is Step.ROWS_PUBLISHED:
            raise Died

    with pytest.raises(Died):
        table.publish(probe=dying)
    objects.add("s3://b/c", 3)
    table.publish()
    late.put()
    table.publish()
    objects.check(100)


def test_a_commit_that_changed_the_same_files_halts_with_the_way_out(table: SharedTable, objects: Objects) -> None:
    objects.add("s3://b/c", 3)
    table.publish()
    late = table.spark.optimize()
    assert late is not None
    objects.replace("s3://b/a", 10)
    table.publish()
    objects.add("s3://b/d", 4)
    table.publish()
    late.put()
    with pytest.raises(PublishHalted, match=r"may be in the table twice\. Let that writer restore version \d+"):
        table.publish()


def collected(table: SharedTable, probe: Probe = no_probe) -> int:
    """Collect leftovers as a day later; return the number of deleted folders."""
    old = FakeClock(SystemClock().now() + 2 * AGE_SECONDS_MIN)
    return collect_leftovers(table.sink, table.ledger, clock=old, probe=probe).folders


@pytest.mark.parametrize("is_built_on", [False, True], ids=["last-commit", "below-a-later-commit"])
def test_gc_keeps_files_that_put_a_lost_commit_back(table: SharedTable, objects: Objects, is_built_on: bool) -> None:
    later = [lambda: objects.add("s3://b/c", 3)] if is_built_on else []
    replaced_and_overwritten(objects, *later).put()
    assert collected(table) == 0
    objects.foreign_append(101).put()
    assert collected(table) == 0
    objects.add("s3://b/new", 7)
    table.publish()
    objects.check(100, 101)


def test_gc_deletes_files_that_no_remembered_commit_names(table: SharedTable, objects: Objects) -> None:
    objects.replace("s3://b/a", 10)

    def dying(reached: Step) -> None:
        if reached is Step.REWRITTEN:
            raise Died

    with pytest.raises(Died):
        table.publish(probe=dying)
    assert collected(table) == 0
    table.publish()
    objects.add("s3://b/c", 3)
    table.publish()
    assert collected(table) == 1
    objects.check()


def test_a_last_commit_whose_files_are_gone_is_planned_again(table: SharedTable, objects: Objects) -> None:
    late = replaced_and_overwritten(objects)
    table.publish()  # it remembers the commit
    (folder,) = table.ledger.table_commits.folders(table.files.uri)
    late.put()
    table.files.delete([file.path for file in table.files.list(folder)])
    table.publish()
    objects.check(100)


def test_files_that_gc_has_given_up_are_not_added_again(table: SharedTable, objects: Objects) -> None:
    """Gc marked the folder before a process that was slow remembered the commit, and may delete it at any time."""
    late = replaced_and_overwritten(objects, lambda: objects.add("s3://b/c", 3))
    (folder,) = table.ledger.table_commits.folders(table.files.uri)
    table.files.write(f"{folder}/{MARK}", b"")
    late.put()
    before = table.newest
    with pytest.raises(PublishHalted, match=rf"in {folder} are gone\. Let that writer restore version \d+"):
        table.publish()
    assert table.newest == before


@pytest.mark.parametrize("seed", range(WALKS))
def test_random_replacements_and_late_appends_end_as_the_rule_says(
    table: SharedTable, objects: Objects, seed: int
) -> None:
    chance = random.Random(seed)
    numbers = iter(range(1_000, 10_000))
    pending: list[tuple[PendingCommit, int]] = []
    shown: list[int] = []
    bases: set[int] = set()  # two other writers that overwrite each other's commits are not repaired
    for _ in range(STEPS):
        match choose(chance, add=3, replace=5, publish=6, compact=1, begin=2, put=2):
            case "add":
                objects.add(f"s3://b/{chance.choice('abcd')}", next(numbers))
            case "replace":
                ids: Sequence[int] = [next(numbers) for _ in range(chance.randint(0, 2))]
                objects.replace(f"s3://b/{chance.choice('abcd')}", *ids)
            case "publish":
                table.publish()
            case "compact":
                table.publish()
                table.compact()
            case "begin" if table.newest not in bases:
                bases.add(table.newest)
                id = next(numbers)
                pending.append((objects.foreign_append(id), id))
            case "put" if pending:
                late, id = pending.pop(chance.randrange(len(pending)))
                late.put()
                shown.append(id)
                table.publish()
    table.publish()
    objects.check(*shown)

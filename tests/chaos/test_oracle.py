"""The oracle itself: it must report every kind of error that it exists for."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from tests.chaos.oracle import Values, check_done, check_meanwhile, files_in_log, truth
from tests.chaos.runs import JUNK, write_object

ROWS = pa.schema(
    [("id", pa.int64()), ("v", pa.float64()), ("s", pa.string()), ("_object", pa.string()), ("_offset", pa.int64())]
)
QUARANTINE = pa.schema([("object", pa.string()), ("offset", pa.int64()), ("raw", pa.binary())])


class World:
    """A source of one object with two good lines and a bad one, and a table as if an ingest had made it."""

    def __init__(self, folder: Path) -> None:
        self.source, self.table = folder / "in", folder / "table"
        self.source.mkdir()
        path = write_object(self.source, 1, lines=2, junk=True)
        self.truth = truth(self.source)
        self.rows = [{**values, "_object": uri, "_offset": offset} for (uri, offset), values in self.truth.good.items()]
        self.junk = [{"object": path.as_uri(), "offset": offset, "raw": JUNK} for _, offset in self.truth.bad]
        self._ask("ledger.db", "CREATE TABLE attempts (id, state)")
        self._ask("queue.db", "CREATE TABLE queues (id, name)", "CREATE TABLE messages (queue_id, state)")
        self._ask("queue.db", "INSERT INTO queues VALUES (1, 'ingest'), (2, 'ingest-dlq')")

    def attempt(self, name: str, state: str, rows: Sequence[Values], junk: Sequence[Values] = ()) -> None:
        """Add an attempt to the ledger and its files to the tables, whatever its state."""
        self._ask("ledger.db", f"INSERT INTO attempts VALUES ('{name}', '{state}')")
        _append(self.table, name, rows, ROWS)
        _append(self.table.with_name("table_quarantine"), name, junk, QUARANTINE)

    def message(self) -> None:
        self._ask("queue.db", "INSERT INTO messages VALUES (1, 0)")

    def _ask(self, file: str, *statements: str) -> None:
        (self.table / "_penstock").mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.table / "_penstock" / file)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


def _append(table: Path, attempt: str, rows: Sequence[Values], schema: pa.Schema) -> None:
    if not rows:
        return
    name = f"data/{attempt}/r0/part.parquet"
    (table / name).parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), table / name)
    delta = DeltaTable.create(str(table), schema, mode="ignore")
    add = AddAction(name, (table / name).stat().st_size, {}, 0, True, "{}")
    delta.create_write_transaction([add], "append", delta.schema())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def complaint(world: World) -> str:
    with pytest.raises(AssertionError) as raised:
        check_done(world.truth, world.table)
    return str(raised.value)


def test_the_oracle_accepts_every_line_once(world: World) -> None:
    world.attempt("one", "committed", world.rows, world.junk)
    check_done(world.truth, world.table)


def test_missing_lines_are_accepted_before_the_end(world: World) -> None:
    assert check_meanwhile(world.truth, world.table).missing == 2
    world.attempt("one", "committed", world.rows[:1])
    assert check_meanwhile(world.truth, world.table).missing == 1


def test_the_oracle_finds_a_lost_line(world: World) -> None:
    world.attempt("one", "committed", world.rows[:1], world.junk)
    assert "1 good lines are lost" in complaint(world)


def test_the_oracle_finds_a_duplicate_line(world: World) -> None:
    world.attempt("one", "committed", world.rows, world.junk)
    world.attempt("two", "committed", world.rows[:1])
    assert "1 lines are in the table twice" in complaint(world)


@pytest.mark.parametrize("wrong", [{"v": 7.5}, {"_offset": 1}, {"s": None}])
def test_the_oracle_finds_a_wrong_value(world: World, wrong: Mapping[str, object]) -> None:
    world.attempt("one", "committed", [{**world.rows[0], **wrong}, *world.rows[1:]], world.junk)
    assert "1 rows are not what the files hold" in complaint(world)


def test_the_oracle_finds_lost_changed_and_duplicate_bad_lines(world: World) -> None:
    world.attempt("one", "committed", world.rows)
    assert "bad lines are missing" in complaint(world)
    world.attempt("two", "committed", [], [{**line, "raw": b"changed"} for line in world.junk])
    assert "1 rows are not what the files hold" in complaint(world)
    world.attempt("three", "committed", [], world.junk)
    assert "twice" in complaint(world)


@pytest.mark.parametrize("state", ["abandoned", "open"])
def test_the_oracle_finds_a_file_of_an_uncommitted_attempt(world: World, state: str) -> None:
    world.attempt("one", state, world.rows, world.junk)
    assert "attempts that were not committed" in complaint(world)


def test_the_oracle_reads_a_log_that_begins_with_a_checkpoint_and_removes_a_file(world: World) -> None:
    world.attempt("one", "committed", world.rows[:1])
    world.attempt("two", "committed", world.rows[:1])
    delta = DeltaTable(str(world.table))
    delta.create_checkpoint()
    first_commit = world.table / "_delta_log" / f"{0:020}.json"
    first_commit.unlink()
    assert "twice" in complaint(world)
    delta.delete("true")
    assert files_in_log(world.table) == []
    world.attempt("three", "committed", world.rows, world.junk)
    check_done(world.truth, world.table)
    (world.table / "_delta_log" / f"{3:020}.json").unlink()
    assert "a commit is missing" in complaint(world)


def test_the_oracle_finds_open_attempts_and_leftovers(world: World) -> None:
    world.attempt("one", "committed", world.rows, world.junk)
    world.attempt("two", "abandoned", [])
    (world.table / "data" / "two").mkdir()
    assert "files of abandoned attempts are left" in complaint(world)
    world.message()
    assert "messages" in complaint(world)
    world.attempt("three", "open", [])
    assert "open" in complaint(world)

"""Concurrent publishers, creators and schema changes of one table."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.sinks.kit import FIRST, SCHEMA, SECOND, Kit, append, loaded, write

from penstock.errors import PublishConflict, TableError
from penstock.messaging.steps import no_probe
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import CheckpointedTable, Sink

ROUNDS = 30
THREADS = 4
DEADLINE_SECONDS = 180.0
TRIES_MAX = 50


def at_once(*works: Callable[[], object]) -> list[BaseException | None]:
    """Run the functions in threads that start together; return what each raised, in order."""
    barrier = threading.Barrier(len(works))

    def started(work: Callable[[], object]) -> None:
        barrier.wait(DEADLINE_SECONDS)
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.exception(DEADLINE_SECONDS) for future in [pool.submit(started, work) for work in works]]


def publish_once(sink: Sink, seq: int, attempt_id: str, files: Sequence[DataFile]) -> None:
    """Check and commit on the checked table, as every publisher does, on one shared sink."""
    for _ in range(TRIES_MAX):
        table = loaded(sink)
        if table.position.seq >= seq:
            return
        try:
            version = table.append(append(seq, attempt_id, *files))
        except PublishConflict:
            continue
        if isinstance(table, CheckpointedTable) and table.is_checkpoint_due(version):
            table.write_checkpoint(version, probe=no_probe)
    raise AssertionError(f"{TRIES_MAX} conflicts in a row")


def test_a_batch_published_concurrently_is_published_once(kit: Kit, sink: Sink, root: Path) -> None:
    for seq in range(1, ROUNDS + 1):
        attempt_id = f"01K0{seq:022d}"
        file = write(root, attempt_id, id=[seq], name=["x"])
        raised = at_once(*[lambda: publish_once(sink, seq, attempt_id, [file])] * THREADS)  # noqa: B023 -- ends here
        assert raised == [None] * THREADS
    assert loaded(sink).position.seq == ROUNDS
    assert Counter(row["id"] for row in kit.rows(root)) == Counter(range(1, ROUNDS + 1))


def test_exactly_one_of_concurrent_appends_on_one_version_succeeds(kit: Kit, sink: Sink, root: Path) -> None:
    for seq in range(1, ROUNDS + 1):
        attempt_id = f"01K0{seq:022d}"
        file = write(root, attempt_id, id=[seq], name=["x"])
        snapshots = [loaded(sink) for _ in range(THREADS)]
        raised = at_once(
            *[lambda table=table: table.append(append(seq, attempt_id, file)) for table in snapshots]  # noqa: B023 -- ends here
        )
        assert sorted(type(error).__name__ for error in raised) == ["NoneType"] + ["PublishConflict"] * (THREADS - 1)
    assert len(kit.rows(root)) == ROUNDS


def test_concurrent_creators_with_one_schema_create_one_table(kit: Kit, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        sink = kit.sink(tmp_path / str(number))
        raised = at_once(*[lambda: sink.ensure_schema(SCHEMA)] * THREADS)  # noqa: B023 -- ends here
        assert raised == [None] * THREADS
        assert loaded(sink).schema.equals(SCHEMA)
        assert loaded(sink).version == 0


@pytest.mark.parametrize(
    "other_schema",
    [pa.schema([("id", pa.int64()), ("note", pa.string())]), pa.schema([("id", pa.string()), ("name", pa.string())])],
    ids=["other columns", "another type"],
)
def test_concurrent_creators_with_two_schemas_drop_no_column(kit: Kit, tmp_path: Path, other_schema: pa.Schema) -> None:
    """One creates the table. The other gets an error, or its columns are added when it tries again; none is ever
    dropped.
    """
    for number in range(ROUNDS):
        sink = kit.sink(tmp_path / str(number))
        raised = at_once(lambda: sink.ensure_schema(SCHEMA), lambda: sink.ensure_schema(other_schema))  # noqa: B023 -- ends here
        assert all(error is None or isinstance(error, PublishConflict | TableError) for error in raised)
        made = loaded(sink).schema
        assert (
            made.equals(SCHEMA) or made.equals(other_schema) or set(made.names) == {*SCHEMA.names, *other_schema.names}
        )


def test_columns_added_concurrently_are_all_added(kit: Kit, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        sink = kit.sink(tmp_path / str(number))
        sink.ensure_schema(SCHEMA)
        wider = [SCHEMA.append(pa.field(name, pa.int64())) for name in ("here", "there")]
        raised = at_once(*[lambda schema=schema: sink.ensure_schema(schema) for schema in wider])  # noqa: B023 -- ends here
        assert all(error is None or isinstance(error, PublishConflict) for error in raised)
        for schema in wider:
            sink.ensure_schema(schema)
        assert sorted(loaded(sink).schema.names) == ["here", "id", "name", "there"]


def test_one_column_added_concurrently_with_two_types_gets_one_of_them(kit: Kit, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        sink = kit.sink(tmp_path / str(number))
        sink.ensure_schema(SCHEMA)
        wider = [SCHEMA.append(pa.field("score", type_)) for type_ in (pa.int64(), pa.string())]
        raised = at_once(*[lambda schema=schema: sink.ensure_schema(schema) for schema in wider])  # noqa: B023 -- ends here
        assert sorted(error is None for error in raised) == [False, True]
        assert isinstance(next(error for error in raised if error), PublishConflict | TableError)
        assert loaded(sink).schema.names == ["id", "name", "score"]


def test_an_append_concurrent_with_a_schema_change_is_published_once(kit: Kit, sink: Sink, root: Path) -> None:
    file = write(root, FIRST, id=[1], name=["x"])
    wider = [SCHEMA.append(pa.field(f"c{number}", pa.int64())) for number in range(3)]

    def change(schema: pa.Schema) -> None:
        for _ in range(TRIES_MAX):
            try:
                return sink.ensure_schema(schema)
            except PublishConflict:
                continue
        raise AssertionError(f"{TRIES_MAX} conflicts in a row")

    raised = at_once(
        lambda: publish_once(sink, 1, FIRST, [file]),
        *[lambda schema=schema: change(schema) for schema in wider],
    )
    assert raised == [None] * 4
    loaded(sink).append(append(2, SECOND, write(root, SECOND, id=[2], name=["y"])))
    assert sorted(row["id"] for row in kit.rows(root)) == [1, 2]

"""`penstock objects reprocess`: processed objects are read again, and new rows replace their old ones."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update
from tests.cli.conftest import Call
from tests.cli.process import SRC
from tests.cli.scene import Scene
from tests.cli.test_objects_retract import ledger_of, path, shown, states
from tests.cli.test_objects_retry import Post, Terminal
from tests.services.forked_process import run_forked

from penstock.app.paths import LEDGER_FILE
from penstock.app.scope import ScopeRequest, find_scope, scope_ledger
from penstock.ledger.records import AttemptFailure, ObjectState, OnChange, ReopeningState
from penstock.ledger.reopenings import KEPT
from penstock.ledger.schema import pipelines
from penstock.messaging.steps import Step
from penstock.operations.inspection import view
from penstock.operations.objects.reprocess import ReprocessSelection, plan, reprocess
from penstock.pipeline.maintenance.archive import Archivist
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

FAILED, USAGE, TEMPORARY = 1, 2, 75
REPROCESS = ("objects", "reprocess", "--yes")
ROWS = {"a": [1, 2], "b": [3], "c": [4]}


@pytest.fixture
def table(scene: Scene) -> Scene:
    """Return a table with the rows of three objects in two batches, and a queue."""
    scene.read({"a": [1, 2], "b": [3]})
    scene.read({"c": [4]})
    scene.publish()
    scene.send("other")
    return scene


def read_again(scene: Scene, ids_by_name: Mapping[str, Sequence[int]]) -> None:
    """Read objects as a worker does: in a batch that replaces their rows."""
    scene.read(ids_by_name, on_change=OnChange.REPLACE)
    scene.publish()


def sent(scene: Scene) -> Counter[str]:
    """Return how often each object is named by the messages in the queue."""
    names = [name for body in scene.bodies() for name in "abc" if scene.ref(name).uri.encode()[7:] in body]
    return Counter(names)


def test_objects_are_enqueued_and_their_rows_stay_until_they_are_read_again(penstock: Call, table: Scene) -> None:
    result = penstock(*REPROCESS, path(table, "a"), path(table, "c"))
    assert result.exit_code == 0, result.err
    assert result.out == (
        f"2 objects are to be read again (enqueued in {table._queue}); their 3 rows in the table stay until then.\n"
    )
    assert sent(table) == {"a": 1, "c": 1}
    assert shown(table) == ROWS
    assert states(table) == {ObjectState.PROCESSED: 1, ObjectState.UNPROCESSED: 2}
    read_again(table, {"a": [10], "c": []})
    assert shown(table) == {"a": [10], "b": [3]}
    assert states(table) == {ObjectState.PROCESSED: 3}


@pytest.mark.parametrize(
    ("transform", "options"),
    [("shop:clean", "its options (--transform shop:clean, ...)"), (None, "its options, such as --transform")],
)
def test_without_a_worker_the_ingest_that_reads_them_is_named(
    penstock: Call, table: Scene, transform: str | None, options: str
) -> None:
    with ledger_of(table) as ledger, ledger.database.writing() as connection:
        connection.execute(update(pipelines).values(transform=transform))
    hint = f"No worker runs: the next `penstock ingest` of this table reads them. Give it {options} again.\n"
    assert penstock(*REPROCESS, path(table, "a")).err == hint
    table.fail("bad", AttemptFailure.DEAD, "bad")
    assert penstock("objects", "retry", "--queue", table._queue, "--yes").err.endswith(hint)
    with table.worker():
        assert penstock(*REPROCESS, path(table, "c")).err == ""


def test_rows_that_are_merged_by_key_cannot_be_read_again(penstock: Call, table: Scene) -> None:
    with ledger_of(table) as ledger, ledger.database.writing() as connection:
        connection.execute(update(pipelines).values(merge="{}"))
    result = penstock(*REPROCESS, path(table, "a"))
    assert result.exit_code == USAGE
    assert "Reprocessing objects is not possible" in result.err
    assert states(table) == {ObjectState.PROCESSED: 3}


def test_a_dry_run_counts_and_changes_nothing(penstock: Call, table: Scene) -> None:
    table.fail("bad", AttemptFailure.DEAD, "bad")
    document = penstock(
        "objects", "reprocess", path(table, "a"), path(table, "bad"), path(table, "none"), "--dry-run", "--json"
    ).document
    assert document == {
        "pipeline": table.where.pipeline,
        "queue": table._queue,
        "dry_run": True,
        "interrupted": False,
        "objects": 1,
        "again": 0,
        "rows": 2,
        "left_alone": {"unprocessed": 1, "unknown": 1},
        "left_alone_objects": [
            {"object": table.ref("bad").uri, "why": "unprocessed", "state": "dead"},
            {"object": table.ref("none").uri, "why": "unknown", "state": None},
        ],
        "archived": 0,
    }
    assert states(table) == {ObjectState.PROCESSED: 3, ObjectState.DEAD: 1}
    assert sent(table) == {}
    assert penstock("admin", "audit", "--json").document == []


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["--filter", "landing/A"], {"a"}),
        (["--all"], {"a", "b", "c"}),
        (["--older-than", "1h"], set()),
        (["--newer-than", "1h"], {"a", "b", "c"}),
        (["--newer-than", "1h", "--filter", "/c"], {"c"}),
    ],
)
def test_objects_are_selected_by_address_and_age(
    penstock: Call, table: Scene, given: Sequence[str], names: set[str]
) -> None:
    result = penstock(*REPROCESS, *given)
    assert result.exit_code == (0 if names else USAGE), result.err
    assert set(sent(table)) == names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "Which objects? Name some, or give --filter"),
        (["landing/a", "--all"], "not both"),
        (["--filter", "a", "--all"], "leave it out"),
        (["--withdraw"], "--withdraw needs the names"),
        ([""], "OBJECT is empty"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(
    penstock: Call, table: Scene, given: Sequence[str], says: str
) -> None:
    result = penstock(*REPROCESS, *given)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert says in result.err
    assert states(table) == {ObjectState.PROCESSED: 3}


def test_it_asks_first(penstock: Call, table: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without = penstock("objects", "reprocess", path(table, "a"))
    assert without.exit_code == USAGE
    assert "give --yes, or --dry-run" in without.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    declined = penstock("objects", "reprocess", path(table, "a"))
    assert declined.exit_code == FAILED
    assert "Read 1 object again, and replace their rows? [y/N]" in declined.err
    assert "Nothing was reopened." in declined.err
    assert states(table) == {ObjectState.PROCESSED: 3}
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert penstock("objects", "reprocess", path(table, "a")).exit_code == 0
    assert sent(table) == {"a": 1}


def test_objects_that_cannot_be_read_again_are_named_with_the_reason(penstock: Call, table: Scene) -> None:
    table.read({"a": [9]}, version="2")  # under a rule that adds: rows of two versions
    assert penstock("objects", "retract", "--yes", path(table, "b")).exit_code == 0
    with table._state() as state:
        table._claim(state, ["d"])
    result = penstock(*REPROCESS, path(table, "a"), path(table, "b"), path(table, "c"), path(table, "d"))
    assert result.exit_code == TEMPORARY
    assert f"{table.ref('a').uri} is left alone: the table has rows of several versions of it" in result.err
    assert f"{table.ref('b').uri} is left alone: retracted, and not processed." in result.err
    assert f"{table.ref('d').uri} is left alone: being processed: try again once that has ended." in result.err
    assert sent(table) == {"c": 1}
    assert "Traceback" not in result.err


def test_a_table_that_does_not_name_objects_is_refused_with_the_way_out(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    result = penstock(*REPROCESS, path(scene, "a"))
    assert result.exit_code == USAGE
    assert "has no column _object" in result.err
    assert "Read the objects into another table" in result.err
    assert states(scene) == {ObjectState.PROCESSED: 1}


def test_an_unknown_pipeline_is_refused(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.read({"a": [1]})
    result = penstock(*REPROCESS, "--app", shop, "--pipeline", "absent", "--all")
    assert result.exit_code == USAGE
    assert "knows no pipeline absent" in result.err


def test_the_queue_of_a_pipeline_is_known_by_the_code_of_its_app(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.read({"a": [1], "b": [2]})
    app_scene.publish()
    without = penstock(*REPROCESS, "--pipeline", "clicks", "--all")
    assert without.exit_code == USAGE
    assert "give --app" in without.err
    result = penstock(*REPROCESS, "--app", shop, path(app_scene, "a"))
    assert result.exit_code == 0, result.err
    assert "(enqueued in clicks-files)" in result.out
    assert sent(app_scene) == {"a": 1}


def test_a_table_without_a_queue_is_read_again_by_the_next_ingest(penstock: Call, scene: Scene) -> None:
    scene.read({"a": [1]})
    result = penstock(*REPROCESS, "--all")
    assert result.exit_code == 0, result.err
    assert "1 object is to be read again (by the next `penstock ingest` of this table)" in result.out
    assert states(scene) == {ObjectState.UNPROCESSED: 1}


def test_it_is_recorded_in_the_audit_log_and_shown_in_plain_words(penstock: Call, table: Scene) -> None:
    assert penstock(*REPROCESS, path(table, "a"), "--rate", "100").exit_code == 0
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["messages"], entry["outcome"]) == ("reprocess", 1, "done")
    assert entry["details"]["objects"] == [table.ref("a").uri]
    (listed,) = penstock("objects", "list", "--only", "unprocessed", "--json").document
    assert (listed["reopened"], listed["rows"], listed["batch"]) == (True, 2, 1)
    assert "unprocessed, reopened" in penstock("objects", "list").out
    assert "to be read again; until then the table keeps the rows of batch 1" in (
        penstock("objects", "show", path(table, "a")).out
    )


def test_one_that_fails_keeps_its_rows_and_can_be_withdrawn(penstock: Call, table: Scene) -> None:
    assert penstock(*REPROCESS, path(table, "a"), path(table, "b")).exit_code == 0
    table.fail("a", AttemptFailure.DEAD, "no such column")
    (failed,) = penstock("objects", "list", "--only", "dead", "--json").document
    assert failed["reason"] == "no such column; the rows of its earlier reading stay in the table"
    assert shown(table) == ROWS
    again = penstock("objects", "reprocess", "--dry-run", path(table, "a"))
    assert again.exit_code == USAGE
    assert "to be read again, and failed: `penstock objects retry`, or --withdraw" in again.err
    result = penstock("objects", "reprocess", "--withdraw", "--yes", path(table, "a"), path(table, "b"))
    assert result.out == "2 objects processed as before.\n"
    assert states(table) == {ObjectState.PROCESSED: 3}
    assert [one["action"] for one in penstock("admin", "audit", "--json").document] == [
        "reprocess withdraw",
        "reprocess",
    ]
    assert penstock("objects", "reprocess", "--withdraw", "--yes", path(table, "a")).exit_code == USAGE


def test_one_that_is_gone_keeps_its_rows_and_says_so(penstock: Call, table: Scene) -> None:
    assert penstock(*REPROCESS, path(table, "a")).exit_code == 0
    table.fail("a", AttemptFailure.DELETED, "a was deleted")
    assert states(table) == {ObjectState.PROCESSED: 3}
    (listed,) = penstock("objects", "list", "--filter", "landing/a", "--json").document
    assert listed["reason"] == f"{KEPT}: a was deleted"
    assert shown(table) == ROWS
    with ledger_of(table) as ledger:
        assert ledger.reopenings.counts(table.where.pipeline)[ReopeningState.KEPT] == 1


def test_an_archived_object_is_read_again_by_name(penstock: Call, table: Scene) -> None:
    with ledger_of(table) as ledger:
        archivist = Archivist(
            ledger=ledger,
            pipeline=table.where.pipeline,
            location=LocalFiles(table.where.state / "archive"),
            probe=lambda _: None,
            clock=FakeClock(),
        )
        assert archivist.run(older_than_seconds=-1.0, up_to_seq=2).objects == 3
    every = penstock(*REPROCESS, "--all")
    assert every.exit_code == USAGE
    assert "3 archived objects not searched: name the ones to read again." in every.err
    result = penstock(*REPROCESS, path(table, "a"))
    assert result.exit_code == 0, result.err
    read_again(table, {"a": [10]})
    assert shown(table) == ROWS | {"a": [10]}
    for file in (table.where.state / "archive").rglob("*.parquet"):
        file.unlink()
    lost = penstock(*REPROCESS, path(table, "b"))
    assert lost.exit_code == USAGE
    assert "archived, and its record cannot be read" in lost.err


class Died(BaseException):
    """Simulates the death of the process."""


@pytest.mark.parametrize("step", [Step.REOPENED, Step.ANNOUNCED])
def test_one_that_dies_leaves_the_rows_and_is_continued_by_the_next_call(
    penstock: Call, table: Scene, step: Step
) -> None:
    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    scope = find_scope(ScopeRequest(), here=Path.cwd())
    selection = ReprocessSelection(uris=[table.ref("a").uri])
    with view(scope, make=True) as seen, closing(scope_ledger(scope, probe=dying)) as ledger, pytest.raises(Died):
        reprocess(
            seen,
            selection,
            plan(seen, selection),
            ledger=ledger,
            stopped=lambda: False,
            on_progress=lambda _: None,
            probe=dying,
        )
    check_after_death(penstock, table)


@pytest.mark.parametrize("step", [Step.REOPENED, pytest.param(Step.ANNOUNCED, marks=pytest.mark.slow)])
def test_a_killed_one_leaves_the_rows_and_is_continued_by_the_next_call(
    penstock: Call, table: Scene, step: Step
) -> None:
    ended = run_forked(
        [sys.executable, "-m", "penstock", *REPROCESS, path(table, "a")],
        env={**os.environ, "PYTHONPATH": str(SRC), "PENSTOCK_KILL_AT": step.value},
        start_new_session=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    check_after_death(penstock, table)


def check_after_death(penstock: Call, table: Scene) -> None:
    assert shown(table) == ROWS
    assert states(table) == {ObjectState.PROCESSED: 2, ObjectState.UNPROCESSED: 1}
    document = penstock(*REPROCESS, "--filter", "landing/a", "--json").document
    assert (document["objects"], document["again"]) == (0, 1)
    assert sent(table)["a"] >= 1
    read_again(table, {"a": [10]})
    assert shown(table) == ROWS | {"a": [10]}


@pytest.mark.parametrize("published", [False, True])
def test_a_repair_imports_a_batch_that_read_objects_again(penstock: Call, table: Scene, published: bool) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()
    assert penstock(*REPROCESS, path(table, "a")).exit_code == 0
    read_again(table, {"a": [10]})
    if published:
        table.read({"later": [7]})
        table.publish()
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert penstock("admin", "publish").exit_code == 0
    assert shown(table) == ROWS | {"a": [10]} | ({"later": [7]} if published else {})
    assert penstock(*REPROCESS, path(table, "a")).exit_code == 0
    read_again(table, {"a": [11]})
    assert shown(table)["a"] == [11]


def test_a_reading_after_a_rollback_follows_the_imported_batches(penstock: Call, table: Scene) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()
    table.read({"later": [7]})
    table.publish()
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    assert penstock(*REPROCESS, path(table, "a")).exit_code == 0
    table.read({"a": [10]}, on_change=OnChange.REPLACE)
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert penstock("admin", "publish").exit_code == 0
    assert shown(table) == ROWS | {"a": [10], "later": [7]}


def test_a_reopened_object_of_a_batch_after_the_rollback_is_not_in_the_table_twice(
    penstock: Call, table: Scene
) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()
    table.read({"d": [7]})
    table.publish()
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    table.read({"d": [7]})  # once more, since the ledger does not know it: never visible
    assert penstock(*REPROCESS, path(table, "d")).exit_code == 0
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert penstock("admin", "publish").exit_code == 0
    assert shown(table) == ROWS | {"d": [7]}
    assert states(table) == {ObjectState.PROCESSED: 4}


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Post(tmp_path)


def test_an_object_handler_is_called_again_once(penstock: Call, post: Post) -> None:
    post.mend()
    post.die("a", "b")  # and so they do not
    assert post.done == ["a", "b"]
    result = penstock("objects", "reprocess", "--app", "post:app", "--yes", "landing/a")
    assert result.exit_code == 0, result.err
    assert result.out == "1 object is to be read again (enqueued in letters).\n"
    post.work()
    post.work()
    assert post.done == ["a", "a", "b"]
    (post.folder / "landing" / "b").unlink()
    assert penstock("objects", "reprocess", "--app", "post:app", "--yes", "landing/b").exit_code == 0
    post.work()
    assert post.done == ["a", "a", "b"]
    listed = penstock("objects", "list", "--app", "post:app", "--json").document
    assert {one["state"] for one in listed} == {"processed"}

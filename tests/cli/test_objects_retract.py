"""`penstock objects retract`: the rows of objects leave the table, once, and a retry brings them back."""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import update
from tests.cli.conftest import Call
from tests.cli.process import SRC
from tests.cli.scene import Scene
from tests.conformance.publishing.batch_maker import shown_files
from tests.services.forked_process import run_forked

from penstock.app.paths import LEDGER_FILE
from penstock.app.tables import Tables
from penstock.errors import PublishHalted
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.ledger.retractions import Retraction
from penstock.ledger.schema import pipelines
from penstock.messaging.replay import REPLAY_ID_ATTRIBUTE
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.operations.objects.retract import plan, retract
from penstock.operations.tables.upkeep import MaintainedPipeline
from penstock.pipeline.batch_record import recorded
from penstock.pipeline.maintenance import table_history
from penstock.pipeline.maintenance.archive import Archivist
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

FAILED, USAGE, TEMPORARY = 1, 2, 75
RETRACT = ("objects", "retract", "--yes")


@pytest.fixture
def table(scene: Scene) -> Scene:
    """Return a table with the rows of three objects in two batches."""
    scene.read({"a": [1, 2], "b": [3]})
    scene.read({"c": [4]})
    scene.publish()
    return scene


def path(scene: Scene, name: str) -> str:
    return f"{scene.source}/{name}"


def shown(scene: Scene) -> Mapping[str, Sequence[int]]:
    """Return the ids in the table by object."""
    found: dict[str, list[int]] = {}
    for file in shown_files(scene.table):
        for row in pq.read_table(file).to_pylist():
            found.setdefault(row["_object"].rpartition("/")[2], []).append(row["id"])
    return {name: sorted(ids) for name, ids in found.items()}


def ledger_of(scene: Scene) -> "closing[Ledger]":
    return closing(Ledger.open(scene.where.state / LEDGER_FILE))


def states(scene: Scene) -> Counter[ObjectState]:
    with ledger_of(scene) as ledger:
        return Counter({state: count for state, count in ledger.counts(scene.where.pipeline).items() if count})


def test_the_rows_of_the_named_objects_leave_in_one_commit(penstock: Call, table: Scene) -> None:
    table.read({"a": [9]}, version="2")  # the file grew: its rows are in the table twice, this batch not yet
    result = penstock(*RETRACT, path(table, "a"), path(table, "c"), "--reason", "wrong customer")
    assert result.exit_code == 0, result.err
    assert result.out == "2 objects retracted with batch 4; 3 rows left the table.\n"
    assert shown(table) == {"b": [3]}
    assert states(table) == {ObjectState.PROCESSED: 1, ObjectState.RETRACTED: 3}


def test_a_dry_run_counts_rows_and_files_and_changes_nothing(penstock: Call, table: Scene) -> None:
    before = shown(table)
    document = penstock("objects", "retract", path(table, "a"), path(table, "c"), "--dry-run", "--json").document
    assert document == {
        "pipeline": table.where.pipeline,
        "dry_run": True,
        "batch": None,
        "visible": False,
        "objects": [
            {"object": table.ref("a").uri, "versions": 1, "rows": 2, "files": 1},
            {"object": table.ref("c").uri, "versions": 1, "rows": 1, "files": 1},
        ],
        "not_processed": [],
        "unknown": [],
    }
    assert shown(table) == before
    assert states(table) == {ObjectState.PROCESSED: 3}
    assert penstock("admin", "audit", "--json").document == []


def test_in_a_table_that_is_only_appended_to_nothing_is_retracted(penstock: Call, table: Scene) -> None:
    DeltaTable(str(table.table)).alter.set_table_properties({"delta.appendOnly": "true"})
    before = shown(table)
    for options in (("--dry-run",), ("--yes",)):
        result = penstock("objects", "retract", path(table, "a"), *options)
        assert (result.exit_code, result.out) == (FAILED, "")
        assert "delta.appendOnly=true" in result.err
    assert (shown(table), states(table)) == (before, {ObjectState.PROCESSED: 3})


def test_its_log_is_silent_unless_the_setting_asks_for_it(
    penstock: Call, table: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = penstock(*RETRACT, path(table, "a"))
    assert (result.exit_code, result.err) == (0, "")
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    result = penstock(*RETRACT, path(table, "b"))
    assert '"event":"' in result.err.replace(" ", "")


def test_without_a_terminal_it_asks_for_yes(penstock: Call, table: Scene) -> None:
    result = penstock("objects", "retract", path(table, "a"))
    assert result.exit_code == USAGE
    assert "give --yes, or --dry-run" in result.err


def test_unknown_and_unprocessed_objects_are_named(penstock: Call, table: Scene) -> None:
    table.fail("bad", AttemptFailure.DEAD, "bad")
    result = penstock(*RETRACT, path(table, "a"), path(table, "none"), path(table, "bad"))
    assert result.exit_code == 0
    assert f"The ledger knows no object {table.ref('none').uri}." in result.err
    assert f"{table.ref('bad').uri} is dead, and left alone." in result.err
    assert set(shown(table)) == {"b", "c"}
    again = penstock(*RETRACT, path(table, "a"))
    assert again.exit_code == USAGE
    assert f"{table.ref('a').uri} is retracted, and left alone." in again.err


def test_an_object_that_is_being_processed_is_refused_with_a_sentence(penstock: Call, table: Scene) -> None:
    with table._state() as state:
        table._claim(state, ["d"])
    result = penstock(*RETRACT, path(table, "a"), path(table, "d"))
    assert result.exit_code == TEMPORARY
    assert f"{table.ref('d').uri} is being processed: retract again once that has ended." in result.err
    assert "Traceback" not in result.err
    assert set(shown(table)) == {"a", "b", "c"}


def test_objects_without_rows_in_the_table_are_retracted_too(penstock: Call, table: Scene) -> None:
    table.read({"empty": []})
    result = penstock(*RETRACT, path(table, "empty"))
    assert result.out == "1 object retracted with batch 4; 0 rows left the table.\n"
    assert states(table)[ObjectState.RETRACTED] == 1


def test_a_pipeline_without_a_table_yet_can_retract(penstock: Call, scene: Scene) -> None:
    scene.process("a", rows=0)
    scene.read({"b": [1]})
    assert penstock(*RETRACT, path(scene, "a")).exit_code == 0
    assert shown(scene) == {"b": [1]}
    assert "3 committed, 0 not yet published" in penstock("status").out


def test_a_table_that_does_not_name_objects_is_refused_with_the_way_out(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    result = penstock(*RETRACT, path(scene, "a"))
    assert result.exit_code == USAGE
    assert "has no column _object" in result.err
    assert "a transform must not drop it" in result.err
    assert states(scene) == {ObjectState.PROCESSED: 1}


def test_rows_that_are_merged_by_key_cannot_be_retracted(penstock: Call, table: Scene) -> None:
    with ledger_of(table) as ledger, ledger.database.writing() as connection:
        connection.execute(update(pipelines).values(merge="{}"))
    result = penstock(*RETRACT, path(table, "a"))
    assert result.exit_code == USAGE
    assert "Retracting objects is not possible" in result.err
    assert "load all objects into a new table" in result.err
    assert shown(table) == {"a": [1, 2], "b": [3], "c": [4]}


def test_it_is_recorded_in_the_audit_log_and_shown_in_plain_words(penstock: Call, table: Scene) -> None:
    assert penstock(*RETRACT, path(table, "a"), "--reason", "wrong customer").exit_code == 0
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["messages"], entry["outcome"]) == ("retract", 1, "done")
    assert entry["details"]["objects"] == [table.ref("a").uri]
    assert entry["details"]["reason"] == "wrong customer"
    (listed,) = penstock("objects", "list", "--only", "retracted", "--json").document
    assert (listed["object"], listed["rows"], listed["batch"]) == (table.ref("a").uri, None, None)
    assert listed["reason"].startswith("retracted by ")
    assert listed["reason"].endswith(": wrong customer")
    timeline = penstock("objects", "show", path(table, "a"), "--json").document[0]["timeline"]
    assert [attempt["outcome"] for attempt in timeline] == ["processed", "retracted"]
    batches = penstock("admin", "batches", "list").out
    assert "1 retracted" in batches
    assert f"retracted  {table.ref('a').uri}" in penstock("admin", "batches", "show", "3").out
    assert penstock("admin", "batches", "show", "3", "--json").document["replaced_objects"] == [table.ref("a").uri]
    status = penstock("status").out
    assert "2 processed, 1 retracted" in status
    assert "3 committed, 0 not yet published" in status


def test_a_retry_enqueues_retracted_objects_and_no_processed_ones(penstock: Call, table: Scene) -> None:
    assert penstock(*RETRACT, path(table, "a"), path(table, "c")).exit_code == 0
    table.send("other")  # creates the queue of the table
    assert penstock("objects", "retry", "--only", "retracted", "--yes", "--json").document["sent"] == 2
    with table._state() as state:
        found = state.broker.receive(table._queue, messages_max=10, lease_seconds=60.0)
    retried = [delivery.message.body for delivery in found if REPLAY_ID_ATTRIBUTE in delivery.message.attributes]
    assert len(retried) == 2
    assert not any(b"landing/b" in body for body in retried)


def test_an_archived_object_is_retracted(penstock: Call, table: Scene) -> None:
    with ledger_of(table) as ledger:
        archivist = Archivist(
            ledger=ledger,
            pipeline=table.where.pipeline,
            location=LocalFiles(table.where.state / "archive"),
            probe=lambda _: None,
            clock=FakeClock(),
        )
        assert archivist.run(older_than_seconds=-1.0, up_to_seq=2).objects == 3
    result = penstock(*RETRACT, path(table, "a"))
    assert result.exit_code == 0, result.err
    assert shown(table) == {"b": [3], "c": [4]}
    assert states(table) == {ObjectState.PROCESSED: 2, ObjectState.RETRACTED: 1}
    archived = penstock("objects", "list", "--archived", "--json").document
    assert [one["object"].rpartition("/")[2] for one in archived] == ["b", "c"]


def test_replaced_rows_are_no_missing_rows(penstock: Call, table: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert penstock(*RETRACT, path(table, "a")).exit_code == 0
    with ledger_of(table) as ledger:
        tables = Tables(table.where, ledger, bus=Bus())
        assert tables.retained_to(0, 3) == 3
        monkeypatch.setattr(table_history, "COMMITS_MAX", 0)  # the log no longer has the commit
        assert tables.shortfalls() == []


def test_rows_that_another_writer_removed_are_missing_after_a_retraction_too(penstock: Call, table: Scene) -> None:
    assert penstock(*RETRACT, path(table, "a")).exit_code == 0
    write_deltalake(str(table.table), pa.table({"id": [7], "_object": ["other"]}), mode="overwrite")
    with ledger_of(table) as ledger:
        (found,) = Tables(table.where, ledger, bus=Bus()).shortfalls()
    assert found.is_explained
    assert "rows that batches wrote are no longer in the table" in found.text


def test_if_the_log_does_not_explain_an_absent_file_replaced_rows_are_no_evidence(
    penstock: Call, table: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock(*RETRACT, path(table, "a")).exit_code == 0
    monkeypatch.setattr(table_history.RowLossCheck, "_changes", lambda self: iter(()))
    with ledger_of(table) as ledger, pytest.raises(PublishHalted, match="batches replaced rows, so their number is no"):
        Tables(table.where, ledger, bus=Bus()).retained_to(0, 3)


STEPS = [Step.RECORDED, Step.COMMITTING, Step.COMMITTED, Step.PUBLISHING, Step.REWRITTEN, Step.ROWS_PUBLISHED]


class Died(BaseException):
    """Simulates the death of the process."""


def retract_here(scene: Scene, *names: str, probe: Probe = no_probe) -> None:
    """Retract objects as a process of its own would."""
    with closing(Ledger.open(scene.where.state / LEDGER_FILE, probe=probe)) as ledger:
        pipeline = MaintainedPipeline(paths=scene.where, ledger=ledger, bus=Bus(), probe=probe)
        planned = plan({pipeline.pipeline: pipeline}, [scene.ref(name).uri for name in names], scene.where.aws)
        if planned.versions:
            retract(planned, reason=None)


def check_after_death(penstock: Call, table: Scene, step: Step) -> None:
    is_committed = step not in (Step.RECORDED, Step.COMMITTING)
    assert (states(table)[ObjectState.RETRACTED] == 1) is is_committed
    assert ("a" in shown(table)) is (step is not Step.ROWS_PUBLISHED)
    if is_committed:
        assert penstock("admin", "publish").exit_code == 0
    else:
        assert penstock(*RETRACT, path(table, "a")).exit_code == 0
    assert shown(table) == {"b": [3], "c": [4]}
    assert states(table) == {ObjectState.PROCESSED: 2, ObjectState.RETRACTED: 1}
    assert penstock("status", "--check").exit_code == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_retraction_that_dies_at_any_step_has_all_or_nothing_and_can_be_repeated(
    penstock: Call, table: Scene, step: Step
) -> None:
    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    with pytest.raises(Died):
        retract_here(table, "a", probe=dying)
    check_after_death(penstock, table, step)


@pytest.mark.parametrize(
    "step", [step if step is Step.REWRITTEN else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_a_killed_retraction_has_all_or_nothing_and_can_be_repeated(penstock: Call, table: Scene, step: Step) -> None:
    ended = run_forked(
        [sys.executable, "-m", "penstock", *RETRACT, path(table, "a")],
        env={**os.environ, "PYTHONPATH": str(SRC), "PENSTOCK_KILL_AT": step.value},
        start_new_session=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    check_after_death(penstock, table, step)


def test_retractions_batches_and_publishers_at_once_end_as_the_ledger_says(table: Scene) -> None:
    ended = threading.Event()
    raised: list[BaseException] = []

    def catching(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    def publishing() -> None:
        with ledger_of(table) as ledger:
            while not ended.is_set():
                Tables(table.where, ledger, bus=Bus()).publish()

    jobs: list[Callable[[], None]] = [
        publishing,
        lambda: retract_here(table, "a", "c"),
        lambda: retract_here(table, "a", "b"),
    ]
    threads = [threading.Thread(target=catching, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for number in range(5):
        table.read({f"later-{number}": [100 + number]})
    for thread in threads[1:]:
        thread.join(120)
    ended.set()
    threads[0].join(120)
    assert not raised
    table.publish()
    assert shown(table) == {f"later-{number}": [100 + number] for number in range(5)}
    assert states(table) == {ObjectState.PROCESSED: 5, ObjectState.RETRACTED: 3}


def test_a_repair_imports_a_retraction_again(penstock: Call, table: Scene) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()
    assert penstock(*RETRACT, path(table, "a")).exit_code == 0
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert states(table) == {ObjectState.PROCESSED: 2, ObjectState.RETRACTED: 1}
    table.read({"later": [7]})
    table.publish()
    assert shown(table) == {"b": [3], "c": [4], "later": [7]}
    assert len(recorded(table.where.table)) == 4


def test_an_object_handler_has_no_rows_to_retract(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "post.py").write_text(
        "from penstock import App\n\napp = App()\n\n\n"
        'app.object_handler("letters", name="post", source="landing")(lambda each, ctx: None)\n'
    )
    monkeypatch.chdir(tmp_path)
    Scene.of_app(tmp_path, "post")
    result = penstock(*RETRACT, "--app", "post:app", "--pipeline", "post", "landing/a")
    assert result.exit_code == USAGE
    assert "post is an object handler: it writes no table" in result.err


def test_a_repair_finds_a_retraction_that_was_published_together_with_later_batches(
    penstock: Call, table: Scene
) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()

    def dying(reached: Step) -> None:
        if reached is Step.COMMITTED:
            raise Died

    with pytest.raises(Died):
        retract_here(table, "a", probe=dying)
    table.read({"later": [7]})
    table.publish()
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert states(table) == {ObjectState.PROCESSED: 3, ObjectState.RETRACTED: 1}
    assert shown(table) == {"b": [3], "c": [4], "later": [7]}


def test_a_retraction_after_a_rollback_follows_the_imported_batches_and_covers_them(
    penstock: Call, table: Scene
) -> None:
    backup = (table.where.state / LEDGER_FILE).read_bytes()
    table.read({"a": [5]}, version="2")
    table.publish()
    (table.where.state / LEDGER_FILE).write_bytes(backup)
    with ledger_of(table) as ledger:
        ledger.retractions.retract(
            Retraction(
                pipeline=table.where.pipeline,
                attempt_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
                worker="w",
                addresses=[table.ref("a").uri],
                reason="before the repair",
            )
        )
    assert penstock("admin", "repair", "--yes").exit_code == 0
    assert penstock("admin", "publish").exit_code == 0
    assert shown(table) == {"b": [3], "c": [4]}
    assert states(table) == {ObjectState.PROCESSED: 2, ObjectState.RETRACTED: 2}


def test_the_pipelines_of_an_app_are_known_by_its_code(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.read({"a": [1], "b": [2]})
    app_scene.publish()
    without = penstock(*RETRACT, "--pipeline", "clicks", path(app_scene, "a"))
    assert without.exit_code == USAGE
    assert "give --app" in without.err
    result = penstock(*RETRACT, "--app", shop, path(app_scene, "a"))
    assert result.out == "1 object retracted with batch 2; 1 row left the table.\n", result.err
    assert shown(app_scene) == {"b": [2]}

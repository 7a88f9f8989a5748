"""`penstock status`: its first line summarizes what needs a person; and which table commands use."""

import json
import re
import shlex
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.cli.conftest import Call, CommandResult
from tests.cli.scene import SCHEMA, Scene

from penstock.app.scope import Scope, ScopeRequest, find_scope
from penstock.brokers import capabilities
from penstock.brokers.sqlite import broker
from penstock.ledger.records import AttemptFailure, OnChange
from penstock.operations.status.model import Status
from penstock.operations.status.status import read_status

USAGE, CHECK_FOUND_PROBLEMS, CONFIGURATION = 2, 3, 78
COMMANDS = [
    ("status",),
    ("objects", "list"),
    ("objects", "show", "x"),
    ("admin", "batches", "list"),
    ("dead", "list"),
    ("admin", "gc"),
]


def summary(result: CommandResult) -> str:
    assert (result.exit_code, result.err) == (0, "")
    return "; ".join(takewhile(lambda line: not line.startswith(("table ", "ledger ")), result.out.splitlines()))


def test_a_new_data_directory_is_all_well(penstock: Call, scene: Scene) -> None:
    result = penstock("status")
    assert summary(result) == "all well"
    assert "(delta, no version yet)" in result.out
    assert "none running" in result.out
    document = penstock("status", "--json").document
    assert (document["summary"], document["problems"], document["table_version"]) == ("all well", [], None)
    assert set(document["objects"].values()) == {0}


def test_control_characters_in_the_name_of_a_queue_do_not_reach_the_terminal(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    penstock("send", "or\x1b[2J\nders", "--body", "1")
    result = penstock("status")
    assert "\x1b" not in result.out + result.err
    assert [line for line in result.out.splitlines() if line.startswith("queue or\\x1b[2J\\nders  1 visible")]


def test_unpublished_batches_are_reported_until_they_are_published(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b")
    assert summary(penstock("status")) == "lagging: batches committed and not yet published: 1"
    assert penstock("status", "--json").document["batches_unpublished"] == 1
    scene.publish()
    result = penstock("status")
    assert summary(result) == "all well"
    assert "2 processed" in result.out
    assert "(delta, version 1)" in result.out
    document = penstock("status", "--json").document
    assert (document["table_format"], document["table_version"] is not None) == ("delta", True)
    assert document["pipelines"][0]["table_format"] == "delta"


def test_replaced_versions_are_counted_with_their_rows(penstock: Call, scene: Scene) -> None:
    scene.read({"a": [1, 2], "b": [3]}, on_change=OnChange.REPLACE)
    assert "changed object" not in penstock("status").out
    scene.read({"a": [4]}, version="2", on_change=OnChange.REPLACE)
    scene.publish()
    assert "2 committed, 0 not yet published; 2 earlier rows of 1 changed object replaced" in penstock("status").out
    scene.read({"a": [5], "b": [6, 7]}, version="3", on_change=OnChange.REPLACE)
    document = penstock("status", "--json").document
    assert (document["replaced_objects"], document["replaced_rows"]) == (3, 4)
    assert "processed (counted by version, a changed object several times)" in penstock("status").out
    (pipeline,) = document["pipelines"]
    assert (pipeline["replaced_objects"], pipeline["replaced_rows"]) == (3, 4)


def test_failed_objects_and_dead_letters_are_reported(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.dead_letter(b"?", "no JSON")
    assert summary(penstock("status")) == "failed objects: 1; dead letters: 1"
    assert penstock("status", "--json").document["problems"] == ["failed objects: 1", "dead letters: 1"]


def test_waiting_messages_are_a_problem_only_without_a_worker(penstock: Call, scene: Scene) -> None:
    scene.send("a", "b")
    [queue] = [one["queue"] for one in penstock("status", "--json").document["queues"]]
    assert summary(penstock("status")) == f"no consumer: 2 messages wait in {queue}, and no worker runs"
    scene.fail("a", AttemptFailure.RETRY, "once more")
    assert summary(penstock("status")) == f"no consumer: objects waiting with no worker running: 1 in {queue}"
    with scene.worker() as worker:
        result = penstock("status")
        assert summary(result) == "at work"
        assert worker in result.out
        document = penstock("status", "--json").document
    assert document["workers"] == [worker]
    assert document["messages"]["visible"] == 2
    assert document["messages"]["oldest_visible_age_seconds"] >= 0


def test_objects_without_a_worker_name_the_queue_of_their_pipeline(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.fail("a", AttemptFailure.RETRY, "once more")
    waiting = "no consumer: objects waiting with no worker running: 1"
    assert summary(penstock("status", "--app", shop)) == f"{waiting} in clicks-files"
    assert summary(penstock("status")) == waiting  # no app says which queue, and none has messages


def test_a_broker_without_queues_is_noted(penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    app_scene.process("a")
    assert penstock("status", "--json").document["notes"] == []
    monkeypatch.setenv("PENSTOCK_BROKER", "sqlite:///elsewhere/queue.db")
    note = f"there is no queue in {Path.cwd() / 'elsewhere' / 'queue.db'} yet (setting broker)"
    assert summary(penstock("status")).endswith(f"; {note}")
    assert penstock("status", "--json").document["notes"] == [note]
    assert not (Path.cwd() / "elsewhere").exists()


def test_an_unknown_queue_in_lagging_queues_is_noted(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.send("a")
    monkeypatch.setenv("PENSTOCK_ALERTS_LAGGING_QUEUES", '{"clicks-files": 60, "cliks-files": 60}')
    assert summary(penstock("status")).endswith(
        "; alerts.lagging_queues names queues that were not checked: cliks-files"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_needs_table_if_there_are_two(penstock: Call, scene: Scene, command: tuple[str, ...]) -> None:
    (Path.cwd() / "orders" / "_penstock").mkdir(parents=True)
    result = penstock(*command)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "--table" in result.err
    assert "clicks, orders" in result.err
    result = penstock(*command, "--table", "orders")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "no data directory of Penstock" in result.err


def test_the_current_folder_is_the_default_table(penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.table)
    assert penstock("status", "--json").document["table"] == str(scene.table)


def test_commands_without_a_data_directory_create_nothing(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("status",),
        ("status", "--table", "t"),
        ("admin", "gc", "--table", "t"),
        ("dead", "list", "--data-dir", "s"),
    ):
        assert penstock(*arguments).exit_code == USAGE
    assert list(tmp_path.iterdir()) == []


# Replaced failures


def test_a_failed_version_replaced_by_a_later_one_is_no_problem(penstock: Call, scene: Scene) -> None:
    message_id = scene.dead_letter(b"{}", "truncated")
    scene.fail("a", AttemptFailure.DEAD, "truncated", message_id=message_id)
    scene.publish()
    assert summary(penstock("status")) == "failed objects: 1; dead letters: 1"
    scene.process("a", version="2")
    scene.publish()
    result = penstock("status")
    assert summary(result) == "all well"
    assert "1 dead (1 of them replaced by a later version)" in result.out
    document = penstock("status", "--json").document
    assert (document["objects"]["dead"], document["objects_replaced"]) == (1, 1)
    assert (document["dead_letters"], document["dead_letters_replaced"]) == (1, 1)


def test_the_number_of_replaced_dead_letters_is_unknown_if_they_cannot_be_browsed(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "SQLITE", replace(capabilities.SQLITE, browsable=False))
    message_id = scene.dead_letter(b"{}", "truncated")
    scene.fail("a", AttemptFailure.DEAD, "truncated", message_id=message_id)
    scene.publish()
    assert penstock("status", "--json").document["dead_letters_replaced"] == 0
    scene.process("a", version="2")
    scene.publish()
    result = penstock("status", "--json").document
    assert (result["dead_letters"], result["dead_letters_replaced"]) == (1, None)
    assert summary(penstock("status")).startswith("dead letters: 1; objects were replaced by later versions")


def test_a_failed_version_without_a_later_processed_one_stays_a_problem(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.fail("a", AttemptFailure.DEAD, "an earlier version is no help", version="2")
    scene.fail("b", AttemptFailure.DEAD, "bad", message_id="m-b")
    scene.fail("b", AttemptFailure.DEAD, "still bad", version="2", message_id="m-b")
    scene.fail("c", AttemptFailure.DEAD, "bad", message_id="m-b")
    scene.process("c", version="2")
    scene.dead_letter(b"?", "no JSON")
    scene.publish()
    assert summary(penstock("status")) == "failed objects: 3; dead letters: 1"


def test_a_dead_letter_about_several_objects_stays_until_all_are_replaced(penstock: Call, scene: Scene) -> None:
    message_id = scene.dead_letter(b"{}", "two records")
    for name in ("a", "b"):
        scene.fail(name, AttemptFailure.DEAD, "bad", message_id=message_id)
    scene.process("a", version="2")
    scene.publish()
    assert summary(penstock("status")) == "failed objects: 1; dead letters: 1"
    scene.process("b", version="2")
    scene.publish()
    assert summary(penstock("status")) == "all well"


def test_a_lost_ledger_is_reported_as_disagreeing_with_its_table(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (scene.where.state / name).unlink(missing_ok=True)
    with scene.worker():
        pass
    assert summary(penstock("status")).startswith("missing: table and ledger disagree: The table ")
    assert "`penstock admin repair` imports the batches from the table" in penstock("status").out


def test_another_data_directory_is_reported_as_disagreeing_with_the_table(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    other = Scene.at(scene.source.parent / "other")
    result = penstock("status", "--table", "clicks", "--data-dir", other.where.state)
    assert summary(result).startswith("missing: table and ledger disagree: ")


def test_a_delta_table_that_penstock_did_not_write_is_a_problem(penstock: Call, scene: Scene) -> None:
    DeltaTable.create(str(scene.table), SCHEMA)
    assert "its ledger committed nothing to it" in summary(penstock("status"))


# The data directory of an app


def test_the_data_directory_of_an_app_is_found_by_its_settings(penstock: Call, app_scene: Scene) -> None:
    app_scene.process("a", "b")
    result = penstock("status")
    assert summary(result) == "all well"
    assert "pipeline clicks  objects: 2 processed; batches: 1 committed; --app shows whether" in result.out
    document = penstock("status", "--json").document
    assert (document["table"], document["batches_unpublished"]) == (None, None)
    (pipeline,) = document["pipelines"]
    assert (pipeline["pipeline"], pipeline["objects"]["processed"]) == ("clicks", 2)


def test_an_app_shows_its_tables_and_unpublished_batches(
    penstock: Call, app_scene: Scene, shop: str, tmp_path: Path
) -> None:
    app_scene.process("a")
    result = penstock("status", "--app", shop)
    assert summary(result) == "lagging: batches committed and not yet published: 1"
    assert f"table {app_scene.table} (delta, no version yet)" in result.out
    app_scene.publish()
    result = penstock("status", "--app", shop)
    assert summary(result) == "all well"
    assert "0 not yet published" in result.out
    (tmp_path / "elsewhere").mkdir()
    Scene.of_app(tmp_path, "unknown").process("a")
    assert penstock("status", "--app", shop, "--json").document["batches_unpublished"] is None


def test_queues_of_an_app_are_shown_with_their_depth_and_workers(penstock: Call, app_scene: Scene) -> None:
    app_scene.dead_letter(b"?", "no JSON")
    app_scene.send("a", "b")
    result = penstock("status")
    assert summary(result) == "no consumer: 2 messages wait in clicks-files, and no worker runs; dead letters: 1"
    assert result.out.splitlines()[:2] == [
        "no consumer: 2 messages wait in clicks-files, and no worker runs",
        "dead letters: 1",
    ]
    assert "queue clicks-files  2 visible, 0 in flight, 0 delayed; the oldest visible one is 0 s old" in result.out
    assert "1 dead letter\n" in result.out
    with app_scene.serving("clicks-files") as worker:
        assert summary(penstock("status")) == "dead letters: 1"
        document = penstock("status", "--json").document
        assert document["workers"] == [worker]
        assert [(one["queue"], one["workers"]) for one in document["queues"]] == [("clicks-files", [worker])]
    with app_scene.serving("orders"):
        assert (
            summary(penstock("status"))
            == "no consumer: 2 messages wait in clicks-files, which no worker consumes; dead letters: 1"
        )
    with app_scene.serving("clicks-files", drained=True) as worker:  # it receives no more, whatever waits
        result = penstock("status")
        assert (
            summary(result) == "no consumer: 2 messages wait in clicks-files, which no worker consumes; dead letters: 1"
        )
        assert f"{worker} (draining)\n" in result.out
    with app_scene.worker():  # a process that does not report which queues it serves
        assert summary(penstock("status")) == "dead letters: 1"


def test_commands_create_no_ledger_for_an_app_with_handlers_only(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock("send", "orders", "--body", "1").exit_code == 0
    assert summary(penstock("status")) == "no consumer: 1 message waits in orders, and no worker runs"
    assert penstock("objects", "list").err == "No such objects.\n"
    assert penstock("dead", "list").err == "No dead letters.\n"
    assert not (tmp_path / ".penstock" / "ledger.db").exists()


def test_the_ledger_setting_locates_the_data_of_an_app(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = penstock("status")
    assert result.exit_code == USAGE
    assert "sqlite:///.penstock/ledger.db" in result.err
    monkeypatch.setenv("PENSTOCK_LEDGER", f"sqlite:///{tmp_path}/.penstock/ledger.db")
    assert summary(penstock("status")).startswith("failed objects: 1; there is no queue in ")
    assert list((tmp_path / "empty").iterdir()) == []


def test_status_of_a_queue_in_memory_is_a_configuration_error(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "memory://")
    assert penstock("objects", "list").exit_code == 0
    result = penstock("status")
    assert result.exit_code == CONFIGURATION
    assert "memory://" in result.err


# Selecting a scope


def test_table_and_pipeline_options_select_the_scope(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.process("a")
    app_scene.process("b", "c")

    def processed(*options: object) -> int:
        number: int = penstock("status", "--json", *options).document["objects"]["processed"]
        return number

    assert processed("--table", "clicks") == 1
    assert processed("--pipeline", "clicks") == 2
    assert processed("--table", "clicks", "--pipeline", "clicks") == 1


def test_the_table_of_a_pipeline_is_not_treated_as_a_table_of_an_ingest(penstock: Call, app_scene: Scene) -> None:
    Path(str(app_scene.where.work)).mkdir(parents=True)
    app_scene.process("a")
    assert penstock("status", "--json").document["objects"]["processed"] == 1
    result = penstock("status", "--table", "tables/clicks")
    assert result.exit_code == USAGE
    assert "--pipeline NAME" in result.err


def test_invalid_settings_do_not_affect_a_local_table_that_is_named(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", "many")
    assert summary(penstock("status", "--table", "clicks")) == "all well"
    result = penstock("status")
    assert (result.exit_code, result.out) == (CONFIGURATION, ""), "they may name an app"
    assert "The setting objects.max_batch_objects" in result.err
    assert penstock("status", "--pipeline", "clicks").exit_code == CONFIGURATION
    assert penstock("status", "--table", "s3://lake/clicks").exit_code == CONFIGURATION


# Exit codes for programs


def test_a_check_fails_only_if_a_problem_exists(penstock: Call, app_scene: Scene) -> None:
    assert penstock("status", "--check").exit_code == 0
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    result = penstock("status", "--check", "--json")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    document = json.loads(result.out)
    assert (document["problem_kinds"], document["problems"], document["warnings"]) == (
        ["failed"],
        ["failed objects: 1"],
        [],
    )
    assert penstock("status").exit_code == 0


def test_a_queue_is_lagging_after_the_configured_time(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.send("a")
    monkeypatch.setenv("PENSTOCK_ALERTS_LAGGING_QUEUES", '{"clicks-files": 0.000001}')
    with app_scene.serving("clicks-files"):
        lagging = summary(penstock("status"))
        assert lagging.startswith("lagging: the oldest visible message of clicks-files is ")
        (one,) = penstock("status", "--json").document["lagging"]
        assert (one["queue"], one["after_seconds"], one["no_consumer"]) == ("clicks-files", 0.000001, False)
        monkeypatch.delenv("PENSTOCK_ALERTS_LAGGING_QUEUES")
        assert summary(penstock("status")) == "all well"


def test_the_line_of_a_queue_shows_the_ages_that_the_status_uses(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.send("a")

    def later(scope: Scope) -> Status:
        found = read_status(scope)
        queues = [replace(one, oldest_visible_message_age_seconds=1285.0) for one in found.queues]
        return replace(found, queues=queues)

    monkeypatch.setattr("penstock.cli.status.read_status", later)
    assert "queue clicks-files  1 visible, 0 in flight, 0 delayed; the oldest visible one is 21 min old\n" in (
        penstock("status").out
    )


def test_an_object_that_waits_too_long_is_overdue(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.fail("a", AttemptFailure.RETRY, "once more")
    with app_scene.serving("clicks-files"):
        assert summary(penstock("status")) == "at work"
        monkeypatch.setenv("PENSTOCK_OBJECTS_OVERDUE_AFTER", "0.000001")
        result = penstock("status")
        assert summary(result).startswith("missing: objects overdue: 1, the oldest for ")
        assert "overdue: 1;" in result.out
        assert penstock("status", "--json").document["pipelines"][0]["objects_overdue"] == 1


def test_an_ingest_is_never_lagging_or_overdue(scene: Scene) -> None:
    scene.send("a")
    scene.fail("a", AttemptFailure.RETRY, "once more")
    scope = find_scope(ScopeRequest(), here=Path.cwd())
    impatient = scope.settings.model_copy(update={"alerts_lagging_after": 1e-6, "objects_overdue_after": 1e-6})
    with scene.worker():
        found = read_status(replace(scope, settings=impatient))
        as_app = read_status(replace(scope, settings=impatient, table=None))
    assert (found.summary, found.lagging, found.objects_overdue) == ("at work", (), 0)
    assert as_app.problem_kinds == ["missing", "lagging"], "for an app it would be"


def test_dead_letters_that_are_being_replayed_are_a_warning(penstock: Call, app_scene: Scene) -> None:
    app_scene.dead_letter(b"?", "no JSON")
    assert summary(penstock("status")) == "dead letters: 1"
    with app_scene.serving("clicks-files", "clicks-files-dlq"):
        result = penstock("status")
        assert summary(result) == "all well; dead letters that wait for their replay: 1"
        assert "1 (1 of them wait for their replay)" in result.out
        assert penstock("status", "--check").exit_code == 0


READ_ONLY_COMMANDS = [
    ("status",),
    ("status", "--watch", "--once"),
    ("objects", "list"),
    ("admin", "batches", "list"),
    ("dead", "list"),
    ("dead", "groups"),
]
CHANGING_COMMANDS = [
    ("admin", "gc"),
    ("dead", "replay", "--error", "bad", "--yes"),
    ("dead", "purge", "--error", "bad", "--yes"),
    ("objects", "retry", "landing/a", "--yes"),
]


@pytest.mark.parametrize("command", READ_ONLY_COMMANDS)
def test_read_only_commands_show_an_app_and_a_table_in_one_folder(
    penstock: Call, scene: Scene, app_scene: Scene, command: tuple[str, ...]
) -> None:
    result = penstock(*command)
    assert result.exit_code == 0, result.err
    assert result.out.index("App (ledger sqlite:///.penstock/ledger.db)") < result.out.index(f"Table {scene.table}")
    assert penstock(*command, "--json").exit_code == 0


def test_the_status_of_an_app_and_a_table_reports_the_problems_of_both(
    penstock: Call, scene: Scene, app_scene: Scene
) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    app_scene.send("b")
    result = penstock("status", "--check")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    first = result.out.splitlines()[0]
    assert "1 message waits in clicks-files, and no worker runs" in first
    assert "failed objects: 1" in first
    document = penstock("status", "--json").document
    assert document["problem_kinds"] == ["no consumer", "failed"]
    assert [one["table"] for one in document["scopes"]] == [None, str(scene.table)]


def test_an_object_is_found_in_the_app_or_the_table(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.process("a")
    [row] = penstock("objects", "list", "--json").document
    assert penstock("objects", "show", row["object"], "--json").document[0]["state"] == "processed"
    assert penstock("admin", "batches", "show", 1, "--json").document["batch"] == 1
    result = penstock("objects", "show", "nothing")
    assert result.exit_code == USAGE
    assert penstock("admin", "audit", "--json").document == []


@pytest.mark.parametrize("command", CHANGING_COMMANDS)
def test_commands_that_change_data_need_a_scope_if_there_are_two(
    penstock: Call, scene: Scene, app_scene: Scene, command: tuple[str, ...]
) -> None:
    result = penstock(*command)
    assert result.exit_code == USAGE
    assert "--table FOLDER" in result.err
    assert "--app APP" in result.err


# Rows that another writer removed


def test_a_restore_by_another_writer_is_reported_with_its_batches(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    before = DeltaTable(str(scene.table)).version()
    scene.process("b")
    scene.process("c")
    scene.publish()
    assert summary(penstock("status")) == "all well"
    DeltaTable(str(scene.table)).restore(before)
    scene.process("d")
    scene.publish()  # publishing continues: the position survives a restore
    result = penstock("status", "--check")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert result.out.startswith("missing: version ")
    assert (
        "(RESTORE, by another writer) removed rows: 4 rows that batches wrote are no longer in the table" in result.out
    )
    assert "(batches 2, 3)" in result.out.splitlines()[0]


def test_rows_restored_again_are_no_longer_missing(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    before = DeltaTable(str(scene.table)).version()
    scene.process("b")
    scene.publish()
    DeltaTable(str(scene.table)).restore(before)
    assert not summary(penstock("status")).startswith("all well")
    DeltaTable(str(scene.table)).restore(before + 1)
    assert summary(penstock("status")) == "all well"


def test_an_overwrite_is_reported_and_a_deliberate_delete_is_not(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b")
    scene.publish()
    table = DeltaTable(str(scene.table))
    table.optimize.compact()
    table.delete(f"{table.schema().fields[0].name} IS NOT NULL")
    assert summary(penstock("status")) == "all well"
    scene.process("c")
    scene.publish()
    table = DeltaTable(str(scene.table))
    write_deltalake(str(scene.table), table.to_pyarrow_table().slice(0, 0), mode="overwrite")
    assert "by another writer) removed rows" in summary(penstock("status"))


# Remedies


def test_the_commands_named_in_hints_retry_failed_objects(penstock: Call, scene: Scene) -> None:
    scene.send("b")  # as an ingest does
    scene.fail("a", AttemptFailure.DEAD, "bad")
    for command in (("status",), ("objects", "list"), ("objects", "show", scene.ref("a").uri)):
        result = penstock(*command)
        replay, retry = re.findall(r"`(penstock [^`]+)`", result.out + result.err)
        assert replay.startswith("penstock dead replay")
        penstock(*shlex.split(replay)[1:], "--yes")  # no dead letter: the message names the command to run then
        sent = penstock(*shlex.split(retry)[1:], "--yes")
        assert sent.exit_code == 0, sent.err
        assert sent.out.startswith("1 object enqueued again")


def test_commits_of_other_writers_are_shown(penstock: Call, scene: Scene) -> None:
    from tests.services.spark_writer import ENGINE, SparkWriter

    from penstock.storage.local import LocalFiles

    files = LocalFiles(scene.table.resolve())
    spark = SparkWriter(files=files)
    scene.process("a")
    scene.publish()
    late = spark.append({"id": [100]})
    scene.process("b")
    scene.publish()
    scene.process("c")
    scene.publish()
    version = late.put()
    spark.delete({100}).put()
    assert penstock("status", "--json").document["pipelines"][0]["foreign_commits"] == []
    scene.publish()
    result = penstock("status")
    assert summary(result) == (
        f"all well; version {version} of {files.uri} (WRITE by {ENGINE}) replaced a commit, "
        "whose batches were published again; that writer needs a log store that commits on condition"
    )
    assert f"DELETE by {ENGINE} (version {version + 2}, " in result.out
    assert " and 1 more" in result.out
    document = penstock("status", "--json").document
    (one, another) = document["pipelines"][0]["foreign_commits"]
    assert (one["operation"], one["replaced_from"]) == ("DELETE", None)
    assert (another["version"], another["engine"], another["operation"]) == (version, ENGINE, "WRITE")
    assert (another["replaced_from"], another["replaced_to"]) == (2, 2)
    assert len(document["warnings"]) == 1


def test_failed_objects_of_several_pipelines_have_one_line_that_shows_their_causes(
    penstock: Call, app_scene: Scene, tmp_path: Path, shop: str
) -> None:
    for scene in (app_scene, Scene.of_app(tmp_path, "views")):
        scene.fail("a", AttemptFailure.DEAD, "bad")
        scene.dead_letter(b"?", "no JSON")
    result = penstock("status", "--app", shop)
    [advice] = [line for line in result.out.splitlines() if line.startswith("-> ")]
    assert advice == (
        f"-> Objects of 2 pipelines failed: `penstock dead groups --app {shop}` shows why. Once a cause is fixed, "
        f"`penstock dead replay --app {shop} --error GROUP` tries them again."
    )
    groups, replay = re.findall(r"`(penstock [^`]+)`", advice)
    assert "no JSON" in penstock(*shlex.split(groups)[1:]).out
    sent = penstock(*shlex.split(replay.replace("GROUP", "'no JSON'"))[1:], "--yes")
    assert (sent.exit_code, sent.out.split()[0]) == (0, "2"), sent

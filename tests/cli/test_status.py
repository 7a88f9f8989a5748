"""`penstock status`: the first line says what needs a person; and which table the verbs mean."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.cli.conftest import Call, Said
from tests.cli.scene import SCHEMA, Scene

from penstock.app.scope import Scope, ScopeRequest, find_scope
from penstock.brokers import capabilities
from penstock.brokers.sqlite import broker
from penstock.ledger.records import AttemptFailure
from penstock.operations.status.model import Status
from penstock.operations.status.status import read_status

USAGE, CHECK_FOUND_PROBLEMS, CONFIGURATION = 2, 3, 78
VERBS = [
    ("status",),
    ("objects", "list"),
    ("objects", "show", "x"),
    ("admin", "batches", "list"),
    ("dead", "list"),
    ("admin", "gc"),
]


def verdict(said: Said) -> str:
    assert (said.exit_code, said.err) == (0, "")
    return said.out.splitlines()[0]


def test_a_new_state_is_well(penstock: Call, scene: Scene) -> None:
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "(no version yet)" in said.out
    assert "none running" in said.out
    document = penstock("status", "--json").document
    assert (document["summary"], document["problems"], document["table_version"]) == ("all well", [], None)
    assert set(document["objects"].values()) == {0}


def test_what_is_committed_and_not_published_is_reported_until_it_is(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b")
    assert verdict(penstock("status")) == "lagging: batches committed and not yet published: 1"
    assert penstock("status", "--json").document["batches_unpublished"] == 1
    scene.publish()
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "2 processed" in said.out
    assert penstock("status", "--json").document["table_version"] is not None


def test_the_dead_are_reported(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.bury(b"?", "no JSON")
    assert verdict(penstock("status")) == "failed objects: 1; dead letters: 1"
    assert penstock("status", "--json").document["problems"] == ["failed objects: 1", "dead letters: 1"]


def test_waiting_messages_are_a_problem_only_without_a_worker(penstock: Call, scene: Scene) -> None:
    scene.send("a", "b")
    assert verdict(penstock("status")) == "no consumer: messages waiting with no worker running: 2"
    scene.fail("a", AttemptFailure.RETRY, "once more")
    assert verdict(penstock("status")) == "no consumer: objects waiting with no worker running: 1"
    with scene.worker() as worker:
        said = penstock("status")
        assert verdict(said) == "at work"
        assert worker in said.out
        document = penstock("status", "--json").document
    assert document["workers"] == [worker]
    assert document["messages"]["visible"] == 2
    assert document["messages"]["oldest_visible_age_seconds"] >= 0


def test_a_broker_that_is_somewhere_else_is_reported(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.process("a")
    assert penstock("status", "--json").document["notes"] == []
    monkeypatch.setenv("PENSTOCK_BROKER", "sqlite:///elsewhere/queue.db")
    note = f"there is no queue in {Path.cwd() / 'elsewhere' / 'queue.db'} yet (setting broker)"
    assert verdict(penstock("status")).endswith(f"; {note}")
    assert penstock("status", "--json").document["notes"] == [note]
    assert not (Path.cwd() / "elsewhere").exists()


def test_a_slip_in_late_queues_is_reported(penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    app_scene.send("a")
    monkeypatch.setenv("PENSTOCK_ALERTS_LAGGING_QUEUES", '{"clicks-files": 60, "cliks-files": 60}')
    assert verdict(penstock("status")).endswith(
        "; alerts.lagging_queues names queues that were not checked: cliks-files"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_asks_which_table_where_there_are_two(penstock: Call, scene: Scene, verb: tuple[str, ...]) -> None:
    (Path.cwd() / "orders" / "_penstock").mkdir(parents=True)
    said = penstock(*verb)
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "--table" in said.err
    assert "clicks, orders" in said.err
    said = penstock(*verb, "--table", "orders")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "no Penstock state" in said.err


def test_the_table_of_the_current_folder_goes_without_saying(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scene.table)
    assert penstock("status", "--json").document["table"] == str(scene.table)


def test_looking_at_nothing_makes_nothing(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("status",),
        ("status", "--table", "t"),
        ("admin", "gc", "--table", "t"),
        ("dead", "list", "--data-dir", "s"),
    ):
        assert penstock(*arguments).exit_code == USAGE
    assert list(tmp_path.iterdir()) == []


# What was mended


def test_a_dead_version_that_a_later_one_replaced_is_no_trouble(penstock: Call, scene: Scene) -> None:
    letter = scene.bury(b"{}", "truncated")
    scene.fail("a", AttemptFailure.DEAD, "truncated", message_id=letter)
    scene.publish()
    assert verdict(penstock("status")) == "failed objects: 1; dead letters: 1"
    scene.process("a", version="2")
    scene.publish()
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "1 dead (1 of them replaced by a later version)" in said.out
    document = penstock("status", "--json").document
    assert (document["objects"]["dead"], document["objects_replaced"]) == (1, 1)
    assert (document["dead_letters"], document["dead_letters_replaced"]) == (1, 1)


def test_the_number_of_replaced_dead_letters_is_unknown_if_they_cannot_be_browsed(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "SQLITE", replace(capabilities.SQLITE, browsable=False))
    letter = scene.bury(b"{}", "truncated")
    scene.fail("a", AttemptFailure.DEAD, "truncated", message_id=letter)
    scene.publish()
    assert penstock("status", "--json").document["dead_letters_replaced"] == 0
    scene.process("a", version="2")
    scene.publish()
    said = penstock("status", "--json").document
    assert (said["dead_letters"], said["dead_letters_replaced"]) == (1, None)
    assert verdict(penstock("status")).startswith("dead letters: 1; objects were replaced by later versions")


def test_what_no_later_version_replaced_stays_a_trouble(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.fail("a", AttemptFailure.DEAD, "an earlier version is no help", version="2")
    scene.fail("b", AttemptFailure.DEAD, "bad", message_id="m-b")
    scene.fail("b", AttemptFailure.DEAD, "still bad", version="2", message_id="m-b")
    scene.fail("c", AttemptFailure.DEAD, "bad", message_id="m-b")
    scene.process("c", version="2")
    scene.bury(b"?", "no JSON")
    scene.publish()
    assert verdict(penstock("status")) == "failed objects: 3; dead letters: 1"


def test_a_dead_letter_about_several_objects_stays_until_all_are_replaced(penstock: Call, scene: Scene) -> None:
    letter = scene.bury(b"{}", "two records")
    for name in ("a", "b"):
        scene.fail(name, AttemptFailure.DEAD, "bad", message_id=letter)
    scene.process("a", version="2")
    scene.publish()
    assert verdict(penstock("status")) == "failed objects: 1; dead letters: 1"
    scene.process("b", version="2")
    scene.publish()
    assert verdict(penstock("status")) == "all well"


def test_a_ledger_beside_a_table_of_another_is_not_well(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (scene.where.state / name).unlink(missing_ok=True)
    with scene.worker():
        pass
    assert verdict(penstock("status")).startswith("missing: table and ledger disagree: The table ")
    assert "`penstock admin repair` takes over what the table shows" in penstock("status").out


def test_a_fresh_state_given_for_a_table_that_was_there_before(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    other = Scene.at(scene.source.parent / "other")
    said = penstock("status", "--table", "clicks", "--data-dir", other.where.state)
    assert verdict(said).startswith("missing: table and ledger disagree: ")


def test_a_delta_table_that_penstock_did_not_write_is_a_problem(penstock: Call, scene: Scene) -> None:
    DeltaTable.create(str(scene.table), SCHEMA)
    assert "its ledger committed nothing to it" in verdict(penstock("status"))


# The state of an app


def test_the_state_of_an_app_is_found_where_the_settings_have_it(penstock: Call, app_scene: Scene) -> None:
    app_scene.process("a", "b")
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "pipeline clicks  objects: 2 processed; batches: 1 committed; --app shows whether" in said.out
    document = penstock("status", "--json").document
    assert (document["table"], document["batches_unpublished"]) == (None, None)
    (pipeline,) = document["pipelines"]
    assert (pipeline["pipeline"], pipeline["objects"]["processed"]) == ("clicks", 2)


def test_an_app_shows_its_tables_and_unpublished_batches(
    penstock: Call, app_scene: Scene, shop: str, tmp_path: Path
) -> None:
    app_scene.process("a")
    said = penstock("status", "--app", shop)
    assert verdict(said) == "lagging: batches committed and not yet published: 1"
    assert f"table {app_scene.table} (no version yet)" in said.out
    app_scene.publish()
    said = penstock("status", "--app", shop)
    assert verdict(said) == "all well"
    assert "0 not yet published" in said.out
    (tmp_path / "elsewhere").mkdir()
    Scene.of_app(tmp_path, "unknown").process("a")
    assert penstock("status", "--app", shop, "--json").document["batches_unpublished"] is None


def test_queues_of_an_app_with_their_depth_and_workers(penstock: Call, app_scene: Scene) -> None:
    app_scene.bury(b"?", "no JSON")
    app_scene.send("a", "b")
    said = penstock("status")
    assert verdict(said) == "no consumer: messages waiting with no worker running: 2; dead letters: 1"
    assert "queue clicks-files  2 visible, 0 in flight, 0 delayed; the oldest visible one is 0 s old" in said.out
    assert "1 dead letter\n" in said.out
    with app_scene.serving("clicks-files") as worker:
        assert verdict(penstock("status")) == "dead letters: 1"
        document = penstock("status", "--json").document
        assert document["workers"] == [worker]
        assert [(one["queue"], one["workers"]) for one in document["queues"]] == [("clicks-files", [worker])]
    with app_scene.serving("orders"):
        assert (
            verdict(penstock("status")) == "no consumer: messages in queues that no worker consumes: 2; dead letters: 1"
        )
    with app_scene.serving("clicks-files", drained=True) as worker:  # it fetches no more, whatever waits
        said = penstock("status")
        assert verdict(said) == "no consumer: messages in queues that no worker consumes: 2; dead letters: 1"
        assert f"{worker} (draining)\n" in said.out
    with app_scene.worker():  # a process that does not say what it serves
        assert verdict(penstock("status")) == "dead letters: 1"


def test_an_app_with_handlers_alone_has_no_ledger_and_none_is_made(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock("send", "orders", "--body", "1").exit_code == 0
    assert verdict(penstock("status")) == "no consumer: messages waiting with no worker running: 1"
    assert penstock("objects", "list").err == "No such objects.\n"
    assert penstock("dead", "list").err == "No dead letters.\n"
    assert not (tmp_path / ".penstock" / "ledger.db").exists()


def test_the_settings_say_where_the_state_of_an_app_is(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    said = penstock("status")
    assert said.exit_code == USAGE
    assert "sqlite:///.penstock/ledger.db" in said.err
    monkeypatch.setenv("PENSTOCK_LEDGER", f"sqlite:///{tmp_path}/.penstock/ledger.db")
    assert verdict(penstock("status")).startswith("failed objects: 1; there is no queue in ")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_queue_that_ends_with_its_process_cannot_be_looked_at(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "memory://")
    assert penstock("objects", "list").exit_code == 0
    said = penstock("status")
    assert said.exit_code == CONFIGURATION
    assert "memory://" in said.err


# Which of them is meant


def test_what_is_named_is_looked_at(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.process("a")
    app_scene.process("b", "c")

    def processed(*options: object) -> int:
        number: int = penstock("status", "--json", *options).document["objects"]["processed"]
        return number

    assert processed("--table", "clicks") == 1
    assert processed("--pipeline", "clicks") == 2
    assert processed("--table", "clicks", "--pipeline", "clicks") == 1


def test_the_table_of_a_pipeline_is_not_taken_for_one_with_a_state_of_its_own(penstock: Call, app_scene: Scene) -> None:
    Path(str(app_scene.where.work)).mkdir(parents=True)
    app_scene.process("a")
    assert penstock("status", "--json").document["objects"]["processed"] == 1
    said = penstock("status", "--table", "tables/clicks")
    assert said.exit_code == USAGE
    assert "--pipeline NAME" in said.err


def test_settings_that_cannot_be_read_are_no_matter_for_a_table(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", "many")
    assert verdict(penstock("status")) == "all well"
    assert verdict(penstock("status", "--table", "clicks")) == "all well"
    assert penstock("status", "--pipeline", "clicks").exit_code == CONFIGURATION
    assert penstock("status", "--table", "s3://lake/clicks").exit_code == CONFIGURATION


# What it comes to, for programs


def test_a_check_fails_where_something_needs_a_person_and_only_then(penstock: Call, app_scene: Scene) -> None:
    assert penstock("status", "--check").exit_code == 0
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    said = penstock("status", "--check", "--json")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    document = json.loads(said.out)
    assert (document["problem_kinds"], document["problems"], document["warnings"]) == (
        ["failed"],
        ["failed objects: 1"],
        [],
    )
    assert penstock("status").exit_code == 0


def test_a_queue_is_late_after_the_time_of_the_settings(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.send("a")
    monkeypatch.setenv("PENSTOCK_ALERTS_LAGGING_QUEUES", '{"clicks-files": 0.000001}')
    with app_scene.serving("clicks-files"):
        late = verdict(penstock("status"))
        assert late.startswith("lagging: the oldest visible message of clicks-files is ")
        (one,) = penstock("status", "--json").document["lagging"]
        assert (one["queue"], one["after_seconds"], one["no_consumer"]) == ("clicks-files", 0.000001, False)
        monkeypatch.delenv("PENSTOCK_ALERTS_LAGGING_QUEUES")
        assert verdict(penstock("status")) == "all well"


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


def test_an_object_that_waits_for_too_long_is_overdue(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.fail("a", AttemptFailure.RETRY, "once more")
    with app_scene.serving("clicks-files"):
        assert verdict(penstock("status")) == "at work"
        monkeypatch.setenv("PENSTOCK_OBJECTS_OVERDUE_AFTER", "0.000001")
        said = penstock("status")
        assert verdict(said).startswith("missing: objects overdue: 1, the oldest for ")
        assert "overdue: 1;" in said.out
        assert penstock("status", "--json").document["pipelines"][0]["objects_overdue"] == 1


def test_an_ingest_is_not_late_with_what_it_found(scene: Scene) -> None:
    scene.send("a")
    scene.fail("a", AttemptFailure.RETRY, "once more")
    scope = find_scope(ScopeRequest(), here=Path.cwd())
    impatient = scope.settings.model_copy(update={"alerts_lagging_after": 1e-6, "objects_overdue_after": 1e-6})
    with scene.worker():
        found = read_status(replace(scope, settings=impatient))
        as_app = read_status(replace(scope, settings=impatient, table=None))
    assert (found.summary, found.lagging, found.objects_overdue) == ("at work", (), 0)
    assert as_app.problem_kinds == ["missing", "lagging"], "of an app the same would be"


def test_dead_letters_that_are_being_replayed_are_a_warning(penstock: Call, app_scene: Scene) -> None:
    app_scene.bury(b"?", "no JSON")
    assert verdict(penstock("status")) == "dead letters: 1"
    with app_scene.serving("clicks-files", "clicks-files-dlq"):
        said = penstock("status")
        assert verdict(said) == "all well; dead letters that wait for their replay: 1"
        assert "1 (1 of them wait for their replay)" in said.out
        assert penstock("status", "--check").exit_code == 0


LOOKING = [
    ("status",),
    ("status", "--watch", "--once"),
    ("objects", "list"),
    ("admin", "batches", "list"),
    ("dead", "list"),
    ("dead", "groups"),
]
CHANGING = [
    ("admin", "gc"),
    ("dead", "replay", "--error", "bad", "--yes"),
    ("dead", "purge", "--error", "bad", "--yes"),
    ("objects", "retry", "landing/a", "--yes"),
]


@pytest.mark.parametrize("verb", LOOKING)
def test_read_only_commands_show_an_app_and_a_table_in_one_folder(
    penstock: Call, scene: Scene, app_scene: Scene, verb: tuple[str, ...]
) -> None:
    said = penstock(*verb)
    assert said.exit_code == 0, said.err
    assert said.out.index("App (ledger sqlite:///.penstock/ledger.db)") < said.out.index(f"Table {scene.table}")
    assert penstock(*verb, "--json").exit_code == 0


def test_the_status_of_both_names_the_troubles_of_both(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    app_scene.send("b")
    said = penstock("status", "--check")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    first = said.out.splitlines()[0]
    assert "messages waiting with no worker running: 1" in first
    assert "failed objects: 1" in first
    document = penstock("status", "--json").document
    assert document["problem_kinds"] == ["no consumer", "failed"]
    assert [one["table"] for one in document["scopes"]] == [None, str(scene.table)]


def test_one_object_is_found_in_whichever_of_both_has_it(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.process("a")
    [row] = penstock("objects", "list", "--json").document
    assert penstock("objects", "show", row["object"], "--json").document[0]["state"] == "processed"
    assert penstock("admin", "batches", "show", 1, "--json").document["batch"] == 1
    said = penstock("objects", "show", "nothing")
    assert said.exit_code == USAGE
    assert penstock("admin", "audit", "--json").document == []


@pytest.mark.parametrize("verb", CHANGING)
def test_what_changes_something_asks_which_of_both(
    penstock: Call, scene: Scene, app_scene: Scene, verb: tuple[str, ...]
) -> None:
    said = penstock(*verb)
    assert said.exit_code == USAGE
    assert "--table FOLDER" in said.err
    assert "--app APP" in said.err


# Rows that another writer removed


def test_a_restore_by_another_writer_is_reported_with_its_batches(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    before = DeltaTable(str(scene.table)).version()
    scene.process("b")
    scene.process("c")
    scene.publish()
    assert verdict(penstock("status")) == "all well"
    DeltaTable(str(scene.table)).restore(before)
    scene.process("d")
    scene.publish()  # goes on: the position survives a restore
    said = penstock("status", "--check")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert said.out.startswith("missing: version ")
    assert "(RESTORE, by another writer) removed rows: 4 rows that batches wrote are no longer in the table" in said.out
    assert "(batches 2, 3)" in said.out.splitlines()[0]


def test_rows_that_are_restored_once_more_are_no_longer_missing(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    before = DeltaTable(str(scene.table)).version()
    scene.process("b")
    scene.publish()
    DeltaTable(str(scene.table)).restore(before)
    assert not verdict(penstock("status")).startswith("all well")
    DeltaTable(str(scene.table)).restore(before + 1)
    assert verdict(penstock("status")) == "all well"


def test_an_overwrite_is_reported_and_a_deliberate_delete_is_not(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b")
    scene.publish()
    table = DeltaTable(str(scene.table))
    table.optimize.compact()
    table.delete(f"{table.schema().fields[0].name} IS NOT NULL")
    assert verdict(penstock("status")) == "all well"
    scene.process("c")
    scene.publish()
    table = DeltaTable(str(scene.table))
    write_deltalake(str(scene.table), table.to_pyarrow_table().slice(0, 0), mode="overwrite")
    assert "by another writer) removed rows" in verdict(penstock("status"))


# What to do


def test_the_commands_that_are_named_bring_failed_objects_back(penstock: Call, scene: Scene) -> None:
    scene.send("b")  # as an ingest does
    scene.fail("a", AttemptFailure.DEAD, "bad")
    for verb in (("status",), ("objects", "list"), ("objects", "show", scene.ref("a").uri)):
        said = penstock(*verb)
        replay, retry = re.findall(r"`(penstock [^`]+)`", said.out + said.err)
        assert replay.startswith("penstock dead replay")
        penstock(*shlex.split(replay)[1:])  # no letter: the sentence says what to run then
        sent = penstock(*shlex.split(retry)[1:])
        assert sent.exit_code == 0, sent.err
        assert sent.out.startswith("1 object enqueued again")

"""`penstock admin batches list` and `penstock dead list`."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger.records import AttemptFailure
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folder of an app without pipelines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".penstock").mkdir()
    return tmp_path


def test_no_batches_and_no_dead_letters_are_reported(penstock: Call, scene: Scene) -> None:
    for command, message in (("admin batches", "No batch was committed yet.\n"), ("dead", "No dead letters.\n")):
        result = penstock(*command.split(), "list")
        assert (result.exit_code, result.out, result.err) == (0, "", message)
        assert penstock(*command.split(), "list", "--json").document == []


def test_batches_are_listed_in_order_with_their_counts(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b", rows=3, bad_lines=1)
    scene.process("c", rows=1)
    rows = [line.split() for line in penstock("admin", "batches", "list").out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][3:7] == ["2", "6", "2", "2,000"]

    first, second = penstock("admin", "batches", "list", "--json").document
    assert (first["batch"], first["objects"], first["rows"], first["lines_quarantined"]) == (1, 2, 6, 2)
    assert (second["batch"], second["objects"], second["rows"], second["bytes"]) == (2, 1, 1, 1_000)
    assert first["stage_seconds"] == {"read and write": 1.25}
    assert first["attempt_id"] != second["attempt_id"]


def test_files_of_rows_and_of_the_quarantine_are_listed_separately(penstock: Call, app_scene: Scene) -> None:
    app_scene.process("a", rows=3)
    with closing(sqlite3.connect(app_scene.where.state / "ledger.db")) as connection, connection:
        connection.execute("UPDATE batches SET quarantine_manifest = manifest")
    shown = penstock("admin", "batches", "show", "1", "--pipeline", "clicks")
    assert "rows: 1 file; whether it is visible only the app can say (--app)" in shown.out
    assert "quarantine: 1 file; whether it is visible" in shown.out
    tables = penstock("admin", "batches", "show", "1", "--pipeline", "clicks", "--json").document["tables"]
    assert [one["holds"] for one in tables] == ["rows", "quarantine"]
    short = penstock("admin", "batches", "show", "1", "--pipeline", "clicks", "--limit", "0")
    assert short.err == "0 of 1 object; --limit shows more, as far as the ledger has them.\n"


def test_a_limit_keeps_the_newest_batches(penstock: Call, scene: Scene) -> None:
    for name in "abc":
        scene.process(name)
    result = penstock("admin", "batches", "list", "--limit", 2, "--json")
    assert [batch["batch"] for batch in result.document] == [2, 3]
    assert "newest 2 of 3" in result.err
    assert penstock("admin", "batches", "list", "--limit", 3, "--json").err == ""


def test_a_dead_letter_is_listed_with_its_reason_and_body(penstock: Call, scene: Scene) -> None:
    scene.dead_letter(b'{"Records": 1}', "`Records` is no list")
    result = penstock("dead", "list")
    assert result.exit_code == 0
    first, was, reason, body = result.out.splitlines()
    assert "after 1 attempt" in first
    assert reason.strip() == "`Records` is no list"
    assert body.strip() == '{"Records": 1}'

    (dead_letter,) = penstock("dead", "list", "--json").document
    assert (dead_letter["reason"], dead_letter["attempts"], dead_letter["body"]) == (
        "`Records` is no list",
        1,
        '{"Records": 1}',
    )
    assert dead_letter["queue"].endswith("-dlq")
    assert dead_letter["queue"] == f"{dead_letter['original_queue']}-dlq"
    assert was.strip().startswith(
        f"was {dead_letter['original_message_id']} in {dead_letter['original_queue']}, sent 20"
    )
    assert ", last failed 20" in was


def test_a_dead_letter_as_json_has_every_field(penstock: Call, here: Path) -> None:
    with closing(SqliteBroker(here / ".penstock" / "queue.db", holder="test")) as broker:
        (id,) = broker.send("orders", [Outgoing(body=b"1", group="g", attributes={"a": "b", "c": b"\xff"})])
        (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=60)
        died = DeadLetter(reason="no such order", exception="KeyError: 7", traceback="line 1\nline 2")
        broker.settle([(delivery, died)])
    (dead_letter,) = penstock("dead", "list", "--json").document
    assert (dead_letter["original_message_id"], dead_letter["original_queue"], dead_letter["group"]) == (
        id,
        "orders",
        "g",
    )
    assert (dead_letter["exception"], dead_letter["traceback"]) == ("KeyError: 7", "line 1\nline 2")
    assert dead_letter["attributes"] == {"a": "b", "c": "\\xff"}
    assert dead_letter["enqueued_at"] <= dead_letter["last_failed_at"] <= dead_letter["dead_at"]


def test_a_forged_death_is_printed_escaped(penstock: Call, here: Path) -> None:
    death = Death(
        reason="forged",
        attempts=1,
        last_failed_at=1e300,
        worker="w",
        queue="q\x1b[2J",
        message_id="i",
        enqueued_at=-1e30,
    )
    with closing(SqliteBroker(here / ".penstock" / "queue.db", holder="test")) as broker:
        broker.send("orders-dlq", [Outgoing(body=b"1", attributes=with_death({}, death))])
    result = penstock("dead", "list")
    assert result.exit_code == 0
    assert "was i in q\\x1b[2J, sent -1e+30 s, last failed 1e+300 s" in result.out


def test_dead_letters_are_oldest_first_and_limited(penstock: Call, scene: Scene) -> None:
    for number in range(3):
        scene.dead_letter(b"%d" % number, "bad")
    dead_letters = penstock("dead", "list", "--limit", 2, "--json").document
    assert [dead_letter["body"] for dead_letter in dead_letters] == ["0", "1"]


def test_a_hostile_body_is_printed_escaped_on_one_line(penstock: Call, scene: Scene) -> None:
    scene.dead_letter(b"\x1b[2J[red]\n\xff\xfe" + b"x" * 1_000_000, "\x1b]0;title\x07 [bold]\nno JSON")
    result = penstock("dead", "list")
    assert len(result.out.splitlines()) == 4
    assert len(result.out) < 1_000
    assert not {"\x1b", "\x07"} & set(result.out)
    assert "[red]" in result.out
    assert "[bold]" in result.out
    (dead_letter,) = penstock("dead", "list", "--json").document
    assert len(dead_letter["body"]) > 1_000_000


def test_batches_of_an_app_are_listed_in_commit_order(penstock: Call, app_scene: Scene, tmp_path: Path) -> None:
    app_scene.process("a")
    Scene.of_app(tmp_path, "views").process("a")
    app_scene.process("b")
    listed = [(one["pipeline"], one["batch"]) for one in penstock("admin", "batches", "list", "--json").document]
    assert listed == [("clicks", 1), ("views", 1), ("clicks", 2)]
    result = penstock("admin", "batches", "list", "--limit", 2, "--json")
    assert [(one["pipeline"], one["batch"]) for one in result.document] == [("views", 1), ("clicks", 2)]
    assert "newest 2 of 3" in result.err
    header, *rows = penstock("admin", "batches", "list", "--pipeline", "clicks").out.splitlines()
    assert header.split()[0] == "batch"
    assert [row.split()[0] for row in rows] == ["1", "2"]


def test_dead_letters_of_every_queue_of_an_app_and_its_failed_objects_are_listed(
    penstock: Call, app_scene: Scene, tmp_path: Path
) -> None:
    app_scene.dead_letter(b"1", "failed 3 times", exception="KeyError: 'x'")
    Scene.of_app(tmp_path, "views").dead_letter(b"2", "rejected")
    app_scene.fail("a", AttemptFailure.DEAD, "truncated")
    one, two, three = penstock("dead", "list", "--json").document
    assert (one["kind"], one["queue"], one["exception"]) == ("message", "clicks-files-dlq", "KeyError: 'x'")
    assert (two["queue"], two["exception"], two["attempts"]) == ("views-files-dlq", None, 1)
    assert (three["kind"], three["pipeline"], three["object"]) == ("object", "clicks", app_scene.ref("a").uri)
    assert (three["reason"], three["attempts"], three["replaced"]) == ("truncated", 1, False)
    result = penstock("dead", "list")
    assert "    KeyError: 'x'\n" in result.out
    assert f"{app_scene.ref('a').uri}  dead since" in result.out
    assert "of clicks, after 1 attempt\n    truncated\n" in result.out

    for named in ("views-files", "views-files-dlq"):
        (dead_letter,) = penstock("dead", "list", "--queue", named, "--json").document
        assert penstock("dead", "list", named, "--json").document == [dead_letter]
        assert penstock("dead", "list", named, "--queue", "else").exit_code == 2
        assert dead_letter["reason"] == "rejected"
    assert (
        penstock("dead", "list", "--pipeline", "views", "--queue", "clicks-files", "--json").document[0]["body"] == "1"
    )


def test_listing_a_missing_queue_is_a_usage_error(penstock: Call, app_scene: Scene) -> None:
    app_scene.send("a")
    assert penstock("dead", "list", "--queue", "clicks-files").err == "No dead letters.\n"
    result = penstock("dead", "list", "--queue", "click")
    assert (result.exit_code, result.out) == (2, "")
    assert "There is no queue click; existing queues: clicks-files." in result.err


def test_a_failed_object_that_was_replaced_is_marked(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "truncated")
    assert [dead["replaced"] for dead in penstock("dead", "list", "--json").document] == [False]
    scene.process("a", version="2")
    assert [dead["replaced"] for dead in penstock("dead", "list", "--json").document] == [True]
    assert "; a later version of it was processed" in penstock("dead", "list").out

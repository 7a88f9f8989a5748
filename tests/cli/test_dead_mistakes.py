"""Mistakes with `penstock dead`: invalid names, unknown ids, files imported twice."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.dead_letter_scene import DLQ, FINAL_DLQ, QUEUE, DeadLetterScene, lines_of
from tests.cli.process import SRC

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing

FAILED, USAGE, TEMPORARY = 1, 2, 75
MAILS_DLQ = "graves"  # the DLQ of mails
DEADLINE_SECONDS = 180.0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadLetterScene]:
    """Create the queues orders and mails, whose DLQ is graves, without dead letters."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".penstock").mkdir()
    settings = [QueueSettings(name="mails", dead_letter_queue=MAILS_DLQ)]
    with closing(SqliteBroker(tmp_path / ".penstock" / "queue.db", holder="test", queues=settings)) as broker:
        scene = DeadLetterScene(folder=tmp_path, broker=broker)
        for queue in (QUEUE, "mails"):
            broker.send(queue, [Outgoing(body=b"0")])
            scene.ack_next(queue)
        yield scene


def ids_in(scene: DeadLetterScene, queue: str) -> list[str]:
    return [message.id for message in scene.messages(queue)]


# Import


@pytest.mark.parametrize(("queue", "dlq"), [("mails", MAILS_DLQ), (MAILS_DLQ, MAILS_DLQ), (FINAL_DLQ, FINAL_DLQ)])
def test_dead_letters_are_imported_into_dlqs_and_never_into_a_served_queue(
    penstock: Call, scene: DeadLetterScene, queue: str, dlq: str
) -> None:
    scene.dead_letter("1")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    report = penstock("dead", "import", "kept", "--queue", queue, "--json").document
    assert report["by_queue"] == {dlq: 1}
    assert (scene.bodies(dlq), scene.bodies("mails")) == (["1"], [])


def test_an_import_never_sends_to_a_served_queue_that_the_file_names(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    (line,) = lines_of(scene.folder / "kept")
    (scene.folder / "kept").write_text(json.dumps({**line, "queue": "mails"}), encoding="utf-8")
    assert penstock("dead", "import", "kept", "--json").document["by_queue"] == {MAILS_DLQ: 1}
    result = penstock("dead", "import", "kept", "--queue", "nowhere")
    assert (result.exit_code, "There is no queue nowhere-dlq" in result.err) == (USAGE, True)


def test_a_dead_letter_is_imported_once_with_any_queue_option(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    assert penstock("dead", "import", "kept", "--json").document["imported"] == 2
    again = penstock("dead", "import", "kept", "--queue", "mails", "--json").document
    assert (again["imported"], again["imported_before"], again["interrupted"]) == (0, 2, False)
    assert (scene.bodies(DLQ), scene.bodies(MAILS_DLQ)) == (["1", "2"], [])


def test_a_project_without_queue_and_ledger_imports_dead_letters(
    penstock: Call, scene: DeadLetterScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.dead_letter("1")
    assert penstock("dead", "export", "--to", "kept").exit_code == 0
    empty_project = tmp_path / "fresh"
    empty_project.mkdir()
    monkeypatch.chdir(empty_project)
    assert penstock("dead", "list").exit_code == USAGE, "listing creates nothing"
    assert list(empty_project.iterdir()) == []
    assert penstock("dead", "import", "../kept", "--json").document["by_queue"] == {DLQ: 1}
    assert [dead_letter["body"] for dead_letter in penstock("dead", "list", "--json").document] == ["1"]
    assert penstock("dead", "import", "../kept", "--json").document["imported"] == 0

    left = penstock("dead", "replay", "--yes")
    assert (left.exit_code, "1 dead letter left" in left.out) == (FAILED, True)
    assert penstock("dead", "replay", "--yes", "--to", "ordres").exit_code == USAGE
    assert penstock("dead", "replay", "--yes", "--to", QUEUE, "--json").document["by_queue"] == {QUEUE: 1}


# Replay


@pytest.mark.parametrize("options", [("--dry-run",), ("--yes",)])
@pytest.mark.parametrize(
    ("to", "words"),
    [
        (FINAL_DLQ, "holds dead letters"),
        (MAILS_DLQ, "holds dead letters"),
        ("nowhere", "no queue nowhere"),
        ("", "is empty"),
    ],
)
def test_dead_letters_are_not_replayed_to_a_dlq_or_to_a_missing_queue(
    penstock: Call, scene: DeadLetterScene, options: tuple[str, ...], to: str, words: str
) -> None:
    scene.dead_letter("1")
    result = penstock("dead", "replay", "--to", to, *options)
    assert (result.exit_code, words in result.err) == (USAGE, True), result.err
    assert scene.bodies(DLQ) == ["1"]


def test_dead_letters_of_unknown_origin_are_left_and_reported_by_both_runs(
    penstock: Call, scene: DeadLetterScene
) -> None:
    scene.broker.send("lost-dlq", [Outgoing(body=b"1")])
    plan = penstock("dead", "replay", "--dry-run", "--json").document
    assert (plan["dead_letters"], plan["left_without_queue"]) == (1, 1)
    none = penstock("dead", "replay", "--yes", "--json")
    assert (none.exit_code, json.loads(none.out)["left_without_queue"]) == (FAILED, 1)
    scene.dead_letter("2")
    some = penstock("dead", "replay", "--yes")
    assert (some.exit_code, "1 dead letter left" in some.out) == (0, True)
    assert (scene.bodies("lost-dlq"), scene.bodies()) == (["1"], ["2"])


def test_every_canary_is_reported_and_the_audit_has_its_outcome(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3", "4")
    result = penstock("dead", "replay", "--yes", "--canary", 3, "--canary-timeout", 1, "--json")
    assert (result.exit_code, "3 messages are sent to orders and watched" in result.err) == (TEMPORARY, True)
    report = json.loads(result.out)
    assert [canary["status"] for canary in report["canaries"]] == ["unknown", "not watched", "not watched"]
    assert scene.audit() == [("replay", DLQ, 3, report["outcome"])]
    assert report["outcome"] == "canary unknown"


def test_move_is_refused_on_other_brokers_before_confirmation(penstock: Call, scene: DeadLetterScene) -> None:
    result = penstock("dead", "replay", "--queue", QUEUE, "--move")
    assert (result.exit_code, "--move is for SQS" in result.err, "--yes" in result.err) == (USAGE, True, False)


# Selection by id


def test_unknown_ids_are_reported(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2")
    known, other = ids_in(scene, DLQ)
    for command in (("replay", "--yes"), ("replay", "--dry-run"), ("purge", "--yes"), ("export", "--to", "kept")):
        result = penstock("dead", *command, "--id", "nobody")
        assert (result.exit_code, "no such dead letter: nobody" in result.err) == (USAGE, True), command
    assert not (scene.folder / "kept").exists()
    some = penstock("dead", "purge", "--yes", "--id", "nobody", "--id", known)
    assert (some.exit_code, "no such dead letter: nobody;" in some.err) == (0, True)
    assert ids_in(scene, DLQ) == [other]
    assert "no such" not in penstock("dead", "purge", "--yes", "--id", other).err


def test_a_dead_letter_is_found_by_its_message_id_before_a_replay(penstock: Call, scene: DeadLetterScene) -> None:
    scene.broker.send(QUEUE, [Outgoing(body=b"1")])
    (first_id,) = ids_in(scene, QUEUE)
    scene.dead_letter_next(reason="the first time")
    assert penstock("dead", "replay", "--yes").exit_code == 0
    scene.dead_letter_next(reason="the second time")
    (now_id,) = ids_in(scene, DLQ)
    shown = penstock("dead", "show", first_id)
    assert shown.exit_code == 0
    assert f"as {first_id} in orders: the first time" in shown.out
    assert [each["message_id"] for each in penstock("dead", "list", "--id", first_id, "--json").document] == [now_id]


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--object", ""),
        ("list", "--queue", ""),
        ("list", "--id", ""),
        ("show", ""),
        ("show", "x", "--queue", ""),
        ("import", "kept", "--queue", ""),
        ("import", ""),
        ("export", "--to", ""),
    ],
)
def test_empty_arguments_are_refused_in_one_line(
    penstock: Call, scene: DeadLetterScene, arguments: tuple[str, ...]
) -> None:
    scene.dead_letter("1")
    result = penstock("dead", *arguments)
    assert (result.exit_code, result.err.count("\n"), "is empty" in result.err) == (USAGE, 1, True), result.err


# Listing


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_limited_list_reports_how_many_more_exist(
    penstock: Call, scene: DeadLetterScene, options: tuple[str, ...]
) -> None:
    scene.dead_letter("1", "2", "3")
    assert "And 2 more in orders-dlq; --limit shows more." in penstock("dead", "list", "--limit", 1, *options).err
    assert "And more in orders-dlq;" in penstock("dead", "list", "--limit", 1, "--error", "order", *options).err
    assert "And" not in penstock("dead", "list", "--limit", 3, *options).err


def test_an_empty_export_creates_no_file_and_json_names_the_file(penstock: Call, scene: DeadLetterScene) -> None:
    none = penstock("dead", "export", "--to", "kept", "--json").document
    assert (none["exported"], none["file"], (scene.folder / "kept").exists()) == (0, None, False)
    scene.dead_letter("1")
    some = penstock("dead", "export", "--to", "kept", "--json", "--remove").document
    address = str(scene.folder / "kept")
    assert some == {"exported": 1, "removed": 1, "file": address, "interrupted": False}
    entry = penstock("admin", "audit", "--json").document[0]
    assert (entry["action"], entry["details"]) == ("export", {"file": address, "remove": True})
    assert penstock("dead", "export", "--json").exit_code == USAGE


@pytest.mark.parametrize("command", [("groups",), ("replay", "--dry-run")])
def test_a_narrow_terminal_does_not_break_names_and_ids(scene: DeadLetterScene, command: tuple[str, ...]) -> None:
    key = "bill|KeyError|shop/very/far/away/in/a/folder.py:charge_a_customer"
    scene.dead_letter("1", reason="KeyError: 7", fingerprint=key)
    (id,) = ids_in(scene, DLQ)
    result = _on_a_terminal(scene.folder, "dead", *command, columns=30)
    assert key in result
    assert id in result


def _on_a_terminal(folder: Path, *arguments: str, columns: int) -> str:
    """Return the output that the command prints on a terminal."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "penstock", *arguments]
    subprocess.run(command, cwd=folder, env=environment, stdout=terminal, check=True, timeout=DEADLINE_SECONDS)
    os.close(terminal)
    result = b""
    try:
        while part := os.read(controller, 4096):
            result += part
    except OSError:  # all of it was read
        pass
    os.close(controller)
    return result.decode()

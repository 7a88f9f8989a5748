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
from tests.cli.dead_scene import FIRST, QUEUE, SECOND, DeadScene, lines_of
from tests.cli.process import SRC

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing

FAILED, USAGE, TEMPORARY = 1, 2, 75
GRAVES = "graves"  # where the dead letters of mails go
DEADLINE_SECONDS = 60.0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadScene]:
    """Create the queues orders and mails, whose DLQ is graves, without dead letters."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".penstock").mkdir()
    told = [QueueSettings(name="mails", dead_letter_queue=GRAVES)]
    with closing(SqliteBroker(tmp_path / ".penstock" / "queue.db", holder="test", queues=told)) as broker:
        scene = DeadScene(folder=tmp_path, broker=broker)
        for queue in (QUEUE, "mails"):
            broker.send(queue, [Outgoing(body=b"0")])
            scene.finish(queue)
        yield scene


def ids_in(scene: DeadScene, queue: str) -> list[str]:
    return [message.id for message in scene.messages(queue)]


# Putting back


@pytest.mark.parametrize(("queue", "place"), [("mails", GRAVES), (GRAVES, GRAVES), (SECOND, SECOND)])
def test_dead_letters_are_imported_into_dlqs_and_never_into_a_served_queue(
    penstock: Call, scene: DeadScene, queue: str, place: str
) -> None:
    scene.bury("1")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    report = penstock("dead", "import", "kept", "--queue", queue, "--json").document
    assert report["by_queue"] == {place: 1}
    assert (scene.bodies(place), scene.bodies("mails")) == (["1"], [])


def test_a_file_that_names_a_queue_that_is_worked_on_does_not_reach_it(penstock: Call, scene: DeadScene) -> None:
    scene.bury("1")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    (line,) = lines_of(scene.folder / "kept")
    (scene.folder / "kept").write_text(json.dumps({**line, "queue": "mails"}), encoding="utf-8")
    assert penstock("dead", "import", "kept", "--json").document["by_queue"] == {GRAVES: 1}
    said = penstock("dead", "import", "kept", "--queue", "nowhere")
    assert (said.exit_code, "There is no queue nowhere-dlq" in said.err) == (USAGE, True)


def test_a_dead_letter_is_imported_once_whatever_queue_is_given(penstock: Call, scene: DeadScene) -> None:
    scene.bury("1", "2")
    assert penstock("dead", "export", "--to", "kept", "--remove").exit_code == 0
    assert penstock("dead", "import", "kept", "--json").document["imported"] == 2
    again = penstock("dead", "import", "kept", "--queue", "mails", "--json").document
    assert (again["imported"], again["imported_before"], again["interrupted"]) == (0, 2, False)
    assert (scene.bodies(FIRST), scene.bodies(GRAVES)) == (["1", "2"], [])


def test_a_project_without_queue_and_ledger_imports_dead_letters(
    penstock: Call, scene: DeadScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.bury("1")
    assert penstock("dead", "export", "--to", "kept").exit_code == 0
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    monkeypatch.chdir(fresh)
    assert penstock("dead", "list").exit_code == USAGE, "looking makes nothing"
    assert list(fresh.iterdir()) == []
    assert penstock("dead", "import", "../kept", "--json").document["by_queue"] == {FIRST: 1}
    assert [letter["body"] for letter in penstock("dead", "list", "--json").document] == ["1"]
    assert penstock("dead", "import", "../kept", "--json").document["imported"] == 0

    left = penstock("dead", "replay", "--yes")
    assert (left.exit_code, "1 dead letter left" in left.out) == (FAILED, True)
    assert penstock("dead", "replay", "--yes", "--to", "ordres").exit_code == USAGE
    assert penstock("dead", "replay", "--yes", "--to", QUEUE, "--json").document["by_queue"] == {QUEUE: 1}


# Sending back


@pytest.mark.parametrize("how", [("--dry-run",), ("--yes",)])
@pytest.mark.parametrize(
    ("to", "why"),
    [(SECOND, "holds dead letters"), (GRAVES, "holds dead letters"), ("nowhere", "no queue nowhere"), ("", "is empty")],
)
def test_dead_letters_are_not_replayed_to_a_dlq_or_to_a_missing_queue(
    penstock: Call, scene: DeadScene, how: tuple[str, ...], to: str, why: str
) -> None:
    scene.bury("1")
    said = penstock("dead", "replay", "--to", to, *how)
    assert (said.exit_code, why in said.err) == (USAGE, True), said.err
    assert scene.bodies(FIRST) == ["1"]


def test_dead_letters_of_unknown_origin_are_left_and_reported_by_both_runs(penstock: Call, scene: DeadScene) -> None:
    scene.broker.send("lost-dlq", [Outgoing(body=b"1")])
    plan = penstock("dead", "replay", "--dry-run", "--json").document
    assert (plan["dead_letters"], plan["left_without_queue"]) == (1, 1)
    none = penstock("dead", "replay", "--yes", "--json")
    assert (none.exit_code, json.loads(none.out)["left_without_queue"]) == (FAILED, 1)
    scene.bury("2")
    some = penstock("dead", "replay", "--yes")
    assert (some.exit_code, "1 dead letter left" in some.out) == (0, True)
    assert (scene.bodies("lost-dlq"), scene.bodies()) == (["1"], ["2"])


def test_every_canary_that_was_sent_is_reported_and_the_audit_says_how_it_went(
    penstock: Call, scene: DeadScene
) -> None:
    scene.bury("1", "2", "3", "4")
    said = penstock("dead", "replay", "--yes", "--canary", 3, "--canary-timeout", 1, "--json")
    assert (said.exit_code, "3 messages are sent to orders and watched" in said.err) == (TEMPORARY, True)
    report = json.loads(said.out)
    assert [canary["verdict"] for canary in report["canaries"]] == ["unknown", "not watched", "not watched"]
    assert scene.audit() == [("replay", FIRST, 3, report["outcome"])]
    assert report["outcome"] == "canary unknown"


def test_a_queue_is_moved_by_sqs_alone_and_nobody_is_asked_before(penstock: Call, scene: DeadScene) -> None:
    said = penstock("dead", "replay", "--queue", QUEUE, "--move")
    assert (said.exit_code, "--move is for SQS" in said.err, "--yes" in said.err) == (USAGE, True, False)


# Naming letters


def test_unknown_ids_are_reported(penstock: Call, scene: DeadScene) -> None:
    scene.bury("1", "2")
    known, other = ids_in(scene, FIRST)
    for verb in (("replay", "--yes"), ("replay", "--dry-run"), ("purge", "--yes"), ("export", "--to", "kept")):
        said = penstock("dead", *verb, "--id", "nobody")
        assert (said.exit_code, "no such dead letter: nobody" in said.err) == (USAGE, True), verb
    assert not (scene.folder / "kept").exists()
    some = penstock("dead", "purge", "--yes", "--id", "nobody", "--id", known)
    assert (some.exit_code, "no such dead letter: nobody;" in some.err) == (0, True)
    assert ids_in(scene, FIRST) == [other]
    assert "no such" not in penstock("dead", "purge", "--yes", "--id", other).err


def test_a_dead_letter_is_found_by_the_id_of_an_earlier_life(penstock: Call, scene: DeadScene) -> None:
    scene.broker.send(QUEUE, [Outgoing(body=b"1")])
    (first_id,) = ids_in(scene, QUEUE)
    scene.kill(reason="the first time")
    assert penstock("dead", "replay", "--yes").exit_code == 0
    scene.kill(reason="the second time")
    (now_id,) = ids_in(scene, FIRST)
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
def test_what_is_empty_asks_nothing(penstock: Call, scene: DeadScene, arguments: tuple[str, ...]) -> None:
    scene.bury("1")
    said = penstock("dead", *arguments)
    assert (said.exit_code, said.err.count("\n"), "is empty" in said.err) == (USAGE, 1, True), said.err


# Looking


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_list_that_is_cut_says_so(penstock: Call, scene: DeadScene, how: tuple[str, ...]) -> None:
    scene.bury("1", "2", "3")
    assert "And 2 more in orders-dlq; --limit shows more." in penstock("dead", "list", "--limit", 1, *how).err
    assert "And more in orders-dlq;" in penstock("dead", "list", "--limit", 1, "--error", "order", *how).err
    assert "And" not in penstock("dead", "list", "--limit", 3, *how).err


def test_an_export_of_nothing_leaves_no_file_and_json_names_the_file(penstock: Call, scene: DeadScene) -> None:
    none = penstock("dead", "export", "--to", "kept", "--json").document
    assert (none["exported"], none["file"], (scene.folder / "kept").exists()) == (0, None, False)
    scene.bury("1")
    some = penstock("dead", "export", "--to", "kept", "--json", "--remove").document
    address = str(scene.folder / "kept")
    assert some == {"exported": 1, "removed": 1, "file": address, "interrupted": False}
    entry = penstock("admin", "audit", "--json").document[0]
    assert (entry["action"], entry["details"]) == ("export", {"file": address, "remove": True})
    assert penstock("dead", "export", "--json").exit_code == USAGE


@pytest.mark.parametrize("verb", [("groups",), ("replay", "--dry-run")])
def test_a_narrow_terminal_breaks_no_name_and_no_id(scene: DeadScene, verb: tuple[str, ...]) -> None:
    key = "bill|KeyError|shop/very/far/away/in/a/folder.py:charge_a_customer"
    scene.bury("1", reason="KeyError: 7", fingerprint=key)
    (id,) = ids_in(scene, FIRST)
    said = _on_a_terminal(scene.folder, "dead", *verb, columns=30)
    assert key in said
    assert id in said


def _on_a_terminal(folder: Path, *arguments: str, columns: int) -> str:
    """Return the lines that it prints on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "penstock", *arguments]
    subprocess.run(command, cwd=folder, env=environment, stdout=theirs, check=True, timeout=DEADLINE_SECONDS)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # all of it was read
        pass
    os.close(ours)
    return said.decode()

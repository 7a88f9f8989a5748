"""`penstock dead replay`, `purge`, `export`, `import`, `groups` and `show`, on every broker that processes share."""

import json
import os
import pty
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.dead_letter_scene import DLQ, FINAL_DLQ, QUEUE, DeadLetterScene, lines_of
from tests.cli.process import SRC, Process
from tests.services.aws_server import REGION, AwsServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.death import earlier_deaths_of
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE
from penstock.messaging.settlement import Ack

USAGE, FOUND_PROBLEMS, TEMPORARY, INTERRUPTED = 2, 3, 75, 130
QUEUES = (QUEUE, "other")
DEADLINE_SECONDS = 180.0
BROKERS = ("sqlite", "redis", "sqs")


@pytest.fixture(params=BROKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeadLetterScene]:
    """Create an app without dead letters."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".penstock").mkdir()
    with closing(_broker(kind, tmp_path, request, monkeypatch)) as broker:
        yield DeadLetterScene(folder=tmp_path, broker=broker)


def _broker(kind: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    if kind == "sqlite":
        return SqliteBroker(folder / ".penstock" / "queue.db", holder="test")
    if kind == "redis":
        server = request.getfixturevalue("servers").redis("7.0")
        request.addfinalizer(server.clean)
        monkeypatch.setenv("PENSTOCK_BROKER", server.url)
        return RedisStreamsBroker(server.url, holder="test")
    moto: AwsServer = request.getfixturevalue("moto")
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqs://{REGION}")
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", json.dumps(dict.fromkeys(QUEUES, 1)))
    for name in (DLQ, FINAL_DLQ, "other-dlq", "other-dead"):
        moto.client("sqs").create_queue(QueueName=name)
    return SqsBroker(moto.aws, holder="test", queues=[QueueSettings(name=name) for name in QUEUES], poll_seconds=1)


# Replay


def test_dead_letters_are_replayed_unchanged_and_once(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3", attributes={"trace": "t", "raw": b"\xff", COUNTER_ATTRIBUTE: "2"}, group="g")
    report = penstock("dead", "replay", "--yes", "--json").document
    assert (report["sent"], report["by_queue"], report["outcome"]) == (3, {QUEUE: 3}, "done")
    assert scene.bodies(DLQ) == []
    for message in scene.messages():
        assert (message.attributes["trace"], message.attributes["raw"], message.group) == ("t", b"\xff", "g")
        assert message.attributes[COUNTER_ATTRIBUTE] == "0"
        assert "penstock-death" not in message.attributes
        assert [death.reason for death in earlier_deaths_of(message.attributes)] == ["no such order"]
    assert penstock("dead", "replay", "--yes", "--json").document["sent"] == 0
    assert scene.bodies() == ["1", "2", "3"]
    assert scene.audit() == [("replay", DLQ, 3, "done")]


def test_dead_letters_of_the_final_dlq_are_replayed_too(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1")
    scene.move_to_final_dlq()
    scene.dead_letter("2")
    assert penstock("dead", "replay", "--tier", "dead", "--yes", "--json").document["sent"] == 1
    assert (scene.bodies(), scene.bodies(DLQ), scene.bodies(FINAL_DLQ)) == (["1"], ["2"], [])
    (message,) = scene.messages()
    assert "penstock-set-aside" not in message.attributes


@pytest.mark.parametrize("kind", ["sqs"])
def test_a_fifo_queue_is_replayed_whole_and_in_order(penstock: Call, scene: DeadLetterScene, moto: AwsServer) -> None:
    """A group's next messages are delivered only after those before them are settled."""
    sqs = moto.client("sqs")
    for name in ("line.fifo", "line-dlq.fifo"):
        sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    dead_letters = [Outgoing(body=b"%02d" % n, group="g", deduplication_id=str(n)) for n in range(25)]
    scene.broker.send("line-dlq.fifo", dead_letters)
    report = penstock("dead", "replay", "--queue", "line.fifo", "--yes", "--json").document
    assert report["by_queue"] == {"line.fifo": 25}
    assert (scene.broker.stats("line-dlq.fifo").visible, scene.broker.stats("line.fifo").visible) == (0, 25)
    received: list[bytes] = []
    while got := scene.broker.receive("line.fifo", messages_max=10, lease_seconds=60):
        received += [delivery.message.body for delivery in got]
        scene.broker.settle([(delivery, Ack()) for delivery in got])
    assert received == [dead_letter.body for dead_letter in dead_letters]


@pytest.mark.parametrize("step", ["replay_intended", "replay_sent", "replay_marked"])
def test_the_next_replay_completes_a_killed_one_and_sends_nothing_twice(
    penstock: Call, scene: DeadLetterScene, step: str
) -> None:
    scene.dead_letter("1", "2")
    process = Process(scene.folder, "dead", "replay", "--yes", before=("setsid", "env", f"PENSTOCK_KILL_AT={step}"))
    assert process.exit_code() == -signal.SIGKILL
    assert scene.audit() == [("replay", DLQ, 0, None)]
    if not scene.broker.capabilities.browsable:  # its dead letters stay hidden for some minutes
        assert len(scene.bodies()) == (0 if step == "replay_intended" else 2)
        return
    assert scene.broker.stats(DLQ).visible == 2
    report = penstock("dead", "replay", "--yes", "--json").document
    assert (report["sent"], report["sent_before"]) == ((0, 2) if step == "replay_marked" else (2, 0))
    assert (scene.bodies(), scene.bodies(DLQ)) == (["1", "2"], [])


def test_only_selected_messages_are_replayed_and_to_the_given_queue(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", reason="KeyError: 'a'", handler="bill", fingerprint="bill|KeyError|shop.py:f")
    scene.dead_letter("2", reason="timed out", handler="ship", attributes={"tenant": "7"})
    scene.broker.send("other", [Outgoing(body=b"0")])
    scene.ack_next("other")
    for options in (
        ("--error", "nothing of the kind"),
        ("--handler", "bill", "--error", "timed"),
        ("--older-than", "1h"),
        ("--attribute", "tenant=8"),
        ("--object", "s3://b/k"),
        ("--queue", "other"),
        ("--tier", "dead"),
    ):
        assert penstock("dead", "replay", "--yes", "--json", *options).document["sent"] == 0, options
    report = penstock("dead", "replay", "--yes", "--json", "--error", "keyerror", "--to", "other").document
    assert report["by_queue"] == {"other": 1}
    assert (scene.bodies("other"), scene.bodies(), scene.bodies(DLQ)) == (["1"], [], ["2"])
    assert penstock("dead", "replay", "--yes", "--json", "--attribute", "tenant=7").document["sent"] == 1
    assert scene.bodies() == ["2"]


def test_a_dry_run_reports_and_sends_nothing(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", reason="order 7 is unknown")
    plan = penstock("dead", "replay", "--dry-run", "--json").document
    assert plan["queues"] == [{"from": DLQ, "to": QUEUE, "dead_letters": 2}]
    assert [(group["key"], group["count"]) for group in plan["groups"]] == [("order <n> is unknown", 2)]
    result = penstock("dead", "replay", "--dry-run")
    assert "order <n> is unknown" in result.out
    assert (scene.bodies(), scene.bodies(DLQ), scene.audit()) == ([], ["1", "2"], [])


def test_a_replay_obeys_its_limit(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3")
    report = penstock("dead", "replay", "--yes", "--json", "--limit", 2, "--rate", 50).document
    assert report["sent"] == 2
    assert (len(scene.bodies()), len(scene.bodies(DLQ))) == (2, 1)


def test_without_a_terminal_yes_is_required(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1")
    for command in ("replay", "purge"):
        process = Process(scene.folder, "dead", command, "--queue", QUEUE)
        assert "give --yes" in process.error_message()
        assert process.exit_code() == USAGE
    assert scene.bodies(DLQ) == ["1"]


def test_ctrl_c_stops_between_chunks_and_the_next_run_continues(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3", "4")
    process = Process(scene.folder, "dead", "replay", "--yes", "--rate", "0.2")
    wait_until(lambda: scene.broker.stats(QUEUE).visible == 1)
    process.signal(signal.SIGINT)
    assert process.exit_code() == INTERRUPTED
    assert (len(scene.bodies()), len(scene.bodies(DLQ))) == (1, 3)
    assert scene.audit() == [("replay", DLQ, 1, "interrupted")]
    assert penstock("dead", "replay", "--yes", "--json").document["sent"] == 3
    assert scene.bodies() == ["1", "2", "3", "4"]


# The canary


def test_other_messages_wait_until_the_canary_is_settled(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3")
    process = Process(scene.folder, "dead", "replay", "--yes", "--canary", "1")
    wait_until(lambda: scene.broker.stats(QUEUE).visible == 1)
    scene.ack_next()
    assert process.exit_code() == 0
    assert any("the canary: it has left orders and is not among the dead letters" in line for line in process.log_lines)
    assert (len(scene.bodies()), scene.bodies(DLQ)) == (2, [])


def test_a_canary_that_fails_stops_the_replay(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", "3")
    process = Process(scene.folder, "dead", "replay", "--yes", "--canary", "1")
    wait_until(lambda: scene.broker.stats(QUEUE).visible == 1)
    scene.dead_letter_next(reason="the same again")
    assert process.exit_code() == FOUND_PROBLEMS
    assert any("the canary: it died again" in line and "the same again" in line for line in process.log_lines)
    assert (scene.bodies(), scene.bodies(DLQ)) == ([], ["1", "2", "3"])


def test_the_wait_for_a_canary_without_a_worker_is_bounded(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2")
    result = penstock("dead", "replay", "--yes", "--canary", 1, "--canary-timeout", 1)
    assert result.exit_code == TEMPORARY
    assert "the canary: it is still in orders" in result.err or "is not empty" in result.err
    assert (len(scene.bodies()), len(scene.bodies(DLQ))) == (1, 1)


# Purge


def test_a_purge_deletes_the_selected_messages_and_is_audited(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", reason="timed out")
    scene.dead_letter("3", reason="KeyError: 7")
    assert penstock("dead", "purge", "--yes").exit_code == USAGE
    dry = penstock("dead", "purge", "--error", "timed", "--dry-run", "--json").document
    assert (dry["dead_letters"], scene.bodies(DLQ)) == (2, ["1", "2", "3"])
    assert penstock("dead", "purge", "--error", "timed", "--yes", "--json").document["deleted"] == 2
    assert penstock("dead", "purge", "--error", "timed", "--yes", "--json").document["deleted"] == 0
    assert scene.bodies(DLQ) == ["3"]
    assert scene.audit() == [("purge", DLQ, 2, "done")]
    entry = penstock("admin", "audit", "--json").document[0]
    assert (entry["action"], entry["details"]) == ("purge", {"error": "timed"})
    assert "@" in entry["who"]
    assert 'error="timed"' in penstock("admin", "audit").out


# Export and import


def test_exported_and_removed_messages_are_imported_unchanged_and_once(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", attributes={"raw": b"\xff\x00", "text": "é"}, group="g", traceback="line")
    scene.broker.send(QUEUE, [Outgoing(body="\u2028 ü".encode())])
    scene.dead_letter_next(reason="odd")
    before = scene.messages(DLQ)
    assert penstock("dead", "export", "--to", "letters.jsonl", "--remove").exit_code == 0
    assert scene.bodies(DLQ) == []
    assert [line["queue"] for line in lines_of(scene.folder / "letters.jsonl")] == [DLQ, DLQ]

    assert penstock("dead", "import", "letters.jsonl", "--json").document["imported"] == 2
    again = penstock("dead", "import", "letters.jsonl", "--json").document
    assert (again["imported"], again["imported_before"]) == (0, 2)
    after = scene.messages(DLQ)
    assert [(m.body, m.group, dict(m.attributes)) for m in after] == [
        (m.body, m.group, dict(m.attributes)) for m in before
    ]
    assert [entry[0] for entry in scene.audit()] == ["import", "import", "export"]
    assert penstock("dead", "replay", "--yes", "--json").document["sent"] == 2
    assert len(scene.bodies()) == 2


# on SQS, messages held by a dead process are hidden for some minutes
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("kill_at", [None, "dead_letters_kept"])
def test_a_dead_letter_replayed_during_an_export_is_not_imported(
    penstock: Call, scene: DeadLetterScene, kill_at: str | None
) -> None:
    """File and dead letters both exist: a copy, or an export that is about to remove them."""
    scene.dead_letter("1", "2")
    if kill_at is None:
        assert penstock("dead", "export", "--to", "letters.jsonl").exit_code == 0
    else:
        words = ("dead", "export", "--to", "letters.jsonl", "--remove")
        process = Process(scene.folder, *words, before=("setsid", "env", f"PENSTOCK_KILL_AT={kill_at}"))
        assert process.exit_code() == -signal.SIGKILL
    first, _ = sorted(lines_of(scene.folder / "letters.jsonl"), key=lambda line: str(line["body"]))
    assert penstock("dead", "replay", "--id", first["id"], "--yes", "--json").document["sent"] == 1
    done = penstock("dead", "import", "letters.jsonl", "--json").document
    assert (done["imported"], done["imported_before"], done["replayed"]) == (1, 0, 1)
    assert (scene.bodies(), scene.bodies(DLQ)) == (["1"], ["2", "2"])  # beside the dead letter that still exists
    again = penstock("dead", "import", "letters.jsonl", "--json").document
    assert (again["imported"], again["imported_before"], again["replayed"]) == (0, 1, 1)


def test_an_export_to_standard_output_leaves_the_dead_letters(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2", reason="a")
    scene.dead_letter("3", reason="b")
    result = penstock("dead", "export", "--error", "a", "--limit", 1)
    (line,) = result.out.splitlines()
    assert json.loads(line)["body"] in ("1", "2")
    assert scene.bodies(DLQ) == ["1", "2", "3"]
    assert penstock("dead", "export", "--remove").exit_code == USAGE


def test_an_existing_file_is_not_overwritten(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1")
    (scene.folder / "kept").write_text("precious", encoding="utf-8")
    result = penstock("dead", "export", "--to", "kept", "--remove")
    assert result.exit_code == USAGE
    assert (scene.folder / "kept").read_text(encoding="utf-8") == "precious"
    assert scene.bodies(DLQ) == ["1"]


def test_an_invalid_line_of_an_import_is_named(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1")
    assert penstock("dead", "export", "--to", "letters").exit_code == 0
    with (scene.folder / "letters").open("a", encoding="utf-8") as file:
        file.write("\n{}\n")
    result = penstock("dead", "import", "letters")
    assert result.exit_code == USAGE
    assert re.search("Line 3 of .*letters is not an exported dead letter: it has no penstock_letter", result.err)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_export_can_be_written_to_s3_and_imported(
    penstock: Call, scene: DeadLetterScene, moto: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    moto.client("s3").create_bucket(Bucket="kept")
    scene.dead_letter("1", "2")
    assert penstock("dead", "export", "--to", "s3://kept/letters/a.jsonl", "--remove").exit_code == 0
    assert scene.bodies(DLQ) == []
    assert penstock("dead", "export", "--to", "s3://kept/letters/a.jsonl").exit_code == USAGE
    assert penstock("dead", "import", "s3://kept/letters/a.jsonl", "--json").document["imported"] == 2
    assert scene.bodies(DLQ) == ["1", "2"]
    for nowhere in ("s3://kept/letters/", "s3://kept"):
        assert penstock("dead", "export", "--to", nowhere).exit_code == USAGE
    assert penstock("dead", "import", "s3://kept/nothing").exit_code == USAGE


# Confirmation


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    ("command", "answer", "left", "returned"),
    [
        ("replay", "y", 0, 2),
        ("replay", "n", 2, 0),
        ("replay", "", 2, 0),
        ("purge", "2", 0, 0),
        ("purge", "y", 2, 0),
        ("purge", "3", 2, 0),
    ],
)
def test_on_a_terminal_confirmation_names_the_count(
    scene: DeadLetterScene, command: str, answer: str, left: int, returned: int
) -> None:
    scene.dead_letter("1", "2")
    code, result = _at_a_terminal(scene.folder, answer, "dead", command, "--queue", QUEUE)
    assert code == (1 if left else 0), result
    assert "2 dead letters" in result
    assert (len(scene.bodies(DLQ)), len(scene.bodies())) == (left, returned)


def _at_a_terminal(folder: Path, answer: str, *arguments: str) -> tuple[int, str]:
    """Run the command on a terminal, answer its question, and return its exit code and output."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(
            sys.executable, [sys.executable, "-m", "penstock", *arguments], {**os.environ, "PYTHONPATH": str(SRC)}
        )
    shown = b""
    answered = False
    try:
        while part := _read(terminal):
            shown += part
            if not answered and shown.rstrip().endswith(b"]"):
                os.write(terminal, answer.encode() + b"\n")
                answered = True
    finally:
        os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def _read(terminal: int) -> bytes:
    ready, _, _ = select.select([terminal], [], [], DEADLINE_SECONDS)
    assert ready, "the command printed nothing"
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


# Listing and showing


def test_groups_and_show_print_counts_and_one_dead_letter(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter(
        "1", "2", reason="KeyError: 7", fingerprint="bill|KeyError|shop.py:f", handler="bill", exception="KeyError"
    )
    scene.dead_letter('{"id": 3}', reason="order 12 of '/srv/x.csv' is unknown", traceback="line one\nline two")
    found = penstock("dead", "groups", "--json").document
    assert [(group["key"], group["count"], group["queues"]) for group in found["groups"]] == [
        ("bill|KeyError|shop.py:f", 2, [DLQ]),
        ("order <n> of <text> is unknown", 1, [DLQ]),
    ]
    example = found["groups"][1]["example_id"]
    assert "order <n> of <text> is unknown" in penstock("dead", "groups").out
    keyed = penstock("dead", "list", "--error", "order <n> of <text> is unknown", "--json").document
    assert [dead_letter["message_id"] for dead_letter in keyed] == [example]

    shown = penstock("dead", "show", example, "--json").document
    assert (shown["body"], shown["original_queue"], shown["replay"]) == ('{"id": 3}', QUEUE, None)
    result = penstock("dead", "show", example).out
    for words in ("order 12 of '/srv/x.csv'", "line two", '{"id": 3}', "first seen"):
        assert words in result
    assert penstock("dead", "show", "nobody").exit_code == USAGE


def test_dead_letters_are_visible_again_after_reading(penstock: Call, scene: DeadLetterScene) -> None:
    scene.dead_letter("1", "2")
    for command in (("list",), ("groups",), ("show", "nobody"), ("list", "--limit", 1), ("export",)):
        result = penstock("dead", *command)
        assert scene.bodies(DLQ) == ["1", "2"], command
        assert ("hidden from the replayer" in result.err) is not scene.broker.capabilities.browsable


@pytest.mark.parametrize("kind", ["sqs"])
def test_without_a_known_source_nothing_is_received(
    penstock: Call, scene: DeadLetterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_WORKER_QUEUES")
    for command in (("show", "x"), ("groups",), ("replay", "--dry-run"), ("export",)):
        result = penstock("dead", *command)
        assert (result.exit_code, "give --queue" in result.err, "hidden" in result.err) == (USAGE, True, False), command


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition never became true"
        threading.Event().wait(0.05)

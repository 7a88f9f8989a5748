"""Exports and archives of dead letters, killed at each step: each dead letter is in its queue, in a file, or in both.

Queues and files are read without the product, with bare clients and a JSON parser.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cli.process import SRC
from tests.integration.fleet import wait_for
from tests.services.aws_server import AwsServer, environment_for
from tests.services.forked_process import ForkedPopen

from penstock.app.jobs.expiry import FILE_MESSAGES_MAX
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.dead_letters.reader import PAGE
from penstock.errors import UsageError
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Step

STEPS = (Step.DEAD_LETTERS_WRITTEN, Step.DEAD_LETTERS_KEPT, Step.DEAD_LETTERS_REMOVED)
QUEUE = "orders-dead"  # the final DLQ: a replayer sends nothing from it
RETENTION_SECONDS = 100_000.0
FEW = 20
PROCESS_SECONDS = 120.0
APP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def bill(message):
    pass
"""
# On SQS, reading dead letters hides them for some minutes, even if the reader dies: here for seconds.
PENSTOCK = """
import os, runpy
from penstock.dead_letters.reader import ReceivingReader
ReceivingReader.__init__.__kwdefaults__["hidden_seconds"] = float(os.environ.get("HIDDEN_SECONDS", "5"))
runpy.run_module("penstock", run_name="__main__")
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A folder with an app and a queue of dead letters; ``bodies_in_queue`` reads that queue without the product."""

    folder: Path
    broker: Broker
    bodies_in_queue: Callable[[], Sequence[str]]
    all_visible: Callable[[int], bool]  # True if that many dead letters can be read again
    environment: dict[str, str] = field(default_factory=dict)

    def add_dead_letters(self, count: int) -> set[str]:
        bodies = [f"letter {number}" for number in range(count)]
        for first in range(0, count, 500):
            self.broker.send(QUEUE, [Outgoing(body=body.encode()) for body in bodies[first : first + 500]])
        return set(bodies)

    def start(self, *arguments: object, kill_at: str | None = None) -> subprocess.Popen[str]:
        return ForkedPopen(
            [sys.executable, "-c", PENSTOCK, *map(str, arguments)],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(SRC),
                **self.environment,
                **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # dying at a step kills the process group
        )

    def run(self, *arguments: object, kill_at: str | None = None, code: int = 0) -> None:
        process = self.start(*arguments, kill_at=kill_at)
        _, err = process.communicate(timeout=PROCESS_SECONDS)
        assert process.returncode == (-signal.SIGKILL if kill_at else code), err

    def kept(self) -> dict[str, Counter[str]]:
        """Return the bodies in each file."""
        return {
            path.name: Counter(json.loads(line)["body"] for line in path.read_text(encoding="utf-8").splitlines())
            for path in sorted(self.folder.rglob("[!.]*.jsonl"))
        }

    def import_all(self) -> None:
        for path in sorted(self.folder.rglob("[!.]*.jsonl")):
            self.run("dead", "import", path)


def on_sqlite(request: pytest.FixtureRequest, folder: Path) -> Scene:
    file = folder / ".penstock" / "queue.db"
    file.parent.mkdir()
    broker = SqliteBroker(file, holder="test", queues=[QueueSettings(name=QUEUE, retention_seconds=RETENTION_SECONDS)])
    request.addfinalizer(broker.close)

    def bodies_in_queue() -> Sequence[str]:
        statement = "SELECT body FROM messages JOIN queues ON queues.id = queue_id WHERE name = ?"
        with closing(sqlite3.connect(file, timeout=60)) as connection:
            return [body.decode() for (body,) in connection.execute(statement, (QUEUE,))]

    return Scene(
        folder=folder,
        broker=broker,
        bodies_in_queue=bodies_in_queue,
        all_visible=lambda count: len(bodies_in_queue()) == count,
    )


def on_sqs(request: pytest.FixtureRequest, folder: Path) -> Scene:
    server: AwsServer = request.getfixturevalue("moto")
    raw = server.client("sqs")
    urls = {name: raw.create_queue(QueueName=name)["QueueUrl"] for name in ("orders", "orders-dlq", QUEUE)}
    broker = SqsBroker(server.aws, holder="test", queues=[QueueSettings(name="orders")], poll_seconds=1)
    request.addfinalizer(broker.close)

    def counted(*states: str) -> int:
        found = raw.get_queue_attributes(QueueUrl=urls[QUEUE], AttributeNames=["All"])["Attributes"]
        return sum(int(found[f"ApproximateNumberOfMessages{state}"]) for state in states)

    def visible_again(count: int) -> bool:
        return counted("") == count and counted("NotVisible") == 0

    def bodies_in_queue() -> Sequence[str]:
        wait_for(lambda: counted("NotVisible") == 0, "all dead letters are visible")
        held = []
        hidden = {"VisibilityTimeout": 600}  # longer than a busy machine takes to read all of them
        while batch := raw.receive_message(QueueUrl=urls[QUEUE], MaxNumberOfMessages=10, **hidden).get("Messages"):
            held += batch
        for one in held:
            raw.change_message_visibility(QueueUrl=urls[QUEUE], ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0)
        return [one["Body"] for one in held]

    environment = {**environment_for(server.url), "PENSTOCK_BROKER": "sqs://", "PENSTOCK_ONE_HOST": "true"}
    return Scene(
        folder=folder,
        broker=broker,
        bodies_in_queue=bodies_in_queue,
        all_visible=visible_again,
        environment=environment,
    )


OPENERS = {"sqlite": on_sqlite, "sqs": on_sqs}


SLOWLY = ("sqs", Step.DEAD_LETTERS_REMOVED)  # hundreds of dead letters, and the server sends each one separately
EXPORTS = [
    pytest.param(broker, step, marks=[pytest.mark.slow] if (broker, step) == SLOWLY else [])
    for broker in OPENERS
    for step in STEPS
]


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    (tmp_path / "shop_with_letters.py").write_text(APP)
    return OPENERS[getattr(request, "param", "sqlite")](request, tmp_path)


@pytest.mark.parametrize(("scene", "step"), EXPORTS, indirect=["scene"])
def test_a_killed_export_that_removes_loses_no_dead_letter(scene: Scene, step: Step) -> None:
    export = ("dead", "export", "--queue", "orders", "--remove", "--to")
    dead_letters = scene.add_dead_letters(PAGE + FEW if step is Step.DEAD_LETTERS_REMOVED else FEW)
    if len(dead_letters) > PAGE:
        scene.environment["HIDDEN_SECONDS"] = "45"  # longer than the server takes to extend hundreds one by one
    scene.run(*export, "letters.jsonl", kill_at=step)
    left = FEW  # with and without a removed page before them
    wait_for(lambda: scene.all_visible(left), "the dead letters can be read again")
    in_queue, in_files = Counter(scene.bodies_in_queue()), scene.kept()
    assert in_queue.keys() | in_files.get("letters.jsonl", Counter()).keys() == dead_letters, "nothing is lost"
    assert in_files == ({} if step is Step.DEAD_LETTERS_WRITTEN else {"letters.jsonl": Counter(dead_letters)})
    assert (in_queue.total(), set(in_queue.values())) == (left, {1})

    again = "letters.jsonl"
    if step is not Step.DEAD_LETTERS_WRITTEN:
        scene.run(*export, again, code=UsageError.exit_code)
        assert Counter(scene.bodies_in_queue()) == in_queue
        again = "rest.jsonl"
    scene.run(*export, again)
    assert scene.bodies_in_queue() == []
    assert scene.kept() == {**in_files, again: in_queue}
    scene.import_all()
    assert Counter(scene.bodies_in_queue()) == Counter(dead_letters), "each once, from however many files"


@pytest.mark.parametrize(
    ("step", "one_more"),
    [
        pytest.param(
            step,
            one_more,
            id=f"{step}-{'with one more meanwhile' if one_more else 'alone'}",
            # quick: each step alone, and with one more where that makes a second file
            marks=pytest.mark.slow if one_more and step is not Step.DEAD_LETTERS_KEPT else (),
        )
        for step in STEPS
        for one_more in (False, True)
    ],
)
def test_a_killed_archive_of_expiring_dead_letters_loses_none(scene: Scene, step: Step, one_more: bool) -> None:
    scene.environment["PENSTOCK_DEAD_LETTERS_ARCHIVE"] = str(scene.folder / "archive")
    dead_letters = scene.add_dead_letters(FILE_MESSAGES_MAX + FEW if step is Step.DEAD_LETTERS_REMOVED else FEW)
    grow_old(scene)
    scene.run("worker", "shop_with_letters:app", "--replay", "--jobs", "only", kill_at=step)
    in_queue, first = Counter(scene.bodies_in_queue()), scene.kept()
    in_files = sum(first.values(), Counter())
    assert in_queue.keys() | in_files.keys() == dead_letters, "nothing is lost"
    assert set(in_queue.values()) == {1}
    assert in_queue.total() == FEW
    assert in_files.total() == {Step.DEAD_LETTERS_WRITTEN: 0, Step.DEAD_LETTERS_KEPT: FEW}.get(step, FILE_MESSAGES_MAX)

    if one_more:
        scene.broker.send(QUEUE, [Outgoing(body=b"one more")])
        grow_old(scene, but=dead_letters)
    process = scene.start("worker", "shop_with_letters:app", "--replay", "--jobs", "only")
    try:
        wait_for(lambda: not scene.bodies_in_queue(), "the archive has all of them")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PROCESS_SECONDS)
    dead_letters |= {"one more"} if one_more else set()
    in_files = sum(scene.kept().values(), Counter())
    twice = in_queue if one_more and step is Step.DEAD_LETTERS_KEPT else Counter[str]()  # a second file is written then
    assert in_files == Counter(dead_letters) + twice
    scene.import_all()
    assert Counter(scene.bodies_in_queue()) == Counter(dead_letters), "each once, from however many files"


def grow_old(scene: Scene, *, but: set[str] | None = None) -> None:
    """Make dead letters expire soon, as if time had passed."""
    rows = [(0.97 * RETENTION_SECONDS, body.encode()) for body in scene.bodies_in_queue() if body not in (but or ())]
    with closing(sqlite3.connect(scene.folder / ".penstock" / "queue.db", timeout=60)) as connection, connection:
        connection.executemany("UPDATE messages SET enqueued_at = enqueued_at - ? WHERE body = ?", rows)

"""`penstock objects retry`: dead objects live again, once, whatever became of their letters."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import SRC
from tests.cli.scene import Scene

from penstock.app.loading import load_app
from penstock.app.serving import serve
from penstock.app.state import QUEUE_FILE
from penstock.brokers.sqlite import SqliteBroker
from penstock.ledger.records import Failure
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.steps import Step
from penstock.objects.notification import parse
from penstock.worker.shutdown import StopSignal

USAGE = 2
LEASE_SECONDS = 600.0
LETTERS = """
from pathlib import Path
from penstock import App, Reject

app = App()


@app.object_handler("letters", name="post", source="landing", max_attempts=1)
def deliver(each, ctx):
    if not Path("mended").exists():
        raise Reject("no such customer")
    with open("done", "a") as done:
        done.write(f"{Path(each.key).name}\\n")
"""


class Post:
    """An app whose objects die until something is mended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "landing").mkdir()
        (folder / "post.py").write_text(LETTERS)

    def work(self) -> None:
        """A worker, until nothing is left in the queue."""
        with load_app("post:app") as app:
            broker = app.broker
            serve(app, stop=StopSignal(), resident=False, until=lambda: broker.stats("letters").messages == 0)

    def die(self, *names: str) -> None:
        for name in names:
            (self.folder / "landing" / name).write_text("dear all\n")
        with load_app("post:app") as app:
            app.announce("letters", "landing")
        self.work()

    def mend(self) -> None:
        (self.folder / "mended").touch()

    @property
    def done(self) -> list[str]:
        file = self.folder / "done"
        return sorted(file.read_text().split()) if file.exists() else []


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Post(tmp_path)


def waiting(scene: Scene) -> list[Message]:
    """What is in the scene's queue, taken."""
    found: list[Delivery] = []
    with closing(SqliteBroker(scene.where.state / QUEUE_FILE, holder="")) as broker:
        for queue in broker.queue_names():
            found += broker.receive(queue, messages_max=10, lease_seconds=LEASE_SECONDS)
        return [delivery.message for delivery in found]


def test_dead_objects_without_letters_are_worked_on_again(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock("queues", "purge", "letters-dlq", "--yes").exit_code == 0
    post.mend()
    said = penstock("objects", "retry", "--app", "post:app", "--yes")
    assert (said.exit_code, said.out) == (0, "2 dead objects announced anew (letters 2).\n")
    assert "Dead letters" not in said.err
    post.work()
    assert post.done == ["a", "b"]
    assert [one["state"] for one in penstock("objects", "list", "--json").document] == ["processed"] * 2
    assert penstock("status").out.startswith("all well\n")


def test_twice_is_once(penstock: Call, post: Post) -> None:
    post.die("a")
    for _ in range(2):
        assert penstock("objects", "retry", "--app", "post:app", "--yes", "--json").document["sent"] == 1
    post.work()  # the first lets it live and die again, which the second must not undo
    (timeline,) = [one["timeline"] for one in penstock("objects", "show", "landing/a", "--json").document]
    assert [one["outcome"] for one in timeline] == ["dead", "dead"]

    post.mend()
    assert penstock("objects", "retry", "landing/a", "--app", "post:app", "--yes").exit_code == 0, "another death"
    post.work()
    assert post.done == ["a"]


def test_killed_after_the_first_announcement_it_is_run_again(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c")
    retry = ("objects", "retry", "--app", "post:app", "--yes")
    killed = subprocess.run(
        [sys.executable, "-m", "penstock", *retry, "--rate", "1"],  # announced one by one
        env={**os.environ, "PYTHONPATH": str(SRC), "PENSTOCK_KILL_AT": Step.ANNOUNCED.value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,  # dying at a step kills the process group
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert penstock("queues", "show", "letters", "--json").document["visible"] == 1
    assert penstock(*retry, "--json").document["sent"] == 3, "none of them lives again before a worker claims it"
    post.mend()
    post.work()
    assert post.done == ["a", "b", "c"]
    assert [entry["outcome"] for entry in penstock("audit", "--json").document] == ["done", None]


def test_letters_are_left_and_told(penstock: Call, post: Post) -> None:
    post.die("a")
    said = penstock("objects", "retry", "--app", "post:app", "--yes")
    assert "Dead letters stay where they are (letters-dlq 1), those of these objects too." in said.err
    post.mend()
    post.work()
    assert penstock("dead", "replay", "--app", "post:app", "--yes").exit_code == 0
    post.work()
    assert post.done == ["a"], "its letter does nothing more"


def test_what_it_did_is_on_record(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock("objects", "retry", "--filter", "LANDING/A", "--app", "post:app", "--yes").exit_code == 0
    (entry,) = penstock("audit", "--json").document
    assert (entry["action"], entry["queue"], entry["messages"], entry["outcome"]) == ("retry", "letters", 1, "done")
    assert entry["details"] == {"filter": "LANDING/A"}


def test_a_dry_run_tells_and_sends_nothing(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    said = penstock("objects", "retry", "--app", "post:app", "--dry-run")
    assert said.out.split() == ["objects", "to", "2", "letters"]
    told = penstock("objects", "retry", "--app", "post:app", "--dry-run", "--limit", 1, "--json").document
    assert told == {"objects": 1, "by_queue": {"letters": 1}, "replaced": 0, "not_dead": [], "unknown": []}
    assert penstock("queues", "show", "letters", "--json").document["visible"] == 0
    assert penstock("audit", "--json").document == []


def test_a_table_of_ingest_knows_its_queue(penstock: Call, scene: Scene) -> None:
    scene.fail("a", Failure.DEAD, "bad")
    scene.process("b")
    assert "run its `penstock ingest`" in penstock("objects", "retry", "--yes").err
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes", "--json")
    assert said.document["sent"] == 1
    announced, retried = waiting(scene)
    (sent,) = parse(retried.body, buckets_allowed=None).objects
    assert sent.object_id == scene.ref("a").object_id, "the very version that died"
    assert "penstock-replay-id" not in announced.attributes
    assert len(str(retried.attributes["penstock-replay-id"])) == 32


def test_several_sources_need_a_queue_to_be_named(penstock: Call, scene: Scene) -> None:
    scene.fail("a", Failure.DEAD, "bad")
    scene.send("elsewhere")
    scene.source = scene.source.with_name("other")
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert said.exit_code == USAGE
    assert "several sources, each with a queue of its own (ingest-" in said.err


def test_an_app_has_to_say_which_queue(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.fail("a", Failure.DEAD, "bad")
    app_scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "give --app, such as --app shop:app, or --queue" in said.err
    assert (
        "There is no queue cliks-files to send to"
        in penstock("objects", "retry", "--yes", "--queue", "cliks-files").err
    )
    by_queue = {"clicks-files": 1}
    assert penstock("objects", "retry", "--yes", "--queue", "clicks-files", "--json").document["by_queue"] == by_queue
    assert penstock("objects", "retry", "--yes", "--app", shop, "--json").document["by_queue"] == by_queue


def test_later_versions_need_no_retry_of_earlier_ones(penstock: Call, scene: Scene) -> None:
    scene.fail("a", Failure.DEAD, "bad")
    scene.process("a", version="2")
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (0, "")
    assert "1 dead object left alone: later versions of them were processed." in said.err
    assert penstock("objects", "retry", scene.ref("a").uri, "--yes", "--json").document["sent"] == 1, "it was named"


def test_what_is_not_dead_is_named_and_left(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.send("elsewhere")
    said = penstock("objects", "retry", scene.ref("a").uri, "nowhere", "--yes")
    assert said.exit_code == USAGE
    assert f"{scene.ref('a').uri} is not dead but processed, and left alone." in said.err
    assert "nowhere." in said.err
    assert "The ledger knows no object file://" in said.err


def test_nothing_dead_is_no_failure(penstock: Call, scene: Scene) -> None:
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (0, "")
    assert "No such dead objects." in said.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "`penstock objects retry` asks first"),
        (("", "--yes"), "OBJECT is empty"),
        (("--filter", "", "--yes"), "--filter is empty"),
        (("a", "--filter", "b", "--yes"), "not both"),
        (("--rate", "0", "--yes"), "--rate"),
    ],
)
def test_what_it_refuses(penstock: Call, scene: Scene, options: tuple[str, ...], told: str) -> None:
    said = penstock("objects", "retry", *options)
    assert (said.exit_code, said.out) == (USAGE, "")
    assert told in said.err

"""`penstock objects retry`: failed objects are retried once, whether or not their dead letters exist."""

import importlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import SRC
from tests.cli.scene import Scene

from penstock.app.loading import load_app
from penstock.app.scope import ScopeRequest as ScopeAsked
from penstock.app.scope import find_scope
from penstock.app.serving import serve
from penstock.app.state import QUEUE_FILE
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger.records import AttemptFailure
from penstock.messaging.broker import Broker
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.steps import Step
from penstock.objects.notification import parse
from penstock.operations.dead_letters.selection import opened_ledger
from penstock.operations.inspection import view
from penstock.operations.objects.retry import RetrySelection, plan, retry
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

FAILED, USAGE = 1, 2
LEASE_SECONDS = 600.0
LATER_SECONDS = 3_600.0
LETTERS = """
from pathlib import Path
from penstock import App, Reject

app = App()


def deliver(each, ctx):
    if not Path("mended").exists():
        raise Reject("no such customer")
    with open("done", "a") as done:
        done.write(f"{Path(each.key).name}\\n")


app.object_handler("letters", name="post", source="landing", max_attempts=1)(deliver)
"""
VIEWS = """
app.object_handler("views-files", name="views", source="landing", max_attempts=1)(deliver)
"""
RETRY = ("objects", "retry", "--app", "post:app", "--yes")


class Post:
    """An app whose objects die until something is mended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "landing").mkdir()
        self.declare(LETTERS)

    def declare(self, code: str) -> None:
        (self.folder / "post.py").write_text(code)
        sys.modules.pop("post", None)
        importlib.invalidate_caches()

    def work(self, *queues: str) -> None:
        """A worker, until nothing is left in its queues."""
        with load_app("post:app") as app:
            broker = app.broker
            idle = partial(self._idle, broker, queues or ("letters",))
            serve(app, stop=StopSignal(), resident=False, until=idle)

    def die(self, *names: str, queue: str = "letters") -> None:
        for name in names:
            (self.folder / "landing" / name).write_text("dear all\n")
        with load_app("post:app") as app:
            app.announce(queue, "landing")
        self.work(queue)

    def mend(self) -> None:
        (self.folder / "mended").touch()

    def died_later(self) -> None:
        """As the ledger's clock has it, which is ahead of the broker's: no message is of after these deaths."""
        with closing(sqlite3.connect(self.folder / ".penstock" / "ledger.db")) as connection, connection:
            changed = connection.execute("UPDATE objects SET dead_at = dead_at + ?", (LATER_SECONDS,)).rowcount
        assert changed

    @property
    def done(self) -> list[str]:
        file = self.folder / "done"
        return sorted(file.read_text().split()) if file.exists() else []

    @staticmethod
    def _idle(broker: Broker, queues: Sequence[str]) -> bool:
        return all(broker.stats(queue).messages == 0 for queue in queues)


class Terminal:
    """A terminal on which the user answers."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        return self.answer

    def fileno(self) -> int:
        raise OSError


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Post(tmp_path)


def waiting(scene: Scene) -> list[Message]:
    """Receive and return the messages in the scene's queue."""
    found: list[Delivery] = []
    with closing(SqliteBroker(scene.where.state / QUEUE_FILE, holder="")) as broker:
        for queue in broker.queue_names():
            found += broker.receive(queue, messages_max=10, lease_seconds=LEASE_SECONDS)
        return [delivery.message for delivery in found]


def outcomes(penstock: Call, name: str) -> list[str]:
    """Return the object's attempts."""
    (document,) = penstock("objects", "show", f"landing/{name}", "--json").document
    return [one["outcome"] for one in document["timeline"]]


def test_failed_objects_without_dead_letters_are_processed_again(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock("queues", "purge", "letters-dlq", "--yes").exit_code == 0
    post.mend()
    said = penstock(*RETRY)
    assert (said.exit_code, said.out) == (0, "2 objects enqueued again (letters 2).\n")
    assert "Dead letters" not in said.err
    post.work()
    assert post.done == ["a", "b"]
    assert [one["state"] for one in penstock("objects", "list", "--json").document] == ["processed"] * 2
    assert penstock("status").out.startswith("all well\n")


def test_a_queue_that_was_lost_is_made_again(penstock: Call, post: Post) -> None:
    post.die("a")
    for file in (post.folder / ".penstock").glob("queue.db*"):
        file.unlink()
    post.mend()
    assert penstock(*RETRY, "--dry-run", "--json").document["objects"] == 1
    assert not (post.folder / ".penstock" / "queue.db").exists()
    assert penstock(*RETRY, "--json").document["by_queue"] == {"letters": 1}
    post.work()
    assert post.done == ["a"]


def test_one_death_is_followed_by_one_life(penstock: Call, post: Post) -> None:
    post.die("a")
    for _ in range(2):
        assert penstock(*RETRY, "--json").document["sent"] == 1
    post.work()  # the first lets it live and die again, which the second must not undo
    assert outcomes(penstock, "a") == ["dead", "dead"]


def test_each_death_can_be_followed_by_a_life_whatever_the_clocks_say(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    for lives in (2, 3):
        post.died_later()
        assert penstock(*RETRY, "--json").document["sent"] == 2
        post.work()
        assert outcomes(penstock, "a") == outcomes(penstock, "b") == ["dead"] * lives
    post.died_later()
    post.mend()
    assert penstock("objects", "retry", "landing/a", "landing/a", *RETRY[2:], "--json").document["sent"] == 1
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
    assert [entry["outcome"] for entry in penstock("admin", "audit", "--json").document] == ["done", None]


def test_existing_dead_letters_are_reported_before_the_question(
    penstock: Call, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.die("a", "b")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    said = penstock(*RETRY[:-1])
    assert (said.exit_code, said.out) == (FAILED, "")
    told = [line.partition(":")[0] for line in said.err.splitlines()]
    assert told == [
        "The DLQs have dead letters (letters-dlq 2), perhaps of these objects",
        "        2  -> letters",
        "Enqueue 2 objects again? [y/N]",
        "Nothing was announced.",
    ]
    assert penstock("queues", "show", "letters", "--json").document["visible"] == 0
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert penstock(*RETRY[:-1]).out == "2 objects enqueued again (letters 2).\n"
    post.mend()
    post.work()
    assert penstock("dead", "replay", "--app", "post:app", "--yes").exit_code == 0
    post.work()
    assert post.done == ["a", "b"], "their letters change nothing any more"


def test_the_dead_letter_of_a_rejected_object_names_its_handler_and_is_poison(penstock: Call, post: Post) -> None:
    post.die("a")
    (letter,) = [
        one for one in penstock("dead", "list", "--handler", "post", "--json").document if one["kind"] == "message"
    ]
    assert (letter["handler"], letter["poison"]) == ("post", True)
    said = penstock("admin", "replayer", "post:app", "--json")
    assert said.exit_code == 0, said.err
    assert penstock("queues", "show", "letters-dead", "--json").document["visible"] == 1, "set aside for people at once"


def test_a_search_for_the_dead_letter_of_an_object_without_one_names_the_other_command(
    penstock: Call, post: Post
) -> None:
    post.die("a")
    assert penstock("queues", "purge", "letters-dlq", "--yes").exit_code == 0
    said = penstock("dead", "replay", "--object", "landing/a", "--app", "post:app", "--yes")
    assert (said.exit_code, said.out) == (0, "0 dead letters sent back.\n")
    assert (
        "No dead letter names that object; `penstock objects retry` sends notifications for failed objects again."
        in said.err
    )


def test_it_stops_between_two_chunks_and_keeps_to_the_rate(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c", "d")
    clock, asked = FakeClock(auto_advance=True), RetrySelection(rate=1)
    told: list[float] = []

    def announced(times: int) -> int:
        told.clear()
        with view(find_scope(ScopeAsked(app="post:app"), here=post.folder)) as seen:
            planned = plan(seen, asked)
            assert planned.objects == {"post": 4}
            with closing(opened_ledger(seen)) as ledger:
                sent = retry(
                    seen,
                    asked,
                    planned,
                    ledger=ledger,
                    stopped=lambda: len(told) == times,
                    on_progress=lambda count: told.append(clock.monotonic()),
                    clock=clock,
                )
        return sent.total()

    assert announced(times=4) == 4
    assert [round(at, 3) for at in told] == [0, 1, 2, 3]
    assert round(clock.monotonic(), 3) == 3, "nothing is waited for after the last"
    assert announced(times=2) == 2
    assert [entry["outcome"] for entry in penstock("admin", "audit", "--json").document] == [
        "interrupted",
        "interrupted",
    ]


def test_what_lives_again_before_its_turn_is_left_alone(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c")
    post.mend()
    asked = RetrySelection(rate=1)
    with view(find_scope(ScopeAsked(app="post:app"), here=post.folder)) as seen:
        planned = plan(seen, asked)
        with closing(opened_ledger(seen)) as ledger:
            sent = retry(
                seen,
                asked,
                planned,
                ledger=ledger,
                stopped=lambda: False,
                on_progress=lambda count: self_healed(penstock, post),
                clock=FakeClock(auto_advance=True),
            )
    assert sent.total() == 1
    post.work()
    assert post.done == ["a", "b", "c"]


def self_healed(penstock: Call, post: Post) -> None:
    assert penstock("dead", "replay", "--app", "post:app", "--yes").exit_code == 0
    post.work()


def test_what_it_did_is_on_record(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock(*RETRY, "--filter", "LANDING/A", "--rate", 5).exit_code == 0
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["queue"], entry["messages"], entry["outcome"]) == ("retry", "letters", 1, "done")
    assert entry["details"] == {"pipeline": "post", "filter": "LANDING/A", "rate": 5.0}


def test_a_dry_run_reports_and_sends_nothing(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    said = penstock("objects", "retry", "--app", "post:app", "--dry-run")
    assert said.out.split() == ["objects", "to", "2", "letters"]
    assert "The DLQs have dead letters (letters-dlq 2)" in said.err
    assert penstock("objects", "retry", "--app", "post:app", "--dry-run", "--limit", 1, "--json").document == {
        "objects": 1,
        "by_queue": {"letters": 1},
        "dead_letters": {"letters-dlq": 2},
        "replaced": 0,
        "other_pipelines": [],
        "not_dead": [],
        "unknown": [],
    }
    assert penstock("queues", "show", "letters", "--json").document["visible"] == 0
    assert penstock("admin", "audit", "--json").document == []


def test_each_pipeline_has_its_own_queue(penstock: Call, post: Post) -> None:
    post.declare(LETTERS + VIEWS)
    post.die("a")
    post.die(queue="views-files")
    said = penstock("objects", "retry", "--queue", "letters", "--yes")
    assert said.exit_code == USAGE
    assert "say with --pipeline which of these is meant: post, views." in said.err
    said = penstock(*RETRY, "--queue", "letters")
    assert said.exit_code == USAGE
    assert "leave --queue out, or --app" in said.err
    named = ("objects", "retry", "--pipeline", "views", "--queue", "views-files", "--yes", "--json")
    assert penstock(*named).document["by_queue"] == {"views-files": 1}
    both = penstock(*RETRY, "--json").document
    assert both["by_queue"] == {"letters": 1, "views-files": 1}
    assert both["dead_letters"] == {"letters-dlq": 1, "views-files-dlq": 1}
    assert penstock("objects", "retry", "landing/a", *RETRY[2:], "--json").document["by_queue"] == both["by_queue"]
    limited = penstock(*RETRY, "--limit", 1, "--json").document
    assert limited["by_queue"] == {"letters": 1}


def test_pipelines_that_the_app_does_not_have_are_left(penstock: Call, post: Post) -> None:
    post.declare(LETTERS + VIEWS)
    post.die("a")
    post.die(queue="views-files")
    post.declare(LETTERS)
    said = penstock(*RETRY)
    assert said.out == "1 object enqueued again (letters 1).\n"
    assert "Not in the app, so left alone: the ledger's pipelines views." in said.err
    said = penstock(*RETRY, "--pipeline", "views")
    assert said.exit_code == USAGE
    assert "The app has no pipeline views; it has: post." in said.err


def test_archived_objects_are_known(penstock: Call, post: Post) -> None:
    post.die("a")
    (post.folder / "landing" / "b").write_text("dear all\n")
    (document,) = penstock("objects", "list", "--json").document
    listed = {"bucket": "file", "key": document["object"].removeprefix("file://")}
    known = {"size": document["size_bytes"], "etag": document["version"]}
    (post.folder / "done.jsonl").write_text(json.dumps(listed | known))
    said = penstock("objects", "import", "--processed", "done.jsonl", "post:app", "post")
    assert said.exit_code == 0, said.err
    said = penstock("objects", "retry", "landing/a", *RETRY[2:])
    assert said.exit_code == USAGE
    assert f"{document['object']} is processed, and left alone." in said.err


def test_a_table_of_ingest_knows_its_queue(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.process("b")
    assert "run its `penstock ingest`" in penstock("objects", "retry", "--yes").err
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes", "--json")
    assert said.document["sent"] == 1
    announced, retried = waiting(scene)
    (sent,) = parse(retried.body, buckets_allowed=None).objects
    assert sent.object_id == scene.ref("a").object_id, "the very version that died"
    assert "penstock-replay-id" not in announced.attributes
    assert re.fullmatch("[0-9a-f]{32}", str(retried.attributes["penstock-replay-id"]))


def test_several_sources_need_a_queue_to_be_named(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.send("elsewhere")
    scene.source = scene.source.with_name("other")
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert said.exit_code == USAGE
    assert "several sources, each with a queue of its own (ingest-" in said.err


def test_an_app_has_to_say_which_queue(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    app_scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "give --app, such as --app shop:app; or --pipeline and --queue." in said.err
    assert (
        "There is no queue cliks-files to send to"
        in penstock("objects", "retry", "--yes", "--queue", "cliks-files").err
    )
    by_queue = {"clicks-files": 1}
    assert penstock("objects", "retry", "--yes", "--queue", "clicks-files", "--json").document["by_queue"] == by_queue
    assert penstock("objects", "retry", "--yes", "--app", shop, "--json").document["by_queue"] == by_queue


def test_later_versions_need_no_retry_of_earlier_ones(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.process("a", version="2")
    scene.send("elsewhere")
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (0, "")
    assert "1 object left alone: later versions of them were processed." in said.err
    assert penstock("objects", "retry", scene.ref("a").uri, "--yes", "--json").document["sent"] == 1, "it was named"


@pytest.mark.parametrize("state", [AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED])
def test_only_those_in_the_state_that_was_given_are_announced(
    penstock: Call, scene: Scene, state: AttemptFailure
) -> None:
    for number, failure in enumerate((AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)):
        for name in "ab"[: 1 + (failure is state)]:
            scene.fail(f"{name}-{failure.value}-{number}", failure, "bad")
    scene.send("elsewhere")
    only = () if state is AttemptFailure.DEAD else ("--only", state.value)
    assert penstock("objects", "retry", *only, "--filter", "a-", "--dry-run", "--json").document["objects"] == 1
    assert penstock("objects", "retry", *only, "--yes", "--json").document["sent"] == 2
    announced = {ref.uri for message in waiting(scene) for ref in parse(message.body, buckets_allowed=None).objects}
    assert sum(f"-{state.value}-" in uri for uri in announced) == 2
    assert len(announced) == 3, "and the one that was sent elsewhere"
    (entry,) = penstock("admin", "audit", "--json").document
    assert entry["details"].get("state") == (state.value if only else None)


def test_objects_that_have_not_failed_are_named_and_left(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.send("elsewhere")
    said = penstock("objects", "retry", scene.ref("a").uri, "nowhere", "--yes")
    assert said.exit_code == USAGE
    assert f"{scene.ref('a').uri} is processed, and left alone." in said.err
    assert "nowhere." in said.err
    assert "The ledger knows no object file://" in said.err


def test_nothing_dead_is_no_failure(penstock: Call, scene: Scene) -> None:
    scene.send("a")
    said = penstock("objects", "retry", "--yes")
    assert (said.exit_code, said.out) == (0, "")
    assert "No such objects." in said.err
    assert penstock("objects", "retry", "--yes", "--json").document["sent"] == 0
    assert penstock("admin", "audit", "--json").document == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "`penstock objects retry` asks for confirmation"),
        (("", "--yes"), "OBJECT is empty"),
        (("--filter", "", "--yes"), "--filter is empty"),
        (("a", "--filter", "b", "--yes"), "not both"),
        (("--rate", "0", "--yes"), "--rate"),
    ],
)
def test_requests_that_it_refuses(penstock: Call, scene: Scene, options: tuple[str, ...], told: str) -> None:
    said = penstock("objects", "retry", *options)
    assert (said.exit_code, said.out) == (USAGE, "")
    assert told in said.err

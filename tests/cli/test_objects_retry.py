"""`penstock objects retry`: failed objects are retried once, with or without their dead letters."""

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
from tests.services.forked_process import run_forked

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
LETTERS_APP = """
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
VIEWS_HANDLER = """
app.object_handler("views-files", name="views", source="landing", max_attempts=1)(deliver)
"""
RETRY = ("objects", "retry", "--app", "post:app", "--yes")


class Post:
    """An app whose objects fail until the test creates a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "landing").mkdir()
        self.declare(LETTERS_APP)

    def declare(self, code: str) -> None:
        (self.folder / "post.py").write_text(code)
        sys.modules.pop("post", None)
        importlib.invalidate_caches()

    def work(self, *queues: str) -> None:
        """Run a worker until nothing is left in its queues."""
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

    def make_deaths_newer(self) -> None:
        """Move the deaths ahead by the ledger's clock, which is then ahead of the broker's: no message is newer than
        these deaths.
        """
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
    """Return the outcomes of the object's attempts."""
    (document,) = penstock("objects", "show", f"landing/{name}", "--json").document
    return [one["outcome"] for one in document["timeline"]]


def test_failed_objects_without_dead_letters_are_processed_again(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock("queues", "purge", "letters-dlq", "--yes").exit_code == 0
    post.mend()
    result = penstock(*RETRY)
    assert (result.exit_code, result.out) == (0, "2 objects enqueued again (letters 2).\n")
    assert "Dead letters" not in result.err
    post.work()
    assert post.done == ["a", "b"]
    assert [one["state"] for one in penstock("objects", "list", "--json").document] == ["processed"] * 2
    assert penstock("status").out.startswith("all well\n")


def test_a_retry_recreates_a_lost_queue(penstock: Call, post: Post) -> None:
    post.die("a")
    for file in (post.folder / ".penstock").glob("queue.db*"):
        file.unlink()
    post.mend()
    assert penstock(*RETRY, "--dry-run", "--json").document["objects"] == 1
    assert not (post.folder / ".penstock" / "queue.db").exists()
    assert penstock(*RETRY, "--json").document["by_queue"] == {"letters": 1}
    post.work()
    assert post.done == ["a"]


def test_two_retries_of_one_death_revive_the_object_once(penstock: Call, post: Post) -> None:
    post.die("a")
    for _ in range(2):
        assert penstock(*RETRY, "--json").document["sent"] == 1
    post.work()  # the first message revives the object, which dies again; the second must not undo that
    assert outcomes(penstock, "a") == ["dead", "dead"]


def test_each_death_can_be_retried_despite_clock_differences(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    for lives in (2, 3):
        post.make_deaths_newer()
        assert penstock(*RETRY, "--json").document["sent"] == 2
        post.work()
        assert outcomes(penstock, "a") == outcomes(penstock, "b") == ["dead"] * lives
    post.make_deaths_newer()
    post.mend()
    assert penstock("objects", "retry", "landing/a", "landing/a", *RETRY[2:], "--json").document["sent"] == 1
    post.work()
    assert post.done == ["a"]


def test_a_retry_killed_after_its_first_notification_can_be_repeated(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c")
    retry = ("objects", "retry", "--app", "post:app", "--yes")
    killed = run_forked(
        [sys.executable, "-m", "penstock", *retry, "--rate", "1"],  # notifications are sent one by one
        env={**os.environ, "PYTHONPATH": str(SRC), "PENSTOCK_KILL_AT": Step.ANNOUNCED.value},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # dying at a step kills the process group
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert penstock("queues", "show", "letters", "--json").document["visible"] == 1
    assert penstock(*retry, "--json").document["sent"] == 3, "no object is revived before a worker claims it"
    post.mend()
    post.work()
    assert post.done == ["a", "b", "c"]
    assert [entry["outcome"] for entry in penstock("admin", "audit", "--json").document] == ["done", None]


def test_existing_dead_letters_are_reported_before_the_confirmation(
    penstock: Call, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.die("a", "b")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    result = penstock(*RETRY[:-1])
    assert (result.exit_code, result.out) == (FAILED, "")
    notices = [line.partition(":")[0] for line in result.err.splitlines()]
    assert notices == [
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
    assert post.done == ["a", "b"], "their dead letters change nothing any more"


def test_the_dead_letter_of_a_rejected_object_names_its_handler_and_is_poison(penstock: Call, post: Post) -> None:
    post.die("a")
    (dead_letter,) = [
        one for one in penstock("dead", "list", "--handler", "post", "--json").document if one["kind"] == "message"
    ]
    assert (dead_letter["handler"], dead_letter["poison"]) == ("post", True)
    result = penstock("admin", "replayer", "post:app", "--json")
    assert result.exit_code == 0, result.err
    assert penstock("queues", "show", "letters-dead", "--json").document["visible"] == 1, (
        "moved to the final DLQ at once"
    )


def test_a_search_for_the_dead_letter_of_an_object_without_one_names_the_other_command(
    penstock: Call, post: Post
) -> None:
    post.die("a")
    assert penstock("queues", "purge", "letters-dlq", "--yes").exit_code == 0
    result = penstock("dead", "replay", "--object", "landing/a", "--app", "post:app", "--yes")
    assert (result.exit_code, result.out) == (0, "0 dead letters sent back.\n")
    assert (
        "No dead letter names that object; `penstock objects retry` sends notifications for failed objects again."
        in result.err
    )


def test_a_retry_stops_between_two_chunks_and_obeys_its_rate(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c", "d")
    clock, selection = FakeClock(auto_advance=True), RetrySelection(rate=1)
    notices: list[float] = []

    def uris(times: int) -> int:
        notices.clear()
        with view(find_scope(ScopeAsked(app="post:app"), here=post.folder)) as seen:
            planned = plan(seen, selection)
            assert planned.objects == {"post": 4}
            with closing(opened_ledger(seen)) as ledger:
                sent = retry(
                    seen,
                    selection,
                    planned,
                    ledger=ledger,
                    stopped=lambda: len(notices) == times,
                    on_progress=lambda count: notices.append(clock.monotonic()),
                    clock=clock,
                )
        return sent.total()

    assert uris(times=4) == 4
    assert [round(at, 3) for at in notices] == [0, 1, 2, 3]
    assert round(clock.monotonic(), 3) == 3, "there is no wait after the last"
    assert uris(times=2) == 2
    assert [entry["outcome"] for entry in penstock("admin", "audit", "--json").document] == [
        "interrupted",
        "interrupted",
    ]


def test_an_object_that_recovered_before_its_turn_is_left_alone(penstock: Call, post: Post) -> None:
    post.die("a", "b", "c")
    post.mend()
    selection = RetrySelection(rate=1)
    with view(find_scope(ScopeAsked(app="post:app"), here=post.folder)) as seen:
        planned = plan(seen, selection)
        with closing(opened_ledger(seen)) as ledger:
            sent = retry(
                seen,
                selection,
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


def test_a_retry_is_audited(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    assert penstock(*RETRY, "--filter", "LANDING/A", "--rate", 5).exit_code == 0
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["queue"], entry["messages"], entry["outcome"]) == ("retry", "letters", 1, "done")
    assert entry["details"] == {"pipeline": "post", "filter": "LANDING/A", "rate": 5.0}


def test_a_dry_run_reports_and_sends_nothing(penstock: Call, post: Post) -> None:
    post.die("a", "b")
    result = penstock("objects", "retry", "--app", "post:app", "--dry-run")
    assert result.out.split() == ["objects", "to", "2", "letters"]
    assert "The DLQs have dead letters (letters-dlq 2)" in result.err
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
    post.declare(LETTERS_APP + VIEWS_HANDLER)
    post.die("a")
    post.die(queue="views-files")
    result = penstock("objects", "retry", "--queue", "letters", "--yes")
    assert result.exit_code == USAGE
    assert "select it with --pipeline: post, views." in result.err
    result = penstock(*RETRY, "--queue", "letters")
    assert result.exit_code == USAGE
    assert "leave out --queue, or --app" in result.err
    named = ("objects", "retry", "--pipeline", "views", "--queue", "views-files", "--yes", "--json")
    assert penstock(*named).document["by_queue"] == {"views-files": 1}
    both = penstock(*RETRY, "--json").document
    assert both["by_queue"] == {"letters": 1, "views-files": 1}
    assert both["dead_letters"] == {"letters-dlq": 1, "views-files-dlq": 1}
    assert penstock("objects", "retry", "landing/a", *RETRY[2:], "--json").document["by_queue"] == both["by_queue"]
    limited = penstock(*RETRY, "--limit", 1, "--json").document
    assert limited["by_queue"] == {"letters": 1}


def test_pipelines_of_other_apps_are_left_alone(penstock: Call, post: Post) -> None:
    post.declare(LETTERS_APP + VIEWS_HANDLER)
    post.die("a")
    post.die(queue="views-files")
    post.declare(LETTERS_APP)
    result = penstock(*RETRY)
    assert result.out == "1 object enqueued again (letters 1).\n"
    assert "Not in the app, so left alone: the ledger's pipelines views." in result.err
    result = penstock(*RETRY, "--pipeline", "views")
    assert result.exit_code == USAGE
    assert "The app has no pipeline views; it has: post." in result.err


def test_an_archived_object_is_reported_as_processed(penstock: Call, post: Post) -> None:
    post.die("a")
    (post.folder / "landing" / "b").write_text("dear all\n")
    (document,) = penstock("objects", "list", "--json").document
    listed = {"bucket": "file", "key": document["object"].removeprefix("file://")}
    known = {"size": document["size_bytes"], "etag": document["version"]}
    (post.folder / "done.jsonl").write_text(json.dumps(listed | known))
    result = penstock("objects", "import", "--processed", "done.jsonl", "post:app", "post")
    assert result.exit_code == 0, result.err
    result = penstock("objects", "retry", "landing/a", *RETRY[2:])
    assert result.exit_code == USAGE
    assert f"{document['object']} is processed, and left alone." in result.err


def test_a_retry_for_a_table_of_an_ingest_finds_its_queue(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.process("b")
    assert "run its `penstock ingest`" in penstock("objects", "retry", "--yes").err
    scene.send("elsewhere")
    result = penstock("objects", "retry", "--yes", "--json")
    assert result.document["sent"] == 1
    uris, retried = waiting(scene)
    (sent,) = parse(retried.body, buckets_allowed=None).objects
    assert sent.object_id == scene.ref("a").object_id, "the very version that died"
    assert "penstock-replay-id" not in uris.attributes
    assert re.fullmatch("[0-9a-f]{32}", str(retried.attributes["penstock-replay-id"]))


def test_several_sources_need_a_queue_to_be_named(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    scene.send("elsewhere")
    scene.source = scene.source.with_name("other")
    scene.send("elsewhere")
    result = penstock("objects", "retry", "--yes")
    assert result.exit_code == USAGE
    assert "several sources, each with its own queue (ingest-" in result.err


def test_a_retry_in_an_app_needs_the_app_or_a_queue(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    app_scene.send("elsewhere")
    result = penstock("objects", "retry", "--yes")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "give --app, such as --app shop:app; or --pipeline and --queue." in result.err
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
    result = penstock("objects", "retry", "--yes")
    assert (result.exit_code, result.out) == (0, "")
    assert "1 object left alone: later versions of them were processed." in result.err
    assert penstock("objects", "retry", scene.ref("a").uri, "--yes", "--json").document["sent"] == 1, "it was named"


@pytest.mark.parametrize("state", [AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED])
def test_only_objects_in_the_given_state_are_retried(penstock: Call, scene: Scene, state: AttemptFailure) -> None:
    for number, failure in enumerate((AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)):
        for name in "ab"[: 1 + (failure is state)]:
            scene.fail(f"{name}-{failure.value}-{number}", failure, "bad")
    scene.send("elsewhere")
    only = () if state is AttemptFailure.DEAD else ("--only", state.value)
    assert penstock("objects", "retry", *only, "--filter", "a-", "--dry-run", "--json").document["objects"] == 1
    assert penstock("objects", "retry", *only, "--yes", "--json").document["sent"] == 2
    uris = {ref.uri for message in waiting(scene) for ref in parse(message.body, buckets_allowed=None).objects}
    assert sum(f"-{state.value}-" in uri for uri in uris) == 2
    assert len(uris) == 3, "and the one that was sent elsewhere"
    (entry,) = penstock("admin", "audit", "--json").document
    assert entry["details"].get("state") == (state.value if only else None)


def test_objects_that_have_not_failed_are_named_and_left_alone(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.send("elsewhere")
    result = penstock("objects", "retry", scene.ref("a").uri, "nowhere", "--yes")
    assert result.exit_code == USAGE
    assert f"{scene.ref('a').uri} is processed, and left alone." in result.err
    assert "nowhere." in result.err
    assert "The ledger knows no object file://" in result.err


def test_a_retry_without_failed_objects_succeeds(penstock: Call, scene: Scene) -> None:
    scene.send("a")
    result = penstock("objects", "retry", "--yes")
    assert (result.exit_code, result.out) == (0, "")
    assert "No such objects." in result.err
    assert penstock("objects", "retry", "--yes", "--json").document["sent"] == 0
    assert penstock("admin", "audit", "--json").document == []


@pytest.mark.parametrize(
    ("options", "notices"),
    [
        ((), "`penstock objects retry` asks for confirmation"),
        (("", "--yes"), "OBJECT is empty"),
        (("--filter", "", "--yes"), "--filter is empty"),
        (("a", "--filter", "b", "--yes"), "not both"),
        (("--rate", "0", "--yes"), "--rate"),
    ],
)
def test_invalid_requests_are_usage_errors(
    penstock: Call, scene: Scene, options: tuple[str, ...], notices: str
) -> None:
    result = penstock("objects", "retry", *options)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert notices in result.err

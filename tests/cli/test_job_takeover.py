"""Background jobs in workers as processes: one is killed while it holds a claim, and another takes over.

The workers have a data directory each, as on two hosts, so only the end of the lease shows that the first one is dead.
They run with `--jobs only`, which needs no Spark.
"""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.process import Process, Start
from tests.cli.scene import Scene

from penstock.app.jobs import archive, cleanup, compact, expiry, gc
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger import Ledger
from penstock.ledger.records import WorkState
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Step

LEASE_SECONDS = 3
SLACK_SECONDS = 30.0  # for a busy machine
PIPELINE, FINAL_DLQ = "clicks", "orders-dead"
RETENTION_SECONDS = 100_000.0
NAMES = ("a", "b", "c")
APP = """
import penstock.app.jobs.gc
from penstock import App, DeltaSink, ObjectSource, cleanup

penstock.app.jobs.gc.FIRST_REST_SECONDS = 0.0
app = App.from_config(name="shop")
source = ObjectSource("{folder}/landing", queue="clicks-files", schema="id long", cleanup=cleanup.{declared})
app.pipeline("clicks", source=source, sink=DeltaSink("{folder}/tables/clicks"))

@app.handler("orders")
def bill(message):
    pass
"""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The table and queue of an app, and the folders of two hosts that share nothing else."""

    scene: Scene
    folder: Path
    start: Start

    @property
    def state(self) -> Path:
        return self.folder / ".penstock"

    def ledger(self) -> Ledger:
        return Ledger.open(f"sqlite:///{self.state}/ledger.db")

    def worker(self, host: str, settings: str, *, declared: str, kill_at: str | None = None) -> Process:
        folder = self.folder / host
        folder.mkdir()
        (folder / "shop.py").write_text(APP.format(folder=self.folder, declared=declared))
        (folder / "penstock.toml").write_text(
            f'broker = "sqlite:///{self.state}/queue.db"\nledger = "sqlite:///{self.state}/ledger.db"\n'
            f'[worker]\nlease = {LEASE_SECONDS}\njobs = "only"\n{settings}'
        )
        before = ["setsid", "env", f"PENSTOCK_KILL_AT={kill_at}"] if kill_at else []
        return self.start(folder, "worker", "shop:app", before=before)

    def put(self) -> None:
        """Publish one batch whose objects are in the source."""
        self.scene.source.mkdir()
        for name in NAMES:
            path = Path(os.fsdecode(self.scene.ref(name).key))
            path.write_bytes(b"x" * 1_000)
            os.utime(path, ns=(1, 1))  # as the scene has recorded it
        self.scene.process(*NAMES)
        self.scene.publish()

    def rows(self) -> int:
        return int(DeltaTable(str(self.scene.table)).to_pyarrow_table().num_rows)


def put_old(hosts: Hosts) -> None:
    hosts.put()
    with closing(sqlite3.connect(hosts.state / "ledger.db")) as connection, connection:
        connection.execute("UPDATE batches SET committed_at = committed_at - 2000000")


def put_small_files(hosts: Hosts) -> None:
    for name in NAMES:
        hosts.scene.process(name)
    hosts.scene.publish()


def put_garbage(hosts: Hosts) -> None:
    hosts.put()
    hosts.scene.leave_files("left")


def put_dead_letters(hosts: Hosts) -> None:
    file = hosts.state / "queue.db"
    queues = [QueueSettings(name=FINAL_DLQ, retention_seconds=RETENTION_SECONDS)]
    with closing(SqliteBroker(file, holder="test", queues=queues)) as broker:
        broker.send(FINAL_DLQ, [Outgoing(body=name.encode()) for name in NAMES])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE messages SET enqueued_at = enqueued_at - ?", (0.97 * RETENTION_SECONDS,))


def all_cleaned(hosts: Hosts) -> None:
    assert list(hosts.scene.source.iterdir()) == []
    with closing(hosts.ledger()) as ledger:
        assert ledger.progress(PIPELINE, "cleanup") == 1
    assert hosts.rows() == 2 * len(NAMES)


def all_archived(hosts: Hosts) -> None:
    with closing(hosts.ledger()) as ledger:
        assert ledger.archives.count(PIPELINE) == len(NAMES)
        assert ledger.processed_objects(PIPELINE, 1, limit=10) == []


def garbage_is_deleted(hosts: Hosts) -> None:
    assert len(list((hosts.scene.table / "data").rglob("*.parquet"))) == 1
    assert hosts.rows() == 2 * len(NAMES)


def all_compacted(hosts: Hosts) -> None:
    assert len(DeltaTable(str(hosts.scene.table)).file_uris()) == 1
    assert hosts.rows() == 2 * len(NAMES)


def all_kept(hosts: Hosts) -> None:
    lines = [line for path in (hosts.folder / "kept").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert Counter(json.loads(line)["body"] for line in lines) == Counter(NAMES)
    with closing(SqliteBroker(hosts.state / "queue.db", holder="test")) as broker:
        assert broker.stats(FINAL_DLQ).messages == 0


@dataclass(frozen=True, kw_only=True)
class JobCase:
    """A job: its input, the step at which it is killed, and what the next worker reports and leaves."""

    claimed_as: str
    task: str = PIPELINE  # key of its row in the ledger
    put: Callable[[Hosts], None]
    kill_at: str
    event: str
    check: Callable[[Hosts], None]
    settings: str = ""
    declared: str = field(default="Keep()")


JOB_CASES = {
    "cleanup": JobCase(
        claimed_as=cleanup.CLAIMED_AS,
        put=Hosts.put,
        declared="Delete(after=0)",
        kill_at=f"{Step.CLEANED}:2",
        event="source.cleaned",
        check=all_cleaned,
    ),
    "archive": JobCase(
        claimed_as=archive.CLAIMED_AS,
        put=put_old,
        settings='[objects]\narchive_after = "15d"\n',
        kill_at=Step.ARCHIVING,
        event="objects.archived",
        check=all_archived,
    ),
    "gc": JobCase(
        claimed_as=gc.CLAIMED_AS,
        put=put_garbage,
        kill_at=Step.DELETING,
        event="garbage.collected",
        check=garbage_is_deleted,
    ),
    "compact": JobCase(
        claimed_as=compact.CLAIMED_AS,
        put=put_small_files,
        settings='[tables]\ncompact_every = "1d"\n',
        kill_at=Step.COMPACTED,
        event="table.compacted",
        check=all_compacted,
    ),
    "expiry": JobCase(
        claimed_as=expiry.CLAIMED_AS,
        task=f'["shop", "sqlite:///{{folder}}/.penstock/queue.db", "{FINAL_DLQ}"]',
        put=put_dead_letters,
        settings='[dead_letters]\nreplay = true\narchive = "{folder}/kept"\n',
        kill_at=Step.DEAD_LETTERS_KEPT,
        event="dead_letter.archived",
        check=all_kept,
    ),
}


@pytest.fixture
def hosts(app_scene: Scene, tmp_path: Path) -> Iterator[Hosts]:
    started: list[Process] = []

    def start(folder: Path, *arguments: object, **options: object) -> Process:
        started.append(Process(folder, *arguments, **options))  # type: ignore[arg-type]  # passed on unchanged
        return started[-1]

    yield Hosts(scene=app_scene, folder=tmp_path.resolve(), start=start)
    for process in started:
        process.kill()


@pytest.mark.parametrize("case", JOB_CASES.values(), ids=list(JOB_CASES))
def test_another_worker_takes_over_the_job_of_a_killed_one(hosts: Hosts, case: JobCase) -> None:
    case.put(hosts)
    settings = case.settings.format(folder=hosts.folder)
    key = case.task.format(folder=hosts.folder)
    first = hosts.worker("one", settings, declared=case.declared, kill_at=case.kill_at)
    assert first.exit_code() == -signal.SIGKILL
    died_at = time.monotonic()
    with closing(hosts.ledger()) as ledger:
        claim = ledger.work(case.claimed_as, key)
        assert claim is not None
        assert (claim.state, claim.attempts) == (WorkState.OPEN, 1)
        left_seconds = (claim.lease_until or 0.0) - ledger.now()

    second = hosts.worker("two", settings, declared=case.declared)
    second.expect(case.event)
    assert left_seconds - 1.0 < time.monotonic() - died_at < 4 * LEASE_SECONDS + SLACK_SECONDS
    second.signal(signal.SIGTERM)
    assert second.exit_code() == 0
    case.check(hosts)
    with closing(hosts.ledger()) as ledger:
        done = ledger.work(case.claimed_as, key)
        assert done is not None
        assert (done.state, done.attempts) == (WorkState.FREE, 2)


def test_jobs_only_without_any_job_is_refused(hosts: Hosts) -> None:
    folder = hosts.folder / "one"
    folder.mkdir()
    (folder / "shop.py").write_text(
        "from penstock import App\n\napp = App.from_config()\napp.handler('orders')(print)\n"
    )
    refused = hosts.start(folder, "worker", "shop:app", "--jobs", "only")
    assert refused.exit_code() == 78
    assert "no background job has work in this app" in refused.error_message()


def test_an_unknown_job_is_refused_with_the_known_names(hosts: Hosts) -> None:
    refused = hosts.start(hosts.folder, "worker", "shop:app", "--jobs", "replay,cron")
    assert refused.exit_code() == 78
    assert "worker.jobs (from a flag or an argument) is invalid" in refused.error_message()
    assert "replay, monitor, cleanup, reconcile, archive, gc, compact, expiry" in refused.error_message()

"""A worker whose ledger is on an SQL server that dies, restarts or stops responding: it recovers on its own, with a
correct ledger.

The handlers record their calls in a journal; the ledger's content is read from the database itself. Work whose record
was lost with the server may be done again: recorded work is never done again, and nothing is lost.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest
from tests.chaos import books
from tests.integration.fleet import APP, Fleet, WorkerProcess, let_pass, wait_for
from tests.services.mariadb_server import MariadbServer
from tests.services.plugin import StartMariadb, StartPostgresql
from tests.services.postgresql_server import PostgresqlServer
from tests.services.sql_asking import ask

DOCUMENTS_APP = """

@app.object_handler("letters", source="inbox", retry_base=0.1, max_retry_wait=0.5)
def letter(each, ctx):
    for what in ("start", "end"):
        line = {"what": what, "id": each.key, "message": each.message_id, "pid": os.getpid(), "attempt": 1}
        os.write(JOURNAL, (json.dumps({**line, "at": time.time()}) + "\\n").encode())
"""
AT_ONCE = 20  # of each kind
LEASE_SECONDS = 10  # a worker is never halted for so long; after a lost response, others wait for its end
DONE_SECONDS = 180.0  # on a busy machine; it takes a few
EXIT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 10.0
LATE_SECONDS = 20.0  # extra time for a busy machine
SILENCE_SECONDS = 2.0
POOL = 2
FORCED = 1  # it ended although some threads did not: those that wait for the server

# Ledgers that give up on a silent server sooner than usual, and open few connections.
SHORT_TIMEOUTS = f"""
from penstock.ledger.dialects import mysql, postgresql, postgresql_connection

mysql.ANSWER_TIMEOUT_SECONDS = mysql.CONNECT_TIMEOUT_SECONDS = {SILENCE_SECONDS:g}
postgresql._CONNECTING["connect_timeout"] = 2
postgresql_connection.BoundedConnection.silence_seconds = {SILENCE_SECONDS}
for dialect in (mysql, postgresql):
    dialect.CONNECTIONS_MAX, dialect.POOL_TIMEOUT_SECONDS = {POOL}, {SILENCE_SECONDS}
"""

SqlServer = MariadbServer | PostgresqlServer
OpenWorkLoad = Callable[..., "WorkLoad"]
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


class WorkLoad:
    """A fleet with keys and objects to work on, and the sent ones."""

    def __init__(self, folder: Path, url: str, prelude: str = "") -> None:
        self.url = url
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.fleet = Fleet(
            folder,
            app=APP + prelude + DOCUMENTS_APP,
            ledger=url,
            worker_lease=LEASE_SECONDS,
            worker_stop_timeout=STOP_TIMEOUT_SECONDS,
        )
        self.sent: set[str] = set()
        self._numbers = count()

    def load(self) -> None:
        """Send keys, each in two messages, and objects; earlier objects are enqueued again."""
        numbers = [next(self._numbers) for _ in range(AT_ONCE)]
        bodies = [{"id": f"key-{number}", "seconds": 0.02} for number in numbers]
        self.fleet.send("once", *bodies, *bodies)
        for number in numbers:
            (self.inbox / f"letter-{number}").write_text("dear all\n")
        self.fleet.app.announce("letters", str(self.inbox))
        self.sent |= {f"{kind}-{number}" for kind in ("key", "letter") for number in numbers}

    def done(self) -> dict[str, float]:
        """Return the times at which the ledger recorded each key and object as done, each once."""
        works = ask(self.url, "SELECT w.key, w.ended_at FROM works w WHERE w.state = 'done'")
        objects = ask(self.url, "SELECT o.key, o.ended_at FROM objects o WHERE o.state = 'processed'")
        keys = [(key if isinstance(key, str) else bytes(key).decode(), float(at)) for key, at in [*works, *objects]]
        found = {key.rsplit("/", 1)[-1]: at for key, at in keys}
        assert len(found) == len(keys), "something is recorded as done twice"
        return found

    def check(self) -> str:
        """Check that everything is done and nothing twice; return a summary."""
        wait_for(lambda: self.done().keys() == self.sent, "all is recorded as done", within=DONE_SECONDS)
        wait_for(self.empty, "all messages are acked", within=DONE_SECONDS)
        books.check_idle(self.url)
        done = self.done()
        late = {key: at for key, at in self.started() if at > done[key]}
        assert not late, f"started after it was done: {late}"
        ends = Counter(line.id.rsplit("/", 1)[-1] for line in self.fleet.lines() if line.what == "end")
        assert ends.keys() == self.sent
        assert self.fleet.dead() == 0
        again = sum(times - 1 for times in ends.values())
        return f"{len(self.sent)} keys and objects, 0 lost, 0 recorded twice, {again} done again after a lost record"

    def started(self) -> Iterator[tuple[str, float]]:
        """Yield each key and object that a worker had claimed when it logged the start, with that time.

        An attempt may call its function later, while it does not know yet that it is lost; it cannot record it.
        """
        names = {line.message: line.id for line in self.fleet.lines()}
        for worker in self.fleet.workers:
            for event in worker.events("object.started"):
                yield event["object"].rsplit("/", 1)[-1], datetime.fromisoformat(event["ts"]).timestamp()
            for event in worker.events("message.started"):
                if event["message_id"] in names:  # otherwise it was killed before the call
                    yield names[event["message_id"]], datetime.fromisoformat(event["ts"]).timestamp()

    def empty(self) -> bool:
        stats = self.fleet.broker.stats("letters")
        return self.fleet.empty() and not (stats.visible or stats.in_flight or stats.delayed)

    def run_under_load(self, worker: WorkerProcess) -> None:
        """Send new work, and wait until some of it is done."""
        before = len(self.fleet.ended())
        self.load()
        wait_for(lambda: len(self.fleet.ended()) > before, "some of it is done", within=DONE_SECONDS)
        assert worker.process.poll() is None


@pytest.fixture(params=["mariadb", "postgresql"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    """Start a server for this test."""
    start: StartMariadb | StartPostgresql = request.getfixturevalue(f"start_{request.param}")
    return start()


@pytest.fixture
def open_work_load(tmp_path: Path) -> Iterator[OpenWorkLoad]:
    opened: list[WorkLoad] = []

    def open_one(url: str, prelude: str = "") -> WorkLoad:
        opened.append(WorkLoad(tmp_path, url, prelude))
        return opened[-1]

    yield open_one
    for work_load in opened:
        work_load.fleet.close()


@pytest.mark.parametrize("deaths", [3, pytest.param(10, marks=SLOW)])
def test_row_71_a_server_killed_under_load_loses_nothing(
    server: SqlServer, open_work_load: OpenWorkLoad, deaths: int
) -> None:
    work_load = open_work_load(server.fresh())
    worker = work_load.fleet.start("--queues", "once,letters").ready()
    outages_seconds: list[float] = []
    for _ in range(deaths):
        work_load.run_under_load(worker)
        server.kill()
        killed_at = time.monotonic()
        server.start()
        outages_seconds.append(time.monotonic() - killed_at)
    summary = work_load.check()
    print(f"{deaths} deaths, away for {max(outages_seconds):.1f} s at most: {summary}")  # noqa: T201 # the figures, shown with -s
    assert_ends_well(worker)


@pytest.mark.parametrize("restarts", [1, pytest.param(5, marks=SLOW)])
def test_a_server_restarted_under_load_loses_nothing(
    server: SqlServer, open_work_load: OpenWorkLoad, restarts: int
) -> None:
    work_load = open_work_load(server.fresh())
    worker = work_load.fleet.start("--queues", "once,letters").ready()
    for _ in range(restarts):
        work_load.run_under_load(worker)
        server.stop()
        server.start()
    print(f"{restarts} restarts: {work_load.check()}")  # noqa: T201 # the figures, shown with -s
    assert_ends_well(worker)


def test_a_server_that_stops_responding_under_load_is_reconnected_later(
    server: SqlServer, open_work_load: OpenWorkLoad
) -> None:
    """Its connections stay open, and it responds to nothing for longer than any timeout."""
    work_load = open_work_load(server.fresh(), prelude=SHORT_TIMEOUTS)
    worker = work_load.fleet.start("--queues", "once,letters").ready()
    work_load.run_under_load(worker)
    server.freeze()
    wait_for(lambda: complaints(worker), "the worker reports the outage", within=DONE_SECONDS)
    work_load.load()
    let_pass(SILENCE_SECONDS)
    assert worker.process.poll() is None
    server.thaw()
    print(f"silent until {len(complaints(worker))} complaints: {work_load.check()}")  # noqa: T201 # as above
    assert_ends_well(worker)


def test_a_stop_while_the_server_does_not_respond_ends_in_time(server: SqlServer, open_work_load: OpenWorkLoad) -> None:
    work_load = open_work_load(server.fresh())
    worker = work_load.fleet.start("--queues", "once,letters").ready()
    work_load.run_under_load(worker)
    server.freeze()
    worker.signal(signal.SIGTERM)
    assert worker.end(within=STOP_TIMEOUT_SECONDS + LATE_SECONDS) in (0, FORCED), worker.log.read_text()[-2000:]
    server.thaw()
    successor = work_load.fleet.start("--queues", "once,letters").ready()
    work_load.check()
    assert_ends_well(successor)


def test_more_work_than_connections_waits_or_is_retried(server: SqlServer, open_work_load: OpenWorkLoad) -> None:
    work_load = open_work_load(server.fresh(), prelude=SHORT_TIMEOUTS)
    worker = work_load.fleet.start("--queues", "once,letters", "--concurrency", "60").ready()
    for _ in range(3):
        work_load.load()
    print(f"{POOL} connections: {work_load.check()}")  # noqa: T201 # as above
    assert_ends_well(worker)


def complaints(worker: WorkerProcess) -> list[str]:
    """Return its log lines that report an unreachable ledger."""
    return [line for line in worker.log.read_text().splitlines() if "cannot be reached" in line]


def assert_ends_well(worker: WorkerProcess) -> None:
    """Check that the worker still runs, stops on request, and logged only JSON lines."""
    assert worker.process.poll() is None, worker.log.read_text()[-2000:]
    worker.signal(signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    strange = [line for line in worker.log.read_text().splitlines() if not line.startswith("{")]
    assert strange == []

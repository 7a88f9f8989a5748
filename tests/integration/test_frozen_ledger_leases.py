"""The ledger's server hangs while handlers run: messages stay leased, and a stop releases them.

A lease belongs to the broker alone. The calls for leases and releases wait for no other service.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.services.mariadb_server import MariadbServer
from tests.services.plugin import StartMariadb, StartPostgresql
from tests.services.postgresql_server import PostgresqlServer

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.events import Event, LeaseLost, LeasesExpiring, LeasesExtended, MessageStarted
from penstock.messaging.message import Message
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
LEASE_SECONDS = 4.0
BEATS = 12  # more than three leases
STOP_SECONDS = 8.0


class Scenario:
    """Two workers on one broker, and their events, by worker."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._changed = threading.Condition()
        self.events: list[tuple[str, Event]] = []  # under the condition
        self.go_on = threading.Event()

    def start(self, name: str, ledger: str, **queues: int) -> tuple[App, StopSignal, threading.Thread]:
        broker = self._stack.enter_context(closing(SqliteBroker(self._folder / "queue.db", holder=name)))
        app = App(broker=broker, settings=Settings(data_dir=str(self._folder / name), ledger=ledger))
        app.handler("plain")(self._work)
        app.handler("keyed", name="keyed", idempotency=lambda message: message.id)(self._work)
        stop = StopSignal()
        settings = WorkerSettings(lease_seconds=LEASE_SECONDS, stop_timeout_seconds=STOP_SECONDS)

        def run() -> None:
            serve(app, stop=stop, queues=queues, listeners=(self._listener(name),), settings=settings, resident=False)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._stack.callback(thread.join, DEADLINE_SECONDS)
        self._stack.callback(stop.request)
        self._stack.callback(stop.request)
        return app, stop, thread

    def started(self, queue: str) -> list[tuple[str, int]]:
        """Return the worker and the attempt of each call."""
        return [(name, e.attempt) for name, e in self.events if isinstance(e, MessageStarted) and e.queue == queue]

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), f"never came true: {description}: {self.events}"

    def extended(self, queue: str) -> int:
        return sum(isinstance(event, LeasesExtended) and event.queue == queue for _, event in self.events)

    def has(self, kind: type[Event], /, **fields: str) -> bool:
        return any(
            isinstance(event, kind) and all(getattr(event, field) == value for field, value in fields.items())
            for _, event in self.events
        )

    def _listener(self, name: str) -> Callable[[Event], None]:
        def listen(event: Event) -> None:
            with self._changed:
                self.events.append((name, event))
                self._changed.notify_all()

        return listen

    def _work(self, message: Message) -> None:
        self.go_on.wait(2 * DEADLINE_SECONDS)


@pytest.fixture(params=["mariadb", "postgresql"])
def server(request: pytest.FixtureRequest) -> MariadbServer | PostgresqlServer:
    start: StartMariadb | StartPostgresql = request.getfixturevalue(f"start_{request.param}")
    return start()


@pytest.fixture
def scenario(server: MariadbServer | PostgresqlServer, tmp_path: Path) -> Iterator[Scenario]:
    with ExitStack() as stack:
        scenario = Scenario(stack, tmp_path)
        yield scenario
        server.thaw()
        scenario.go_on.set()


def test_a_hanging_ledger_costs_no_lease_and_a_stop_releases_messages_that_need_no_ledger(
    scenario: Scenario, server: MariadbServer | PostgresqlServer
) -> None:
    app, stop, thread = scenario.start("first", server.fresh(), plain=1, keyed=1)
    app.send("plain", b"{}")
    app.send("keyed", b"{}")
    scenario.wait_until(lambda: bool(scenario.started("plain") and scenario.started("keyed")), "both handlers run")
    scenario.start("second", "sqlite://", plain=1)

    server.freeze()
    plain, keyed = (scenario.extended(queue) + BEATS for queue in ("plain", "keyed"))
    scenario.wait_until(lambda: scenario.extended("plain") >= plain, "the plain message is extended")
    scenario.wait_until(lambda: scenario.extended("keyed") >= keyed, "the other one is extended as well")
    scenario.wait_until(
        lambda: scenario.has(LeasesExpiring, kind="claims"),
        "it is logged that claims are in danger",
    )
    assert scenario.started("plain") == [("first", 1)], "no other worker begins it"
    assert not scenario.has(LeaseLost)

    stop.request()
    scenario.wait_until(lambda: len(scenario.started("plain")) > 1, "the other worker starts it")
    assert scenario.started("plain")[1] == ("second", 1), "released, so the attempt is not counted"
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "the stop waits for no ledger"

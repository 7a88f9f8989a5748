"""Workers on SQS that are killed, halted, stopped and restarted under load: nothing is lost.

SQS has no fence, and counts every receive: work is done once only with an idempotency key.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest
from tests.integration.fleet import APP, Fleet, Line, WorkerProcess, wait_for
from tests.integration.sqs_fleet import LEASE_SECONDS, acked, bodies, ends, sqs_fleet
from tests.integration.test_fleet import released_messages, seconds_to_restart
from tests.services.aws_server import AwsServer, Kind
from tests.services.plugin import StartAwsProxy

from penstock.ledger import Ledger
from penstock.ledger.records import WorkState
from penstock.messaging.settlement import Release

EXIT_SECONDS = 60.0  # more than any stop timeout below, with time for a slow machine
LONG_LEASE_SECONDS = 600.0  # no test waits for its end
POLL_SECONDS = 2.0  # the wait of a poll with a stop timeout of ten seconds

SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]

# While its dead letter is sent, a message is hidden again, independent of its lease: here only for that long.
SHORT_BURYING = f"""
from penstock.brokers.sqs import settle as settling

settling.BURYING_SECONDS = {LEASE_SECONDS}
"""

OpenFleet = Callable[..., Fleet]
mostly_fauxqs = pytest.mark.parametrize("kind", ["fauxqs", pytest.param("moto", marks=SLOW)])
mostly_moto = pytest.mark.parametrize("kind", ["moto", pytest.param("fauxqs", marks=SLOW)])


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: Kind) -> AwsServer:
    found: AwsServer = request.getfixturevalue(kind)
    return found


@pytest.fixture
def open_fleet(tmp_path: Path) -> Iterator[OpenFleet]:
    """Return a factory of one fleet at the server; its workers end with the test."""
    opened: list[Fleet] = []

    def open_one(server: AwsServer, **settings: object) -> Fleet:
        opened.append(sqs_fleet(tmp_path, server, **{"worker_stop_timeout": 10, **settings}))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def recorded(fleet: Fleet) -> set[str]:
    """Return the keys whose work is recorded as done."""
    with closing(Ledger.open(fleet.folder / "ledger.db")) as ledger:
        return {work.key for work in ledger.works("once", state=WorkState.DONE, limit=10_000)}


def messages(fleet: Fleet, event: str, pid: int) -> set[str]:
    """Return the messages of one worker in the journal, without those that have duplicates."""
    return {line.message for line in fleet.lines() if (line.what, line.pid) == (event, pid) and "once" not in line.id}


def held_by(fleet: Fleet, pid: int) -> set[str]:
    return messages(fleet, "start", pid) - messages(fleet, "end", pid)


def starts_of(fleet: Fleet, id: str) -> list[Line]:
    return [line for line in fleet.lines() if (line.what, line.id) == ("start", id)]


# Killed and halted


@mostly_fauxqs
def test_messages_of_a_killed_worker_are_redelivered_after_their_lease(
    server: AwsServer, open_fleet: OpenFleet
) -> None:
    fleet = open_fleet(server, worker_concurrency=10)
    count = 100 if server.kind == "fauxqs" else 40
    victim, successor = fleet.start(), fleet.start()
    victim.ready()
    successor.ready()
    fleet.send("plain", *bodies("plain", count, seconds=0.5))
    fleet.send("once", *bodies("once", count, seconds=0.1), *bodies("once", count, seconds=0.1))
    wait_for(lambda: messages(fleet, "end", victim.pid), "the victim has processed messages")
    fleet.send("stubborn", *({"id": f"stubborn-{number}", "gated": True} for number in range(count)))
    wait_for(lambda: held_by(fleet, victim.pid), "the victim holds messages")
    victim.kill()
    successor.go_on()
    done, held = recorded(fleet), held_by(fleet, victim.pid)
    wait_for(lambda: len(fleet.ended()) == 3 * count, "all are done")
    wait_for(fleet.empty, "all are acked")
    assert fleet.dead() == 0
    assert {id for id in done if ends(fleet)[id] != 1} == set(), "recorded work was done again"
    assert held, "the worker held nothing when it was killed"
    assert held <= messages(fleet, "start", successor.pid)


@mostly_fauxqs
@pytest.mark.parametrize(
    ("before", "dead_letters"),
    [pytest.param("SendMessageBatch", 1, id="sending"), pytest.param("DeleteMessageBatch", 2, id="deleting")],
)
def test_a_worker_killed_while_dead_lettering_loses_nothing_and_doubles_one_message_at_most(
    server: AwsServer,
    open_fleet: OpenFleet,
    start_aws_proxy: StartAwsProxy,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    dead_letters: int,
) -> None:
    """The dead letter is sent first and the message deleted after: a death in between doubles it."""
    proxy = start_aws_proxy(server)
    monkeypatch.setenv("ATTEMPTS", "1")
    fleet = open_fleet(server, way=proxy.url, app=APP + SHORT_BURYING)
    worker = fleet.start().ready()
    trap = proxy.hold(f"AmazonSQS.{before}\r\n".encode())
    fleet.send("plain", {"id": "poison"})  # without the field that its handler reads
    trap.wait()
    worker.kill()
    proxy.cut()
    proxy.heal()
    fleet.start().ready()
    wait_for(fleet.empty, "its successor dead-lettered it")
    assert fleet.dead() == dead_letters
    assert starts_of(fleet, "poison")[-1].pid == worker.pid, "an attempt too many"


def halted_at_work(fleet: Fleet, queue: str) -> tuple[WorkerProcess, WorkerProcess]:
    """Return a worker halted during its work, and another that starts the same work after the lease."""
    zombie = fleet.start("--queues", queue).ready()
    fleet.send(queue, {"id": "work", "gated": True})
    wait_for(lambda: "work" in fleet.started(), "the work begins")
    zombie.signal(signal.SIGSTOP)
    fleet.environment["PENSTOCK_WORKER_LEASE"] = f"{LONG_LEASE_SECONDS:g}"
    successor = fleet.start("--queues", queue).ready()
    wait_for(lambda: len(starts_of(fleet, "work")) == 2, "its lease is over, and another begins")
    return zombie, successor


def test_late_settlements_of_a_halted_worker_take_nothing_from_another(
    fauxqs: AwsServer, open_fleet: OpenFleet
) -> None:
    """SQS cannot distinguish a stale ack from a late one: it accepts both, and deletes nothing. So does fauxqs."""
    fleet = open_fleet(fauxqs)
    zombie, successor = halted_at_work(fleet, "stubborn")
    zombie.signal(signal.SIGCONT)
    wait_for(lambda: zombie.events("lease.lost"), "the zombie learns that it lost its lease")
    zombie.go_on()
    wait_for(lambda: zombie.events("message.acked") or zombie.events("settlement.failed"), "it settles nevertheless")
    assert fleet.broker.stats("stubborn").in_flight == 1, "the message of its new holder was deleted"
    successor.go_on()
    wait_for(lambda: successor.events("message.acked"), "the other one acks")
    wait_for(fleet.empty, "it is acked")
    assert [line.pid for line in starts_of(fleet, "work")] == [zombie.pid, successor.pid]
    assert fleet.dead() == 0


@mostly_moto
def test_work_with_a_key_is_recorded_once_if_a_halted_worker_resumes_it(
    server: AwsServer, open_fleet: OpenFleet
) -> None:
    """The server may act on a stale receipt handle (moto deletes): the ledger has the fence."""
    fleet = open_fleet(server)
    zombie, successor = halted_at_work(fleet, "once")
    zombie.signal(signal.SIGCONT)
    for worker in (zombie, successor):
        worker.go_on()
    wait_for(lambda: ends(fleet)["work"] == 2, "both calls end")
    wait_for(fleet.empty, "it is acked")
    assert not zombie.events("message.finished")
    assert not zombie.events("message.acked")
    assert len(successor.events("message.finished")) == 1
    assert recorded(fleet) == {"work"}
    fleet.send("once", {"id": "work"})
    wait_for(fleet.empty, "a duplicate is acked")
    assert len(starts_of(fleet, "work")) == 2
    assert fleet.dead() == 0


# Stopped


@mostly_fauxqs
def test_row_74_a_term_while_idle_ends_the_worker_within_the_poll_wait(
    server: AwsServer, open_fleet: OpenFleet
) -> None:
    fleet = open_fleet(server)
    worker = fleet.start().ready()
    worker.signal(signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    assert worker.events("worker.drained")  # within its stop timeout: at its end it would be forced


@pytest.mark.parametrize(
    "queue", ["plain", "once", *(pytest.param(each, marks=SLOW) for each in ("looped", "stubborn"))]
)
def test_row_75_work_that_does_not_end_in_time_is_receivable_by_another_at_once(
    fauxqs: AwsServer, open_fleet: OpenFleet, queue: str
) -> None:
    fleet = open_fleet(fauxqs, worker_lease=LONG_LEASE_SECONDS)
    first = fleet.start("--queues", queue).ready()
    fleet.send(queue, {"id": "long", "seconds": 60})
    wait_for(lambda: "long" in fleet.started(), "the work begins")
    second = fleet.start("--queues", queue).ready()
    first.signal(signal.SIGTERM)
    wait_for(lambda: len(starts_of(fleet, "long")) == 2, "another worker begins it")
    assert first.end(within=EXIT_SECONDS) == 0
    again = starts_of(fleet, "long")[-1]
    assert (again.pid, again.attempt) == (second.pid, 2)  # SQS counts every receive
    assert first.events("message.interrupted")
    assert not first.events("message.failed")
    assert "long" not in recorded(fleet)


@pytest.mark.parametrize(("kind", "queue"), [("fauxqs", "plain"), ("moto", "once")])
def test_row_76_a_message_that_arrives_during_the_draining_poll_is_released_and_not_begun(
    server: AwsServer, open_fleet: OpenFleet, start_aws_proxy: StartAwsProxy, queue: str
) -> None:
    proxy = start_aws_proxy(server)
    fleet = open_fleet(server, way=proxy.url, worker_lease=60)
    poll = proxy.hold(f'"WaitTimeSeconds": {POLL_SECONDS:g}'.encode())  # on its way to the server
    second_poll = proxy.hold(b'"WaitTimeSeconds": 0')
    worker = fleet.start("--queues", queue).ready()
    poll.wait()
    worker.signal(signal.SIGTERM)
    wait_for(lambda: worker.events("worker.draining"), "it drains")
    fleet.send(queue, {"id": "late"})
    proxy.heal()
    assert worker.end(within=EXIT_SECONDS) == 0
    assert not second_poll.sprung.is_set(), (
        "a second poll was running, which receives the messages that the first one releases"
    )
    (delivery,) = fleet.broker.receive(queue, messages_max=10, lease_seconds=60, wait_seconds=POLL_SECONDS)
    assert delivery.attempt == 2, "the poll did not receive it"
    assert not fleet.broker.settle([(delivery, Release())])
    assert fleet.lines() == []
    assert worker.events("worker.drained")


@pytest.mark.parametrize(
    ("kind", "restarts"),
    [
        ("fauxqs", 4),
        pytest.param("fauxqs", 30, marks=SLOW),
        pytest.param("moto", 20, marks=SLOW),
    ],
)
def test_rolling_restarts_under_load_lose_nothing_and_continue_at_once(
    server: AwsServer, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    monkeypatch.setenv("ATTEMPTS", "1000")  # every restart costs released messages a receive
    fleet = open_fleet(server, worker_concurrency=40, worker_lease=30)
    chance = random.Random(1)
    sent: set[str] = set()

    def load(count: int) -> None:
        for queue in ("plain", "looped", "once"):
            new_bodies = [
                {"id": f"{queue}-{len(sent)}-{n}", "seconds": chance.choice((0.01, 0.05, 0.3, 1.0, 4.0))}
                for n in range(count)
            ]
            fleet.send(queue, *new_bodies)
            sent.update(str(body["id"]) for body in new_bodies)

    living = [fleet.start().ready() for _ in range(2)]
    exits: list[float] = []
    for _ in range(restarts):
        if len(sent) - len(fleet.ended()) < 40:
            load(20)
        stopping = living.pop(0)
        living.append(fleet.start().ready())
        began_at = time.monotonic()
        os.kill(stopping.pid, signal.SIGTERM)
        assert stopping.end(within=EXIT_SECONDS) == 0, stopping.log.read_text()[-2000:]
        exits.append(time.monotonic() - began_at)
    wait_for(lambda: fleet.ended() == sent, "everything is done", within=240)
    wait_for(fleet.empty, "the queues are empty")
    waits = seconds_to_restart(fleet)
    twice = {line.message for line in fleet.lines() if line.what == "end" and ends(fleet)[line.id] > 1}
    print(  # noqa: T201 # the figures, shown with -s
        f"{restarts} restarts, {len(sent)} messages, {len(waits)} released, started again after "
        f"{median(waits or [0]):.3f} s (median) and {max(waits, default=0):.3f} s (most), "
        f"exit after {max(exits):.1f} s at most, {len(twice)} done twice"
    )
    assert fleet.dead() == 0
    assert set(acked(fleet).values()) == {1}
    assert twice <= released_messages(fleet)

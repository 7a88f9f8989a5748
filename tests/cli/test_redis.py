"""Commands and workers on a queue in Redis; its password is never shown."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from tests.cli.conftest import Call
from tests.cli.process import Process, Start
from tests.services.plugin import StartRedis
from tests.services.redis_server import RedisServer

from penstock.app.registry import Workers
from penstock.brokers.redis import RedisStreamsBroker
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.operations.doctor import checks
from penstock.operations.doctor.findings import FindingLevel

SECRET = "hunter2"
USAGE, CHECK_FOUND_PROBLEMS, TEMPORARY, CONFIGURATION = 2, 3, 75, 78
LEASE_SECONDS = 600.0
APP = """
import threading
from pathlib import Path
from penstock import App

app = App.from_config()

@app.handler("slow")
def wait(message):
    while not Path("go_on").exists():
        threading.Event().wait(0.02)
"""


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis(users=f"user default off\nuser shop on >{SECRET} ~* &* +@all", tcp=True)


@pytest.fixture
def here(tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an app whose queue is in Redis."""
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(checks, "run_trial_job", lambda environ: (FindingLevel.OK, "runs"))
    monkeypatch.setenv("PENSTOCK_BROKER", f"redis://shop:{SECRET}@127.0.0.1:{server.port}/1")
    (folder / "shop.py").write_text(APP)
    (folder / "penstock.toml").write_text('[worker]\nlease = "10m"\n')
    return folder


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: object, **options: object) -> Process:
        process = Process(here, "worker", *arguments, **options)  # type: ignore[arg-type]  # passed on unchanged
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def broker(here: Path) -> Iterator[RedisStreamsBroker]:
    with closing(RedisStreamsBroker(os.environ["PENSTOCK_BROKER"], holder="test")) as broker:
        yield broker


def send(broker: RedisStreamsBroker, queue: str) -> None:
    broker.send(queue, [Outgoing(body=b"{}")])


def test_messages_are_sent_shown_and_purged(penstock: Call, here: Path) -> None:
    (here / "lines").write_text("1\n2\n3\n")
    assert penstock("send", "orders", "--file", "lines", "--group", "t").out == "3 messages sent to orders.\n"
    penstock("send", "orders", "--body", "4", "--delay", 600)
    ids = [penstock("send", "orders", "--body", "5", "--deduplication-id", "x", "--json").document for _ in range(2)]
    assert ids[0]["message_ids"] == ids[1]["message_ids"]
    (row,) = penstock("queues", "list", "--json").document
    assert (row["queue"], row["visible"], row["delayed"], row["workers"]) == ("orders", 4, 1, [])
    assert penstock("queues", "pause", "orders").out == "orders is paused.\n"
    assert penstock("queues", "show", "orders", "--json").document["paused"]
    assert penstock("queues", "resume", "orders").exit_code == 0
    assert penstock("queues", "show", "nope").exit_code == USAGE
    assert "none with this data directory on this host" in penstock("queues", "show", "orders").out
    assert penstock("queues", "purge", "orders", "--yes", "--json").document["deleted"] == 5


def test_status_reports_messages_and_dead_letters(penstock: Call, broker: RedisStreamsBroker) -> None:
    send(broker, "orders")
    send(broker, "orders")
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=LEASE_SECONDS)
    broker.settle([(delivery, DeadLetter(reason="no such order"))])
    document = penstock("status", "--json").document
    assert (document["problems"], document["workers_elsewhere"]) == (["dead letters: 1"], True)
    (dead_letter,) = penstock("dead", "list", "--json").document
    assert (dead_letter["reason"], dead_letter["queue"]) == ("no such order", "orders-dlq")
    penstock("queues", "purge", "orders-dlq", "--yes")
    result = penstock("status").out.splitlines()
    assert result[0] == "messages waiting or in flight: 1; workers of other hosts are invisible"
    assert "none on this host" in result[-1]


def test_doctor_checks_the_server(penstock: Call, here: Path) -> None:
    found = {finding["check"]: finding for finding in penstock("doctor", "--json").document}
    assert found["broker"]["level"] == "ok"
    for check in ("redis", "redis memory", "redis clock", "redis rights"):
        assert found[check]["level"] == "ok", found[check]
    assert "a restart loses every message" in found["redis disk"]["found"]
    assert found["redis disk"]["hint"]


@pytest.mark.usefixtures("here")
def test_doctor_reports_an_unavailable_server_with_a_remedy(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "redis://127.0.0.1:1")
    (broker,) = (one for one in json.loads(penstock("doctor", "--json").out) if one["check"] == "broker")
    assert (broker["level"], "refused" in broker["found"]) == ("failed", True)
    assert "The setting broker has its address" in broker["hint"]


def test_doctor_warns_about_a_local_ledger_with_a_shared_queue(penstock: Call, here: Path) -> None:
    def ledger() -> str:
        findings = penstock("doctor", "--json").document
        return next(str(finding["level"]) for finding in findings if finding["check"] == "ledger")

    assert ledger() == "ok"  # no ledger is needed yet
    (here / ".penstock").mkdir()
    (here / ".penstock" / "ledger.db").touch()
    assert ledger() == "warning"


def test_services_that_need_a_shared_ledger_do_not_start_with_a_local_one(
    penstock: Call, start: Start, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ledger(app: str) -> str:
        findings = json.loads(penstock("doctor", "--app", app, "--json").out)
        return next(str(finding["level"]) for finding in findings if finding["check"] == "ledger")

    (here / "keyed.py").write_text(f"{APP}\n\n@app.handler('keyed', idempotency=str)\ndef once(message): ...\n")
    assert (ledger("shop:app"), ledger("keyed:app")) == ("ok", "failed")
    assert not (here / ".penstock" / "ledger.db").exists()
    refused = penstock("worker", "keyed:app")
    assert refused.exit_code == CONFIGURATION
    assert "the work of once would be done once per host" in refused.err
    monkeypatch.setenv("PENSTOCK_ONE_HOST", "true")
    start("keyed:app").expect("worker.started")


COMMANDS: list[tuple[object, ...]] = [
    ("admin", "config", "show"),
    ("admin", "config", "show", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("status",),
    ("queues", "list"),
    ("queues", "show", "orders"),
    ("queues", "pause", "orders"),
    ("queues", "purge", "orders", "--yes"),
    ("send", "orders", "--body", "1"),
    ("send", "orders", "--body", "1", "--app", "shop:app"),
    ("dead", "list"),
    ("admin", "workers", "list"),
    ("worker", "nope:app"),
    ("init", "made"),
]


@pytest.mark.parametrize(
    ("address", "exit_code"),
    [
        ("redis://shop:{secret}@127.0.0.1:{port}", 0),
        ("redis://nobody:{secret}@127.0.0.1:{port}", CONFIGURATION),
        ("redis://shop:{secret}@127.0.0.1:1", TEMPORARY),
        ("redis+cluster://shop:{secret}@127.0.0.1:{port}", None),
        ("redis://shop:{secret}@127.0.0.1:{port}0000", CONFIGURATION),
        ("redis://shop:{secret}/{secret}@127.0.0.1:{port}", CONFIGURATION),
        ("redis://127.0.0.1:{port}/x?password={secret}", CONFIGURATION),
        ("redis:/shop:{secret}@127.0.0.1", CONFIGURATION),
    ],
)
def test_no_command_ever_shows_the_password(
    penstock: Call,
    here: Path,
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    exit_code: int | None,
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", address.format(secret=SECRET, port=server.port))
    for command in COMMANDS:
        result = penstock(*command)
        assert SECRET not in result.out + result.err, command
        if command == ("queues", "list") and exit_code is not None:
            assert result.exit_code == exit_code, result.err
            assert len(result.err.splitlines()) <= 1
    assert SECRET not in (here / "made" / "penstock.toml").read_text()


def test_no_worker_ever_logs_the_password(
    start: Start, here: Path, server: RedisServer, broker: RedisStreamsBroker
) -> None:
    (here / "go_on").touch()
    (here / "penstock.toml").write_text('[log]\nlevel = "debug"\n')
    worker = start("shop:app")
    assert worker.expect("worker.started")["broker"] == f"redis://shop:***@127.0.0.1:{server.port}/1"
    send(broker, "slow")
    worker.expect("message.acked")
    server.stop()
    worker.expect("receive.failed")
    worker.kill()
    assert len(worker.log_lines) > 4
    assert not [line for line in worker.log_lines if SECRET in line]


def test_a_worker_that_the_server_refuses_logs_an_error(
    start: Start, here: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", f"redis://nobody:{SECRET}@127.0.0.1:{server.port}")
    worker = start("shop:app")
    failed = worker.expect("worker.failed")
    assert (failed["level"], failed["error.type"]) == ("error", "ConfigurationError")
    assert worker.exit_code() == CONFIGURATION
    assert sum('"worker.failed"' in line for line in worker.log_lines) == 1
    assert not [line for line in worker.log_lines if SECRET in line]


def test_messages_of_a_killed_worker_are_redelivered_on_this_host_at_once(
    start: Start, broker: RedisStreamsBroker, here: Path
) -> None:
    send(broker, "slow")
    first = start("shop:app")
    first.expect("message.started", attempt=1)
    first.kill()
    second = start("shop:app")
    second.expect("message.started", attempt=2)  # with a lease of ten minutes
    (here / "go_on").touch()
    second.expect("message.acked")
    assert [record.pid for record in Workers(here / ".penstock").records()] == [second.pid]


def test_messages_of_a_killed_child_are_redelivered_to_its_sibling_at_once(
    start: Start, broker: RedisStreamsBroker, here: Path
) -> None:
    supervisor = start("shop:app", "--processes", 2)
    for n in (1, 2):
        supervisor.expect("worker.started", times=n)
    send(broker, "slow")
    killed = supervisor.expect("message.started", attempt=1)["pid"]
    os.kill(killed, signal.SIGKILL)
    supervisor.expect("message.started", attempt=2)
    (here / "go_on").touch()
    supervisor.expect("message.acked")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 0


def test_a_deleted_entry_is_reported(start: Start, broker: RedisStreamsBroker, here: Path) -> None:
    (here / "penstock.toml").write_text("[worker]\nlease = 3\n")
    send(broker, "slow")
    worker = start("shop:app")
    worker.expect("message.started")
    with redis.Redis.from_url(os.environ["PENSTOCK_BROKER"]) as client:
        ((id, _),) = client.xrange("penstock:{slow}:stream")
        client.xdel("penstock:{slow}:stream", id)
    assert worker.expect("message.deleted", queue="slow")["ids"] == [id.decode()]


def test_workers_of_this_host_are_listed_drained_and_stopped(
    penstock: Call, start: Start, broker: RedisStreamsBroker
) -> None:
    send(broker, "slow")
    worker = start("shop:app")
    worker.expect("message.started")
    id = worker.expect("worker.started")["worker"]
    assert [row["worker"] for row in penstock("admin", "workers", "list", "--json").document] == [id]
    assert penstock("queues", "show", "slow", "--json").document["workers"] == [id]
    assert penstock("admin", "workers", "drain", "--json").document == {"asked": [id], "elsewhere": [], "suspended": []}
    worker.expect("worker.draining")
    Path("go_on").touch()
    worker.expect("message.acked")
    assert penstock("admin", "workers", "stop").exit_code == 0
    assert worker.exit_code() == 0


def test_a_stream_with_an_unescaped_key_is_reported_with_the_right_key(
    penstock: Call, here: Path, server: RedisServer
) -> None:
    """A client writes the queue's name unescaped, although its colon must be escaped."""
    address = os.environ["PENSTOCK_BROKER"]
    with closing(RedisStreamsBroker(address, holder="")) as broker, closing(redis.Redis.from_url(address)) as client:
        broker.send("mail:fast", [Outgoing(body=b"1")])
        shown = penstock("queues", "show", "mail:fast")
        assert ("penstock:{mail%3Afast}:stream" in shown.out, "Warning" in shown.err) == (True, False)
        client.xadd("penstock:{mail:fast}:stream", {"body": "2"})
        for words in (["queues", "show", "mail:fast"], ["queues", "list"]):
            result = penstock(*words)
            assert "the key penstock:{mail:fast}:stream holds 1 entry that no worker reads" in result.err
            assert "is penstock:{mail%3Afast}:stream" in result.err
        status = penstock("status", "--app", "shop:app", "--check")
        assert status.exit_code == CHECK_FOUND_PROBLEMS
        assert "holds 1 entry that no worker reads" in " ".join((status.out + status.err).split())
        client.xadd(penstock("queues", "show", "mail:fast", "--json").document["sender_key"], {"body": "3"})
        bodies = [one.message.body for one in broker.receive("mail:fast", messages_max=9, lease_seconds=60.0)]
        assert bodies == [b"1", b"3"]

"""The pages about workers: what each holds, which seem stuck, and draining one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.web.clients import FormClient, client_of

from penstock import App
from penstock.app.held_messages import HeldMessage
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.registry import RecordWriter, WorkerRecord
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.holders import ClaimHolders
from penstock.messaging.clock import SystemClock
from penstock.worker.shutdown import StopSignal

WORKER = "here-1-A"
HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db", data_dir=str(tmp_path)
    )


@pytest.fixture
def app(settings: Settings) -> App:
    app = App(name="shop", settings=settings)

    @app.handler(queue="orders", timeout="30s")
    def order(body: dict[str, int]) -> None: ...

    return app


@pytest.fixture
def client(app: App) -> Iterator[FormClient]:
    with client_of(app) as client:
        yield client


@pytest.fixture
def record() -> WorkerRecord:
    writer = RecordWriter(Path("unused"), worker=WORKER, version="1.2", stop=StopSignal(), clock=SystemClock())
    return replace(writer.record(), queues=("orders",), concurrency=8, settled={"orders": 5})


@pytest.fixture
def registry(settings: Settings) -> ProcessRegistry:
    return ProcessRegistry(Path(settings.data_dir) / PROCESSES_FOLDER)


def write(registry: ProcessRegistry, record: WorkerRecord) -> None:
    registry.record(record.worker).write_text(json.dumps(asdict(record)))


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with code 7 at SIGTSTP."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGTSTP, lambda *_: os._exit(7)); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def words(page: str) -> str:
    """Return the text of a page without elements."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_without_workers_the_page_names_the_command(client: FormClient) -> None:
    assert "Start one with: penstock worker" in client.get("/workers").text


def test_a_worker_is_shown_with_its_state_and_slots(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    write(registry, replace(record, in_flight=3, lag_seconds=0.26, memory_bytes=123_400_000))
    with registry.register(WORKER), registry.register("an-ingest"):
        page = words(client.get("/workers").text)
    assert f"{WORKER} serving no 3 / 8 orders" in page
    assert "0.3 s 123.4 MB 1.2" in page
    assert "an-ingest no record" in page


def test_a_worker_that_has_ended_is_not_listed_and_links_to_it_say_so(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    write(registry, record)
    assert WORKER not in client.get("/workers").text
    page = words(client.get("/worker", params={"id": WORKER}).text)
    assert "This worker is not on this host It runs on another host, or has ended." in page


def test_a_worker_that_seems_stuck_is_marked_with_the_reason_and_its_message(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    now = time.time()
    held = tuple(
        HeldMessage(queue="orders", message_id=f"m{number}", since=now - age)
        for number, age in enumerate((7_200, 3_600, 1))
    )
    write(
        registry, replace(record, in_flight=3, held=held, beat_at=now - 300, lag_seconds=12.0, troubles=("it hangs",))
    )
    with registry.register(WORKER):
        assert "a thread hangs" in words(client.get("/workers").text)
        page = client.get("/worker", params={"id": WORKER}).text
    text = words(page)
    assert "This worker seems to be stuck." in text
    assert "only a restart helps: it hangs." in text
    assert "No heartbeat for 5 min" in text
    assert "timers run 12 s late" in text
    assert "A message of orders is held for 2 h; more than 60 s is unusual. Show the message So is 1 more." in text
    assert 'href="/message?queue=orders&amp;id=m0"' in page
    assert f"On {record.host}, this resumes a suspended process: kill -CONT {record.pid}" in text
    assert f"kill -KILL {record.pid}" in text


def test_a_worker_that_holds_a_message_for_long_can_log_where_it_is(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    held = (HeldMessage(queue="orders", message_id="m", since=time.time() - 3_600),)
    write(registry, replace(record, in_flight=1, held=held))
    with registry.register(WORKER):
        text = words(client.get("/worker", params={"id": WORKER}).text)
    assert f"log the stacks of all its threads: kill -USR1 {record.pid}" in text
    assert f"kill -KILL {record.pid}" in text
    assert "kill -CONT" not in text


def test_workers_that_seem_stuck_are_first(client: FormClient, registry: ProcessRegistry, record: WorkerRecord) -> None:
    write(registry, record)
    write(registry, replace(record, worker="here-2-B", started_at=record.started_at + 1, troubles=("it hangs",)))
    with registry.register(WORKER), registry.register("here-2-B"):
        page = client.get("/workers").text
    assert page.index("here-2-B") < page.index(WORKER)


def test_the_messages_and_queues_of_a_worker(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    held = (HeldMessage(queue="orders", message_id="m0", since=time.time() - 3 * 86_400),)
    write(registry, replace(record, in_flight=150, held=held, paused={"orders": "OSError: away"}))
    with registry.register(WORKER):
        page = words(client.get("/worker", params={"id": WORKER}).text)
        assert "1 not served" in client.get("/workers").text
    assert "orders 5 OSError: away" in page
    assert "m0 orders 3 d" in page
    assert "These are the 1 that it has held for longest, of 150." in page


def test_messages_that_the_record_only_counts_are_not_denied(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    write(registry, replace(record, in_flight=2, held=()))
    with registry.register(WORKER):
        page = words(client.get("/worker", params={"id": WORKER}).text)
    assert "2 messages that its record does not name The pages of its queues show the messages in flight." in page
    assert "It holds no message" not in page


def hold(settings: Settings, worker: str, *, lease_seconds: float = 60.0) -> None:
    with closing(Ledger.open(settings.ledger)) as ledger:
        ledger.begin_work("order", "key-1", attempt_id=f"a-{worker}", worker=worker, lease_seconds=lease_seconds)


def test_workers_that_only_claims_name_are_shown(client: FormClient, settings: Settings) -> None:
    hold(settings, "other-2-B")
    hold(settings, "gone-3-C", lease_seconds=-10.0)
    with closing(Ledger.open(settings.ledger)) as ledger:  # a second key
        ledger.begin_work("order", "key-2", attempt_id="b", worker="gone-3-C", lease_seconds=-10.0)
    page = words(client.get("/workers").text)
    assert re.search(r"other-2-B 1 \d+ s extended", page)
    assert re.search(r"gone-3-C 1 \d+ s expired", page)
    detail = words(client.get("/worker", params={"id": "other-2-B"}).text)
    assert "This worker is not on this host" in detail
    assert re.search(r"order key-1 \d+ s", detail)


def test_the_claims_of_a_worker_of_this_host_are_with_it(
    client: FormClient, settings: Settings, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    hold(settings, WORKER)
    write(registry, record)
    with registry.register(WORKER):
        assert "Elsewhere" not in client.get("/workers").text
        page = words(client.get("/worker", params={"id": WORKER}).text)
    assert re.search(r"order key-1 \d+ s", page)


def test_workers_are_shown_while_the_ledger_is_away(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise TemporaryError("the ledger is away")

    monkeypatch.setattr(ClaimHolders, "all", away)
    monkeypatch.setattr(ClaimHolders, "claims_of", away)
    write(registry, record)
    with registry.register(WORKER):
        for page in (client.get("/workers"), client.get("/worker", params={"id": WORKER})):
            assert page.status_code == 200
            assert WORKER in page.text
            assert "the ledger is away" in page.text


def test_hostile_names_are_harmless(client: FormClient, registry: ProcessRegistry, record: WorkerRecord) -> None:
    held = (HeldMessage(queue=HOSTILE, message_id=HOSTILE, since=0.0),)
    write(registry, replace(record, queues=(HOSTILE,), held=held, version=HOSTILE, unserved={HOSTILE: HOSTILE}))
    with registry.register(WORKER):
        for address in ("/workers", f"/worker?id={WORKER}"):
            page = client.get(address).text
            assert "<script>alert" not in page
            assert "\x1b" not in page


def test_many_workers_are_cut(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.workers.WORKERS_MAX", 1)
    write(registry, record)
    write(registry, replace(record, worker="here-2-B"))
    with registry.register(WORKER), registry.register("here-2-B"):
        assert "1 more worker is not shown." in client.get("/workers").text


# Draining


def audits(settings: Settings) -> list[tuple[str, str, str, str | None]]:
    with closing(Ledger.open(settings.ledger)) as ledger:
        return [(row.who, row.action, row.queue, row.outcome) for row in ledger.audits.latest(limit=10)]


def test_a_worker_is_drained_and_the_audit_log_says_by_whom(
    client: FormClient,
    settings: Settings,
    registry: ProcessRegistry,
    record: WorkerRecord,
    other_process: subprocess.Popen[bytes],
) -> None:
    write(registry, replace(record, pid=other_process.pid))
    with registry.register(WORKER):
        assert 'action="/workers/drain?' in client.get("/worker", params={"id": WORKER}).text
        response = client.post("/workers/drain", data={"worker": WORKER}, follow_redirects=False)
        page = client.get(response.headers["location"]).text
    assert (response.status_code, response.headers["location"]) == (303, f"/worker?id={WORKER}&asked=1")
    assert "The worker was asked to drain." in page
    assert 'action="/workers/drain"' not in page
    assert other_process.wait(60) == 7
    assert audits(settings) == [("ann via the dashboard", "drain", "orders", "done")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the state of a process")
def test_a_suspended_worker_is_not_asked_to_drain(
    client: FormClient,
    settings: Settings,
    registry: ProcessRegistry,
    record: WorkerRecord,
    other_process: subprocess.Popen[bytes],
) -> None:
    """SIGCONT would discard the request, and the audit log would say that it was done."""
    write(registry, replace(record, pid=other_process.pid))
    other_process.send_signal(signal.SIGSTOP)
    os.waitpid(other_process.pid, os.WUNTRACED)
    with registry.register(WORKER):
        response = client.post("/workers/drain", data={"worker": WORKER})
    assert (response.status_code, f"kill -CONT {other_process.pid}" in response.text) == (400, True)
    assert audits(settings) == []


def test_a_process_whose_lock_is_free_is_not_signalled(
    client: FormClient,
    settings: Settings,
    registry: ProcessRegistry,
    record: WorkerRecord,
    other_process: subprocess.Popen[bytes],
) -> None:
    write(registry, replace(record, pid=other_process.pid))  # the pid belongs to another process by now
    response = client.post("/workers/drain", data={"worker": WORKER})
    assert (response.status_code, "No worker here-1-A" in response.text) == (400, True)
    assert other_process.poll() is None
    assert audits(settings) == []


@pytest.mark.parametrize(("host", "namespace"), [("elsewhere", None), (None, "pid:[1]")])
def test_a_worker_of_another_container_is_not_signalled(
    host: str | None,
    namespace: str | None,
    client: FormClient,
    registry: ProcessRegistry,
    record: WorkerRecord,
    other_process: subprocess.Popen[bytes],
) -> None:
    there = replace(record, host=host or record.host, namespace=namespace or record.namespace)
    write(registry, replace(there, pid=other_process.pid))
    with registry.register(WORKER):
        assert "/workers/drain" not in client.get("/worker", params={"id": WORKER}).text
        response = client.post("/workers/drain", data={"worker": WORKER})
    assert (response.status_code, "on another host or in another container" in response.text) == (400, True)
    assert other_process.poll() is None


def test_without_its_audit_entry_no_worker_is_drained(
    client: FormClient, registry: ProcessRegistry, record: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[object] = []

    def away(*_: object, **__: object) -> None:
        raise TemporaryError("the ledger is away")

    monkeypatch.setattr("penstock.ledger.dead_letters.Audits.begin", away)
    monkeypatch.setattr("penstock.app.registry.Workers.signal", lambda *given: signals.append(given))
    write(registry, record)
    with registry.register(WORKER):
        assert client.post("/workers/drain", data={"worker": WORKER}).status_code == 503
    assert signals == []


def test_a_worker_that_ends_meanwhile_is_recorded_as_failed(
    client: FormClient, settings: Settings, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(60)
    write(registry, replace(record, pid=ended.pid))
    with registry.register(WORKER):
        response = client.post("/workers/drain", data={"worker": WORKER})
    assert (response.status_code, "ended before it could be asked" in response.text) == (400, True)
    assert audits(settings) == [("ann via the dashboard", "drain", "orders", "failed")]


@pytest.mark.parametrize("state", ["draining", "stopping"])
def test_a_worker_that_drains_already_has_no_button(
    state: str, client: FormClient, registry: ProcessRegistry, record: WorkerRecord
) -> None:
    write(registry, replace(record, state=state))
    with registry.register(WORKER):
        page = client.get("/worker", params={"id": WORKER}).text
    assert "/workers/drain" not in page
    assert f">{state}</span>" in page


def test_this_process_is_no_worker(client: FormClient) -> None:
    """The dashboard registers nothing in the data directory, so it cannot be drained."""
    received: list[int] = []
    before = signal.signal(signal.SIGTSTP, lambda number, _: received.append(number))
    try:
        assert client.post("/workers/drain", data={"worker": str(os.getpid())}).status_code == 400
    finally:
        signal.signal(signal.SIGTSTP, before)
    assert received == []

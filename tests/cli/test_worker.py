"""`penstock worker`: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import Process, Start

from penstock.app.registry import Workers
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.cli import exits
from penstock.cli.worker import parse_queues
from penstock.errors import UsageError
from penstock.messaging.message import Outgoing
from penstock.worker.shutdown import StopSignal

USAGE, CONFIGURATION = 2, 78
APP = """
import threading
from pathlib import Path
from penstock import App

def report(error, context):
    Path("reported").write_text(f"{type(error).__name__} {context.final}")

app = App.from_config(on_error=report)
GO_ON = Path("go_on")

@app.handler("orders", max_attempts=1)
def take(message):
    if message.body == b'"bad"':
        raise ValueError("no such order")

@app.handler("slow")
def wait(message):
    while not GO_ON.exists():
        threading.Event().wait(0.02)

if Path("lingering").exists():
    threading.Thread(target=threading.Event().wait).start()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text("[worker]\nlease = 600\n")
    return tmp_path


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
def broker(here: Path) -> Iterator[SqliteBroker]:
    (here / ".penstock").mkdir()
    broker = SqliteBroker(here / ".penstock" / "queue.db", holder="test")
    yield broker
    broker.close()


def send(broker: SqliteBroker, queue: str, body: bytes = b"{}") -> None:
    broker.send(queue, [Outgoing(body=body)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_idle_ends_the_worker_with_0(start: Start, number: signal.Signals) -> None:
    worker = start("shop:app", "--metrics-address", "127.0.0.1:0")
    began = worker.expect("worker.started")
    assert began["queues"] == ["orders", "slow"]
    assert began["weights"] == {"orders": 1, "slow": 1}
    assert (began["app"], began["version"]) == ("shop", version("penstock"))
    host, _, port = began["metrics"].partition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    worker.signal(number)
    worker.expect("worker.drained")
    assert worker.exit_code() == 0


def test_a_second_signal_releases_at_once_and_a_third_does_no_harm(
    start: Start, broker: SqliteBroker, here: Path
) -> None:
    send(broker, "slow")
    worker = start("shop:app", "--stop-timeout", 3_600)
    worker.expect("message.started")
    worker.signal(signal.SIGTERM)
    worker.expect("worker.draining", in_flight=1)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    assert worker.expect("worker.interrupted")["count"] == 1
    assert worker.exit_code() == 0
    assert broker.stats("slow").visible == 1


def test_a_signal_lets_work_in_flight_finish(start: Start, broker: SqliteBroker, here: Path) -> None:
    send(broker, "slow")
    worker = start("shop:app")
    worker.expect("message.started")
    worker.signal(signal.SIGTERM)
    worker.expect("worker.draining", in_flight=1)
    (here / "go_on").touch()
    worker.expect("message.acked")
    assert worker.exit_code() == 0


def test_the_error_hook_of_the_app_is_called(start: Start, broker: SqliteBroker, here: Path) -> None:
    send(broker, "orders", b'"bad"')
    worker = start("shop:app", "--queues", "orders=2")
    began = worker.expect("worker.started")
    assert (began["queues"], "metrics" in began) == (["orders"], False)
    worker.expect("message.dead_lettered")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert (here / "reported").read_text() == "ValueError True"


LATE_SIGNAL = """
import os
import signal

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

late = Late()
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_while_the_interpreter_shuts_down_does_not_change_the_exit_code(
    start: Start, here: Path, processes: int
) -> None:
    (here / "shop.py").write_text(APP + LATE_SIGNAL)  # its object is deleted with its module, after the signal handlers
    worker = start("shop:app", "--processes", processes)
    for n in range(processes):
        worker.expect("worker.started", times=n + 1)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert worker.expect("worker.drained", times=processes)


def test_a_thread_of_a_library_does_not_keep_the_process_alive(start: Start, here: Path) -> None:
    (here / "lingering").touch()
    worker = start("shop:app")
    worker.expect("worker.started")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_thread_of_a_library_does_not_keep_a_failed_process_alive(start: Start, here: Path) -> None:
    (here / "lingering").touch()
    worker = start("shop:app", "--queues", "nope")
    assert worker.exit_code() == CONFIGURATION
    assert "The queue nope has no handler" in worker.error_message()


READING = """
import pyarrow
from deltalake import DeltaTable, write_deltalake
from penstock.messaging.threads import WorkThread

write_deltalake("table", pyarrow.table({"a": [1]}))
begun = threading.Event()

def read():
    while True:
        DeltaTable("table").to_pyarrow_table()
        begun.set()

for _ in range(2):
    WorkThread(read, name="penstock-reading").start()
assert begun.wait(60)
"""


def test_a_thread_inside_the_library_of_a_table_does_not_crash_a_failed_process(start: Start, here: Path) -> None:
    """It would end with SIGSEGV while the interpreter shuts down."""
    (here / "shop.py").write_text(APP + READING)
    worker = start("shop:app", "--queues", "nope")
    assert worker.exit_code() == CONFIGURATION
    assert "The queue nope has no handler" in worker.error_message()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shop:app", "--queues", "nope"), "The queue nope has no handler in this app; queues with one: orders, slow"),
        (
            ("shop:app", "--queues", "oders"),
            "no handler in this app. Did you mean orders? A worker serves only queues that its app handles.",
        ),
        (("shop:app", "--stop-timeout", "12 s"), "draining for 20 s does not fit a stop timeout of 12 s"),
    ],
)
def test_an_invalid_configuration_exits_with_78_before_anything_is_received(
    start: Start, here: Path, arguments: tuple[str, ...], words: str
) -> None:
    (here / "penstock.toml").write_text('[worker]\ndrain = "20s"\n')
    worker = start(*arguments)
    assert worker.exit_code() == CONFIGURATION
    assert words in worker.error_message()
    assert words in worker.expect("worker.failed")["error.message"]
    assert not any("worker.started" in line for line in worker.log_lines)


@pytest.mark.parametrize(
    ("variables", "begins"),
    [
        ({"LOG_FORMAT": "console"}, "penstock: The queue nope has no handler"),
        ({"LOG_FORMAT": "json"}, '{"ts":'),
        ({"LOG_FORMAT": "json", "LOG_LEVELS": '{"worker.failed": "debug"}'}, "penstock: The queue nope has no handler"),
    ],
    ids=["console", "json", "json without the event"],
)
def test_an_error_at_the_start_is_printed_once(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], begins: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    result = penstock("worker", "shop:app", "--queues", "nope")
    assert result.exit_code == CONFIGURATION
    (line,) = result.err.splitlines()
    assert line.startswith(begins)
    assert line.count("The queue nope has no handler in this app") == 1


@pytest.mark.parametrize("app", ["shop", "nope:app", "shop:nope", "shop:take"])
def test_a_missing_app_is_a_usage_error(start: Start, app: str) -> None:
    worker = start(app)
    assert worker.exit_code() == USAGE
    assert worker.error_message()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LOG_LEVELS", '{"message.recieved": "debug"}', "There is no log event 'message.recieved'"),
        ("LOG_SAMPLING", '{"message.failed": 0.5}', "never sampled"),
        ("LOG_LEVEL", "loud", "log.level"),
        ("WORKER_QUEUES", '{"orders": 0}', "worker.queues.orders"),
    ],
)
def test_an_invalid_setting_is_a_configuration_error_in_one_line(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setenv(f"PENSTOCK_{variable}", value)
    before = signal.getsignal(signal.SIGTERM)
    result = penstock("worker", "shop:app")
    assert (result.exit_code, result.out) == (CONFIGURATION, "")
    (line,) = result.err.splitlines()
    assert words in line
    assert signal.getsignal(signal.SIGTERM) is before


def test_messages_of_a_killed_worker_are_redelivered_at_once(start: Start, broker: SqliteBroker, here: Path) -> None:
    send(broker, "slow")
    first = start("shop:app")
    first.expect("message.started", attempt=1)
    first.kill()
    second = start("shop:app")
    second.expect("message.started", attempt=2)  # with a lease of ten minutes
    (here / "go_on").touch()
    second.expect("message.acked")
    assert [record.pid for record in Workers(here / ".penstock").records()] == [second.pid]


# Several processes


def test_a_supervisor_starts_a_killed_worker_again_and_ends_with_all_of_them(start: Start) -> None:
    supervisor = start("shop:app", "--processes", 2)
    pids = {supervisor.expect("worker.started", times=n)["pid"] for n in (1, 2)}
    assert len(pids) == 2
    os.kill(min(pids), signal.SIGKILL)
    assert supervisor.expect("process.exited", process=min(pids))["exit_code"] == -signal.SIGKILL
    third = supervisor.expect("worker.started", times=3)["pid"]
    assert third not in pids
    supervisor.signal(signal.SIGTERM)
    for pid in (max(pids), third):
        supervisor.expect("worker.drained", pid=pid)
        supervisor.expect("process.exited", process=pid, exit_code=0)
    assert supervisor.exit_code() == 0


def test_a_second_signal_reaches_the_workers_through_their_supervisor(start: Start, broker: SqliteBroker) -> None:
    send(broker, "slow")
    supervisor = start("shop:app", "--processes", 2, "--stop-timeout", 3_600)
    supervisor.expect("message.started")
    supervisor.signal(signal.SIGINT)
    supervisor.expect("worker.draining", in_flight=1)
    supervisor.signal(signal.SIGINT)
    assert supervisor.expect("worker.interrupted")["count"] == 1
    assert supervisor.exit_code() == 0


def test_workers_that_can_never_start_end_their_supervisor_with_their_exit_code(start: Start) -> None:
    supervisor = start("shop:app", "--queues", "nope", "--processes", 2)
    assert supervisor.exit_code() == CONFIGURATION
    assert any("The queue nope has no handler" in line for line in supervisor.log_lines)
    assert supervisor.expect("process.exited", exit_code=CONFIGURATION).get("delay_s") is None


def test_workers_whose_supervisor_was_killed_drain(start: Start, here: Path) -> None:
    supervisor = start("shop:app", "--processes", 2)
    for n in (1, 2):
        supervisor.expect("worker.started", times=n)
    supervisor.kill()
    for n in (1, 2):
        supervisor.expect("worker.drained", times=n)


def can_create_process_namespaces() -> bool:
    try:
        return not subprocess.run(["unshare", "-pf", "true"], capture_output=True, timeout=60, check=False).returncode
    except OSError:
        return False


@pytest.mark.skipif(
    not can_create_process_namespaces(), reason="not applicable: this machine grants no process id namespaces"
)
def test_a_worker_as_process_1_reaps_orphans_and_drains(start: Start, broker: SqliteBroker, here: Path) -> None:
    (here / "orphans.py").write_text(
        "import subprocess\nfrom pathlib import Path\nfrom penstock import App\napp = App.from_config()\n"
        "@app.handler('orders')\n"
        "def leave(message):\n"
        "    subprocess.run(['sh', '-c', 'sleep 0.05 & sleep 0.05 &'])\n"  # their parent ends before they do
        "@app.handler('look')\n"
        "def look(message):\n"
        "    states = [p.read_text().rpartition(') ')[2].split() for p in Path('/proc').glob('[0-9]*/stat')]\n"
        "    Path('orphans').write_text(str([s for s in states if s[1] == '1' and s[0] == 'Z']))\n"
        "    assert [s[1] for s in states].count('1') == 1, 'there is an orphan that has not been reaped'\n"
    )
    worker = start("orphans:app", before=("unshare", "-pf", "--mount-proc", "--kill-child"))
    worker.expect("worker.started", pid=2)
    send(broker, "orders")
    worker.expect("message.acked", queue="orders")
    send(broker, "look")  # retried until the orphans have ended
    worker.expect("message.acked", queue="look")
    assert (here / "orphans").read_text() == "[]"
    (children,) = [path.read_text() for path in Path(f"/proc/{worker.pid}/task").glob("*/children")]
    os.kill(int(children), signal.SIGTERM)
    worker.expect("worker.drained")
    assert worker.exit_code() == 0


# Commands for workers


def test_workers_commands_without_a_worker_succeed(penstock: Call, here: Path) -> None:
    result = penstock("admin", "workers", "list")
    assert (result.exit_code, result.out, result.err) == (
        0,
        "",
        "No worker with this data directory runs on this host.\n",
    )
    assert penstock("admin", "workers", "list", "--json").document == []
    assert penstock("admin", "workers", "stop", "--all").out == "Signalled 0 workers to stop.\n"


def test_workers_are_listed_drained_and_stopped(penstock: Call, start: Start, broker: SqliteBroker, here: Path) -> None:
    send(broker, "slow")
    first, second = start("shop:app", "--queues", "slow"), start("shop:app", "--queues", "orders")
    first.expect("message.started")
    second.expect("worker.started")
    assert first.expect("worker.started")["worker"] in penstock("admin", "workers", "list").out
    result = penstock("admin", "workers", "drain")
    assert result.exit_code == USAGE
    assert "There are 2 workers" in result.err
    assert penstock("admin", "workers", "stop", "--worker", "nobody").exit_code == USAGE
    assert penstock("admin", "workers", "stop", "--worker", first.pid, "--all").exit_code == USAGE

    id = second.expect("worker.started")["worker"]
    drained = penstock("admin", "workers", "drain", "--worker", id, "--json").document
    assert drained == {"asked": [id], "elsewhere": [], "suspended": []}
    second.expect("worker.draining")
    send(broker, "orders")
    assert penstock("admin", "workers", "stop", "--worker", id).out == "Signalled 1 worker to stop.\n"
    assert second.exit_code() == 0
    assert broker.stats("orders").visible == 1, "a worker that drains fetches nothing more"

    (document,) = penstock("admin", "workers", "list", "--json").document
    assert (document["pid"], document["queues"], document["state"]) == (first.pid, ["slow"], "serving")
    assert penstock("admin", "workers", "stop").exit_code == 0
    first.expect("worker.draining", in_flight=1)
    (here / "go_on").touch()
    assert first.exit_code() == 0
    assert penstock("admin", "workers", "list", "--json").document == []


@pytest.mark.skipif(sys.platform != "linux", reason="not applicable: only Linux shows the state of a process")
def test_a_suspended_worker_is_not_asked_to_drain(penstock: Call, start: Start) -> None:
    """SIGCONT would discard the request."""
    worker = start("shop:app")
    id = worker.expect("worker.started")["worker"]
    worker.signal(signal.SIGSTOP)
    worker.await_state("T")
    refused = penstock("admin", "workers", "drain")
    assert refused.exit_code == 1
    assert f"The worker {id} is suspended" in refused.err
    assert f"kill -CONT {worker.pid}" in refused.err


def test_a_worker_of_another_container_is_not_signalled(penstock: Call, start: Start, here: Path) -> None:
    worker = start("shop:app")
    worker.expect("worker.started")
    (record,) = (here / ".penstock" / "processes").glob("*.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.app.registry.process_namespace", lambda: "another")
        result = penstock("admin", "workers", "stop")
    assert result.exit_code == 1
    assert f"{record.stem} runs on another host or in another container" in result.err
    assert json.loads(record.read_text())["state"] == "serving"


def test_a_dump_of_all_stacks_is_logged(start: Start) -> None:
    worker = start("shop:app")
    worker.expect("worker.started")
    worker.signal(signal.SIGUSR1)
    assert "penstock-io" in worker.expect("stacks.dumped")["stacks"]


def test_neither_a_drain_nor_a_dump_of_stacks_starts_the_exit_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    monkeypatch.setattr(exits, "leave_now", lambda _exit_code: left.set())
    stop = StopSignal()
    exits.leave_in_time(stop, 0.0, 1)
    stop.request_stacks()
    assert not left.wait(0.2), "a worker that dumps its stacks continues"
    stop.pause()
    assert not left.wait(0.2), "one that drains stays up"
    stop.request()
    assert left.wait(60)


def test_the_help_shows_the_options_of_running(penstock: Call) -> None:
    result = penstock("worker", "--help")
    assert result.exit_code == 0
    for word in ("penstock worker [OPTIONS] [APP]", "--concurrency"):
        assert word in result.out


@pytest.mark.parametrize(
    ("text", "weights"), [("a", {"a": 1}), ("a=2,b", {"a": 2, "b": 1}), (" x=1=3 , b=10", {"x=1": 3, "b": 10})]
)
def test_queues_are_parsed_with_weights(text: str, weights: dict[str, int]) -> None:
    assert parse_queues(text) == weights


@pytest.mark.parametrize("text", ["", "a,,b", "a=", "=2", "a=0", "a=-1", "a=x", "a=²", "a=1001", "a,a=2"])
def test_invalid_queues_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--queues"):
        parse_queues(text)

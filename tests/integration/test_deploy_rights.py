"""The policies of deploy/terraform suffice: any other request is refused, as AWS would."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.client
import hcl2
import pytest
from botocore.exceptions import ClientError
from hcl2 import SerializationOptions
from tests.services.aws_server import REGION, AwsServer
from typer.testing import CliRunner

from penstock import App, Message, Reject
from penstock.app.jobs.elected import TaskRun
from penstock.app.jobs.expiry import ExpiryWatch
from penstock.app.jobs.monitor.process import measure_once
from penstock.app.replayer import replayed_dlqs
from penstock.app.serving import serve
from penstock.brokers.sqs import SqsBroker
from penstock.cli.main import app as cli
from penstock.config import Settings
from penstock.events import (
    Bus,
    DeadLetterReplayed,
    DeadLettersArchived,
    DeliverySettled,
    Event,
    MonitorStarted,
    SettlementFailed,
)
from penstock.messaging.broker import QueueSettings
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.monitoring.metrics.meters import Meters
from penstock.storage.local import LocalFiles
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
TERRAFORM = Path(__file__).parents[2] / "deploy/terraform"
QUEUES = {"source": "q", "dlq": "q-dlq", "dead": "q-dead"}
TIERS = (
    QueueSettings(name="q", dead_letter_queue="q-dlq", receives_max=20),
    QueueSettings(name="q-dlq", dead_letter_queue="q-dead", receives_max=1_000),
)
Right = tuple[str, str]  # an action, and a queue or *


REPLAYS, ARCHIVES = "dead_letters_replay", "dead_letters_archive"  # variables of the module


def rights(policy: str, *variables: str) -> set[Right]:
    """Return the permissions of a policy document of the module, with these variables true.

    They include those of the documents in it.
    """
    options = SerializationOptions(strip_string_quotes=True, explicit_blocks=False, with_comments=False)
    found: set[Right] = set()
    for name in ("policies.tf", "roles.tf"):
        parsed = hcl2.loads((TERRAFORM / name).read_text(encoding="utf-8"), serialization_options=options)
        for block in parsed["data"]:
            document = block["aws_iam_policy_document"].get(policy, {})
            # A worker's expression has conditional documents, too.
            for condition, source in re.findall(
                r"(?:var\.(\w+) \? \[)?data\.aws_iam_policy_document\.(\w+)\.json",
                str(document.get("source_policy_documents")),
            ):
                if not condition or condition in variables:
                    found |= rights(source, *variables)
            for one in document.get("statement", []):
                for arn in one["resources"]:
                    queue = re.fullmatch(r"\$\{aws_sqs_queue\.(\w+)\.arn\}", arn)
                    assert queue or arn == "*"
                    found |= {(action, QUEUES[queue[1]] if queue else "*") for action in one["actions"]}
    assert found
    return found


class Later(SystemClock):
    """The system's clock, that many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


@dataclass
class Guard:
    """Checks every call of the AWS library, once it has a policy."""

    allowed: set[Right] | None = None
    used: set[Right] = field(default_factory=set)
    refused: set[Right] = field(default_factory=set)

    def check(self, service: str, operation: str, parameters: Mapping[str, Any]) -> None:
        if self.allowed is None:
            return
        queue = str(parameters.get("QueueUrl", parameters.get("QueueName", "*"))).rpartition("/")[2]
        right = (f"{service}:{operation.removesuffix('Batch')}", queue)
        if right in self.allowed:
            self.used.add(right)
            return
        self.refused.add(right)
        response = {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(response, operation)


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    created = Guard()
    call: Callable[..., Any] = botocore.client.BaseClient._make_api_call

    def guarded(client: Any, operation: str, parameters: Mapping[str, Any]) -> Any:
        service = {"sqs": "sqs", "monitoring": "cloudwatch"}[client.meta.service_model.endpoint_prefix]
        created.check(service, operation, parameters)
        return call(client, operation, parameters)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", guarded)
    return created


@pytest.fixture
def broker(moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsBroker]:
    """Open the broker; its queues exist, and the environment leads to them."""
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    created = SqsBroker(moto.aws, holder="test", queues=TIERS, poll_seconds=1)
    yield created
    created.close()
    moto.clean()


@pytest.fixture
def app(tmp_path: Path, moto: AwsServer) -> Iterator[App]:
    settings = Settings(
        broker=f"sqs://{REGION}",
        ledger=f"sqlite:///{tmp_path}/ledger.db",
        one_host=True,
        data_dir=str(tmp_path / "state"),
        aws_endpoint_url=moto.url,
        worker_lease=3,
        dead_letters_replay_base=0.001,
    )
    created = App(settings=settings)
    yield created
    created.close()


def run(app: App, *, until: Callable[[Event], bool], replays: bool = False) -> list[Event]:
    """Run the worker, or a replayer, until an awaited event."""
    stop, events = StopSignal(), list[Event]()

    def listen(event: Event) -> None:
        events.append(event)
        if until(event) and not stop.requested:  # a second request would release at once
            stop.request()

    dlqs = replayed_dlqs(app, ["q"]) if replays else None
    conclusion = serve(app, stop=stop, listeners=(listen,), dlqs=dlqs)
    assert conclusion.outcome == "drained"
    return events


def test_the_workers_policy_suffices(app: App, broker: SqsBroker, guard: Guard) -> None:
    waiting, settled, calls = {"done", "bad"}, set[str](), list[bytes]()

    @app.handler("q", retry_base=0.01, max_retry_wait=0.02)
    def work(message: Message) -> None:
        if message.body == b"bad":
            raise Reject("for the test")
        calls.append(message.body)
        if len(calls) == 1:
            raise ValueError("once")

    broker.send("q", [Outgoing(body=body.encode()) for body in sorted(waiting)])
    guard.allowed = rights("worker")

    def all_done(event: Event) -> bool:
        if isinstance(event, DeliverySettled) and type(event.settlement).__name__ in ("Ack", "DeadLetter"):
            settled.add(event.message_id)
        return len(settled) == len(waiting)

    events = run(app, until=all_done)
    assert (guard.refused, calls) == (set(), [b"done", b"done"])
    assert not [event for event in events if isinstance(event, SettlementFailed)]
    assert {action for action, queue in guard.used if queue == "q"} >= {
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:ChangeMessageVisibility",
    }
    assert ("sqs:SendMessage", "q-dlq") in guard.used


def test_the_workers_policy_suffices_to_replay(app: App, broker: SqsBroker, guard: Guard) -> None:
    broker.send("q", [Outgoing(body=b"due"), Outgoing(body=b"poison")])
    received = broker.receive("q", messages_max=10, lease_seconds=60)
    poison = {one.message.body: DeadLetter(reason="x", poison=one.message.body == b"poison") for one in received}
    assert len(received) == 2
    assert not broker.settle([(one, poison[one.message.body]) for one in received])
    guard.allowed = rights("worker", REPLAYS)
    results: set[str] = set()

    @app.handler("q")
    def work(message: Message) -> None:
        raise AssertionError("only dead letters are served here")

    def both_replayed(event: Event) -> bool:
        if isinstance(event, DeadLetterReplayed):
            results.add(event.result)
        return results >= {"sent", "set_aside"}

    run(app, until=both_replayed, replays=True)
    assert guard.refused == set()
    assert {("sqs:SendMessage", "q"), ("sqs:SendMessage", "q-dead"), ("sqs:ReceiveMessage", "q-dlq")} <= guard.used
    assert ("sqs:ReceiveMessage", "q-dead") not in guard.allowed


@pytest.mark.parametrize("queue", ["q-dlq", "q-dead"])
def test_the_workers_policy_suffices_to_archive_dead_letters(
    broker: SqsBroker, guard: Guard, queue: str, tmp_path: Path
) -> None:
    broker.send(queue, [Outgoing(body=b"1")])
    events: list[Event] = []
    retention_seconds = broker.retention_seconds(queue)
    assert retention_seconds is not None
    watch = ExpiryWatch(
        broker=broker,
        archive=LocalFiles(tmp_path),
        warn_share=0.5,
        bus=Bus(events.append),
        clock=Later(0.97 * retention_seconds),
    )
    task_run = TaskRun(StopSignal(), worker_stop=StopSignal(), clock=SystemClock())
    guard.allowed = rights("worker")
    with pytest.raises(Exception, match="sqs:ReceiveMessage"):
        watch.inspect(queue, task_run)
    guard.allowed, guard.refused = rights("worker", ARCHIVES), set()
    watch.inspect(queue, task_run)
    assert (guard.refused, [type(event) for event in events]) == (set(), [DeadLettersArchived])
    assert guard.used >= {("sqs:ReceiveMessage", queue), ("sqs:DeleteMessage", queue)}
    assert guard.allowed - rights("worker") == {
        (f"sqs:{action}", dlq)
        for dlq in ("q-dlq", "q-dead")
        for action in ("ChangeMessageVisibility", "DeleteMessage", "ReceiveMessage")
    }


def test_the_workers_policy_suffices_to_measure(app: App, broker: SqsBroker, guard: Guard) -> None:
    @app.handler("q")
    def work(message: Message) -> None:
        raise AssertionError("nothing is served here")

    broker.send("q", [Outgoing(body=b"1")])
    guard.allowed = rights("worker")
    sample = measure_once(app)
    assert (guard.refused, sample.errors) == (set(), {})
    assert [(one.queue, one.visible) for one in sample.queues] == [("q", 1)]
    assert guard.used >= {("cloudwatch:GetMetricData", "*"), ("sqs:GetQueueAttributes", "q-dead")}


def test_the_elected_worker_measures_with_the_workers_policy(app: App, broker: SqsBroker, guard: Guard) -> None:
    app.handler("q", idempotency=lambda message: message.id)(print)
    broker.send("q-dead", [Outgoing(body=b"for people")])
    guard.allowed = rights("worker")
    stop, meters = StopSignal(), Meters()

    def elected(event: Event) -> None:
        if isinstance(event, MonitorStarted):
            started.set()

    started = threading.Event()
    thread = threading.Thread(
        target=serve, args=(app,), kwargs={"stop": stop, "listeners": (elected,), "meters": meters}
    )
    thread.start()
    assert started.wait(DEADLINE_SECONDS)
    try:
        ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
        while not (values := meters.read().values).get("dead_letters"):
            assert time.monotonic() < ends_at, values
            tick.wait(0.05)
    finally:
        stop.request()
        thread.join(DEADLINE_SECONDS)
    assert values["dead_letters"]["q", "dead"] == 1
    assert values["monitor_up"]["broker",] == 1
    assert guard.refused == set()


def test_the_senders_policy_suffices(app: App, broker: SqsBroker, guard: Guard) -> None:
    guard.allowed = rights("sender")
    app.send("q", b"1")
    assert guard.refused == set()
    assert ("sqs:SendMessage", "q") in guard.used


COMMANDS = (
    "status --app night:app",
    "queues list",
    "queues show q",
    "dead list --app night:app",
    "dead groups --tier dead --app night:app",
    "dead show {id} --queue q",
    "dead export --queue q --tier dlq --to dead.jsonl --remove",
    "dead import dead.jsonl",
    "dead replay --queue q --tier dlq --yes",
    "dead purge --queue q --yes",
)


def test_the_operators_policy_suffices_for_the_commands_of_the_runbooks(
    broker: SqsBroker, moto: AwsServer, guard: Guard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "night.py").write_text(
        "from penstock import App\n\napp = App.from_config()\n\n\n@app.handler('q')\ndef work(body):\n    pass\n"
    )
    (tmp_path / "penstock.toml").write_text(f'broker = "sqs://{REGION}"\none_host = true\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", moto.url)
    broker.send("q", [Outgoing(body=b"1"), Outgoing(body=b"2")])
    dead_letters = broker.receive("q", messages_max=10, lease_seconds=60)
    assert not broker.settle(
        [(dead_letters[0], DeadLetter(reason="x")), (dead_letters[1], DeadLetter(reason="x", poison=True))]
    )
    broker.send("q-dead", [Outgoing(body=b"set aside")])
    guard.allowed = rights("operator")
    for command in COMMANDS:
        result = CliRunner().invoke(cli, command.format(id=dead_letters[0].message.id).split())
        assert (guard.refused, result.exit_code) == (set(), 0), f"{command}: {result.output} {result.exception}"
    assert {("sqs:ListQueues", "*"), ("sqs:SendMessage", "q"), ("sqs:DeleteMessage", "q-dead")} <= guard.used
    for command in ("queues purge q --yes", "send q --body 1 --delay 1"):
        CliRunner().invoke(cli, command.split())
    assert guard.refused == {("sqs:PurgeQueue", "q")}


def test_ungranted_requests_are_refused(app: App, broker: SqsBroker, guard: Guard) -> None:
    guard.allowed = rights("monitor")
    with pytest.raises(Exception, match="sqs:SendMessage"):
        app.send("q", b"1")
    assert ("sqs:SendMessage", "q") in guard.refused

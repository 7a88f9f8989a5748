"""The replay function, invoked by a simulated event source mapping over a real server."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cfnlint.decode import decode
from tests.integration.lambda_mapping import SourceMapping, record
from tests.integration.sqs_scene import Scene, bodies, scene, take, take_later
from tests.services.aws_server import REGION, AwsServer

from penstock.app.queues import messages_in
from penstock.brokers.sqs import SqsBroker
from penstock.brokers.sqs.client import SqsApi
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import DeadLetterReplayed, Event
from penstock.integrations.aws_lambda import ReplayFunction
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, death_of, earlier_deaths_of, set_aside_reason, with_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes, Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.messaging.steps import Probe, Step, no_probe

__all__ = ["scene"]

TEMPLATE = Path(__file__).parents[2] / "deploy/lambda/template.yaml"
TINY = "0.000001"  # seconds: a base so short that SQS, which delays by whole seconds, delays by one at most
ARRIVAL_SECONDS = 120.0  # an upper bound; messages arrive within a second or two


@dataclass
class Stage:
    """A queue, its DLQ and final DLQ, and a function that the DLQ invokes."""

    scene: Scene
    environment: pytest.MonkeyPatch
    broker: SqsBroker
    fifo: bool = False

    def name(self, suffix: str = "") -> str:
        return f"q{suffix}" + (".fifo" if self.fifo else "")

    def function(self, *, probe: Probe = no_probe, listen: Callable[[Event], None] = lambda _: None) -> ReplayFunction:
        return ReplayFunction(probe=probe, listeners=[listen])

    def mapping(self, function: ReplayFunction) -> SourceMapping:
        dlq = self.name("-dlq")
        return SourceMapping(self.scene.raw, self.scene.url(dlq), self.scene.arn(dlq), function)

    def run(self, **options: Any) -> list[str]:
        with closing(self.function(**options)) as function:
            return list(self.mapping(function).run())

    def dead_letter(self, *messages: Outgoing, reject: bool = False) -> None:
        """Let Penstock's own worker dead-letter these messages."""
        for message in messages:
            self.broker.send(self.name(), [message])
            (delivery,) = take(self.broker, queue=self.name())
            assert not self.broker.settle([(delivery, DeadLetter(reason="bad", poison=reject))])

    def put(self, body: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Put a message into the DLQ as another program does."""
        self.scene.raw.send_message(
            QueueUrl=self.scene.url(self.name("-dlq")), MessageBody=body, MessageAttributes=attributes or {}
        )

    def received(self, count: int) -> list[Mapping[str, Any]]:
        """Return the messages that a mapping receives in one call."""
        request = {"QueueUrl": self.scene.url(self.name("-dlq")), "MaxNumberOfMessages": 10}
        names = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        raw: list[Mapping[str, Any]] = self.scene.raw.receive_message(**request, **names)["Messages"]
        assert len(raw) == count
        return raw

    def call(self, raw: Sequence[Mapping[str, Any]]) -> list[str]:
        arn = self.scene.arn(self.name("-dlq"))
        with closing(self.function()) as function:
            result = function({"Records": [record(each, arn) for each in raw]})
        return [each["itemIdentifier"] for each in result["batchItemFailures"]]

    def drained(self) -> list[str]:
        """Receive and ack everything that waits in the queue, one after the other."""
        received: list[str] = []
        while deliveries := self.waiting():
            received += bodies(deliveries)
            assert not self.broker.settle([(each, Ack()) for each in deliveries])
        return received

    def waiting(self, suffix: str = "") -> list[Delivery]:
        """Receive the visible messages; there may be none."""
        return take_later(self.broker, queue=self.name(suffix), seconds=1.0)

    def arrived(self, suffix: str = "", *, count: int = 1) -> list[Delivery]:
        """Receive messages, ``count`` or more, that must arrive, perhaps after a delay and not all at once."""
        received: list[Delivery] = []
        while len(received) < count:
            more = take_later(self.broker, queue=self.name(suffix), seconds=ARRIVAL_SECONDS)
            assert more, f"{count - len(received)} messages never came"
            received += more
        return received


@pytest.fixture
def stage(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return make_stage(scene, tmp_path, monkeypatch, fifo=False)


def make_stage(scene: Scene, folder: Path, environment: pytest.MonkeyPatch, *, fifo: bool) -> Stage:
    end = ".fifo" if fifo else ""
    broker = scene.broker(
        QueueSettings(name=f"q{end}", dead_letter_queue=f"q-dlq{end}", receives_max=3),
        QueueSettings(name=f"q-dlq{end}", dead_letter_queue=f"q-dead{end}", receives_max=1_000),
    )
    environment.chdir(folder)
    environment.setenv("PENSTOCK_AWS_ENDPOINT_URL", scene.server.url)
    environment.setenv("AWS_REGION", REGION)
    environment.setenv("SQS_MAIN_URL", scene.url(f"q{end}"))
    environment.setenv("BACKOFF_RATE", TINY)
    environment.setenv("MAX_ATTEMPS", "3")
    environment.setenv("MESSAGE_RETENTION_PERIOD", "345600")
    return Stage(scene=scene, environment=environment, broker=broker, fifo=fifo)


def test_a_dead_letter_is_replayed_unchanged(stage: Stage) -> None:
    attributes: Attributes = {f"a{n}": b"\x00\xff" if n % 2 else f"v{n}" for n in range(9)}
    stage.dead_letter(Outgoing(body=b"\x00raw", attributes=attributes, group="tenant"))
    events: list[Event] = []
    assert stage.run(listen=events.append) == []
    (again,) = stage.arrived()
    assert (again.message.body, again.message.group) == (b"\x00raw", "tenant")
    kept = {name: value for name, value in again.message.attributes.items() if name in attributes}
    assert kept == attributes
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"
    assert DEATH_ATTRIBUTE not in again.message.attributes
    assert [death.reason for death in earlier_deaths_of(again.message.attributes)] == ["bad"]
    assert stage.waiting("-dlq") == stage.waiting("-dead") == []
    (result,) = [each for each in events if isinstance(each, DeadLetterReplayed)]
    assert (result.result, result.queue, result.dead_letter_queue, result.count) == ("sent", "q", "q-dlq", 1)
    assert result.replay_id == again.message.attributes[REPLAY_ID_ATTRIBUTE]


def test_a_message_that_always_fails_is_replayed_three_times_and_moved_to_the_final_dlq(stage: Stage) -> None:
    stage.broker.send("q", [Outgoing(body=b"bad")])
    for _ in range(4):
        (message,) = stage.arrived()
        assert not stage.broker.settle([(message, DeadLetter(reason="always"))])
        stage.run()
    assert stage.waiting() == []
    (dead,) = stage.arrived("-dead")
    assert set_aside_reason(dead.message.attributes) == "replayed 3 times, and failed again"
    death = death_of(dead.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("always", "q")
    assert stage.waiting("-dlq") == []


def test_poison_is_moved_to_the_final_dlq_at_once(stage: Stage) -> None:
    stage.dead_letter(Outgoing(body=b"bad"), reject=True)
    assert stage.run() == []
    (dead,) = stage.arrived("-dead")
    assert set_aside_reason(dead.message.attributes) == "another attempt cannot help: bad"
    assert stage.waiting() == stage.waiting("-dlq") == []


def test_messages_and_settings_of_the_aws_sample_are_accepted(stage: Stage) -> None:
    stage.environment.setenv("MAX_ATTEMPS", "2")
    stage.put("third", {COUNTER_ATTRIBUTE: {"DataType": "Number", "StringValue": "2"}})
    stage.put("second", {COUNTER_ATTRIBUTE: {"DataType": "Number", "StringValue": "1"}})
    while stage.broker.stats("q-dlq").visible:
        assert stage.run() == []
    (again,) = stage.arrived()
    assert (again.message.body, again.message.attributes[COUNTER_ATTRIBUTE]) == (b"second", "2")
    assert bodies(stage.arrived("-dead")) == ["third"]


def test_a_dead_letter_with_a_long_wait_is_hidden_and_returned_as_a_failure(stage: Stage) -> None:
    stage.environment.setenv("BACKOFF_RATE", "100000000")
    stage.dead_letter(Outgoing(body=b"later"))
    events: list[Event] = []
    (stays,) = stage.run(listen=events.append)
    (result,) = [each for each in events if isinstance(each, DeadLetterReplayed)]
    assert (result.result, result.message_id) == ("waiting", stays)
    assert stage.waiting() == stage.waiting("-dlq") == []
    stats = stage.broker.stats("q-dlq")
    assert (stats.visible, stats.in_flight) == (0, 1)


def test_without_a_recorded_death_the_wait_becomes_a_delay(stage: Stage) -> None:
    stage.environment.setenv("BACKOFF_RATE", "100000000")
    stage.put("moved by SQS")
    assert stage.run() == []
    stats = stage.broker.stats("q")
    assert (stats.visible, stats.delayed) == (0, 1)
    assert stage.waiting("-dlq") == []


@pytest.mark.parametrize("step", [Step.REPLAY_INTENDED, Step.REPLAY_SENT, Step.REPLAY_MARKED])
def test_a_crash_at_any_step_loses_nothing_and_doubles_once(stage: Stage, step: Step) -> None:
    stage.dead_letter(*(Outgoing(body=f"m{n}".encode()) for n in range(3)))

    def crash(at: Step) -> None:
        if at is step:
            raise RuntimeError("the machine stopped")

    dlq = stage.name("-dlq")
    stage.scene.raw.set_queue_attributes(QueueUrl=stage.scene.url(dlq), Attributes={"VisibilityTimeout": "1"})
    with pytest.raises(RuntimeError):
        stage.run(probe=crash)
    before = 0 if step is Step.REPLAY_INTENDED else 3
    received = bodies(stage.arrived(count=before))
    left = stage.broker.stats(dlq)
    while left.visible or left.in_flight:
        stage.run()
        left = stage.broker.stats(dlq)
    received += bodies(stage.arrived(count=3))
    assert sorted(received) == sorted(["m0", "m1", "m2"] * (2 if before else 1))
    assert stage.waiting() == []


def test_unsettled_replays_are_sent_anyway_and_no_dead_letter_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.dead_letter(Outgoing(body=b"a"))
    stage.dead_letter(Outgoing(body=b"p"), reject=True)

    def fail(self: SqsBroker, settlements: object) -> None:
        raise TemporaryError("SQS is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqsBroker, "settle", fail)
        stays: list[str] = []
        while stage.broker.stats("q-dlq").visible:
            stays += stage.run()
    assert len(stays) == 1  # the poison message; Lambda itself deletes the other one
    assert bodies(stage.arrived()) == ["a"]
    assert stage.broker.stats("q-dlq").in_flight == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines].count("settlement.failed") == 2


def test_dead_letters_of_a_shared_dlq_return_to_their_own_queues(stage: Stage) -> None:
    other = stage.scene.broker(QueueSettings(name="other", dead_letter_queue="q-dlq", receives_max=3))
    stage.environment.delenv("SQS_MAIN_URL")
    stage.environment.setenv("PENSTOCK_WORKER_QUEUES", '{"q": 1, "other": 1}')
    stage.dead_letter(Outgoing(body=b"mine"))
    other.send("other", [Outgoing(body=b"theirs")])
    (delivery,) = take(other, queue="other")
    assert not other.settle([(delivery, DeadLetter(reason="bad"))])
    stage.put("of unknown origin")
    while stage.broker.stats("q-dlq").visible:
        assert stage.run() == []
    assert bodies(stage.arrived()) == ["mine"]
    assert bodies(take_later(other, queue="other")) == ["theirs"]
    (dead,) = stage.arrived("-dead")
    assert dead.message.body == b"of unknown origin"
    assert "the queue where it failed is not recorded" in str(set_aside_reason(dead.message.attributes))


# --- with a ledger


@pytest.fixture
def recorded(moto: AwsServer, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Return a stage with a database that records replays."""
    with closing(Scene(moto)) as scene:
        monkeypatch.setenv("PENSTOCK_LEDGER", postgresql_url)
        yield make_stage(scene, tmp_path, monkeypatch, fifo=False)


def test_a_dead_letter_recorded_as_sent_is_only_deleted(recorded: Stage) -> None:
    recorded.dead_letter(Outgoing(body=b"once"))
    dlq = recorded.scene.url("q-dlq")
    recorded.scene.raw.set_queue_attributes(QueueUrl=dlq, Attributes={"VisibilityTimeout": "1"})

    def crash(at: Step) -> None:
        if at is Step.REPLAY_MARKED:
            raise RuntimeError("the machine stopped")

    with pytest.raises(RuntimeError):
        recorded.run(probe=crash)
    events: list[Event] = []
    while messages_in(recorded.broker, "q-dlq"):  # in one call: it becomes visible between two
        recorded.run(listen=events.append)
    assert [each.result for each in events if isinstance(each, DeadLetterReplayed)] == ["already_sent"]
    assert bodies(recorded.arrived()) == ["once"]
    assert recorded.waiting() == []


def test_a_recorded_wait_is_drawn_once(recorded: Stage) -> None:
    """This includes a message that SQS moved, which has no time of death."""
    recorded.environment.setenv("BACKOFF_RATE", "100000000")
    recorded.put("moved by SQS")
    raw = recorded.received(1)
    events: list[Event] = []
    for _ in range(2):
        with closing(recorded.function(listen=events.append)) as function:
            assert len(function({"Records": [record(raw[0], recorded.scene.arn("q-dlq"))]})["batchItemFailures"]) == 1
    dlq, second = [each for each in events if isinstance(each, DeadLetterReplayed)]
    assert (dlq.result, second.result, dlq.due_at) == ("waiting", "waiting", second.due_at)


# --- permissions


ACTIONS = {
    "change_message_visibility_batch": "sqs:ChangeMessageVisibility",
    "delete_message_batch": "sqs:DeleteMessage",
    "get_queue_attributes": "sqs:GetQueueAttributes",
    "get_queue_url": "sqs:GetQueueUrl",
    "send_message_batch": "sqs:SendMessage",
}


def rights() -> set[tuple[str, str]]:
    """Return actions and queues of the function's role in its template."""
    template, _ = decode(str(TEMPLATE))
    (policy,) = template["Resources"]["Role"]["Properties"]["Policies"]
    found: set[tuple[str, str]] = set()
    for one in policy["PolicyDocument"]["Statement"]:
        actions = one["Action"] if isinstance(one["Action"], list) else [one["Action"]]
        resources = one["Resource"] if isinstance(one["Resource"], list) else [one["Resource"]]
        arns = [each["Fn::Sub"][0] for each in resources if "Fn::Sub" in each]
        queues = [arn.rpartition(":")[2].replace("${QueueName}", "q").replace("${End}", "") for arn in arns]
        found |= {(action, queue) for action in actions for queue in queues}
    return found


def test_the_permissions_of_the_templates_role_suffice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.dead_letter(Outgoing(body=b"poison"), reject=True)
    stage.dead_letter(Outgoing(body=b"due"))
    allowed, refused = rights(), set[tuple[str, str]]()
    call = SqsApi.call

    def request(self: SqsApi, operation: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
        wanted = (ACTIONS[operation], str(parameters.get("QueueUrl", parameters.get("QueueName"))).rpartition("/")[2])
        if wanted in allowed:
            return call(self, operation, queue=queue, **parameters)
        refused.add(wanted)
        raise ConfigurationError(f"refused: {wanted}")

    with closing(stage.function()) as function:
        mapping = stage.mapping(function)
        while stage.broker.stats("q-dlq").visible:
            with monkeypatch.context() as patch:
                patch.setattr(SqsApi, "call", request)
                assert mapping.run() == []
    assert bodies(stage.arrived()) == ["due"]
    assert bodies(stage.arrived("-dead")) == ["poison"]
    assert refused <= {("sqs:GetQueueAttributes", "q-dead")}  # the size limit of the final DLQ is then unknown


# --- FIFO


@pytest.fixture
def fifo(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return make_stage(scene, tmp_path, monkeypatch, fifo=True)


def death_attributes(at: float) -> Attributes:
    death = Death(
        reason="bad", attempts=1, last_failed_at=at, worker="w", queue="q.fifo", message_id="m", enqueued_at=at
    )
    return with_death({}, death)


def test_nothing_overtakes_a_waiting_message_of_its_fifo_group(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On moto, which delivers several messages of a group together, as AWS does."""
    with closing(Scene(moto)) as scene:
        assert_nothing_overtakes(make_stage(scene, tmp_path, monkeypatch, fifo=True))


def assert_nothing_overtakes(fifo: Stage) -> None:
    fifo.environment.setenv("BACKOFF_RATE", "345600")
    long_ago, just_now = 1.0, time.time()
    dead_letters = [("a1", long_ago), ("a2", just_now), ("b1", long_ago), ("a3", long_ago), ("b2", long_ago)]
    ids = {
        body: fifo.broker.send(
            "q-dlq.fifo",
            [Outgoing(body=body.encode(), group=body[0], attributes=death_attributes(at), deduplication_id=body)],
        )[0]
        for body, at in dead_letters
    }
    result = fifo.call(fifo.received(5))
    assert result == [ids["a2"], ids["a3"]]
    received = fifo.drained()
    assert [body for body in received if body.startswith("a")] == ["a1"]
    assert [body for body in received if body.startswith("b")] == ["b1", "b2"]


def test_dead_letters_of_a_fifo_queue_are_replayed_in_order(fifo: Stage) -> None:
    fifo.dead_letter(*(Outgoing(body=f"a{n}".encode(), group="a") for n in range(3)))
    while fifo.broker.stats("q-dlq.fifo").visible:
        assert fifo.run() == []
    assert fifo.drained() == ["a0", "a1", "a2"]

"""The function that replays, at an event source mapping that is acted out over a real server."""

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
ARRIVAL_SECONDS = 30.0  # a bound; what has to arrive does so within a second or two


@dataclass
class Stage:
    """A queue, both DLQs, and a function that the DLQ invokes."""

    scene: Scene
    environment: pytest.MonkeyPatch
    broker: SqsBroker
    fifo: bool = False

    def name(self, suffix: str = "") -> str:
        return f"q{suffix}" + (".fifo" if self.fifo else "")

    def function(self, *, probe: Probe = no_probe, listen: Callable[[Event], None] = lambda _: None) -> ReplayFunction:
        return ReplayFunction(probe=probe, listeners=[listen])

    def mapping(self, function: ReplayFunction) -> SourceMapping:
        first = self.name("-dlq")
        return SourceMapping(self.scene.raw, self.scene.url(first), self.scene.arn(first), function)

    def run(self, **options: Any) -> list[str]:
        with closing(self.function(**options)) as function:
            return list(self.mapping(function).run())

    def bury(self, *messages: Outgoing, reject: bool = False) -> None:
        """Let Penstock's own worker make dead letters of these."""
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
        asked = {"QueueUrl": self.scene.url(self.name("-dlq")), "MaxNumberOfMessages": 10}
        names = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        raw: list[Mapping[str, Any]] = self.scene.raw.receive_message(**asked, **names)["Messages"]
        assert len(raw) == count
        return raw

    def call(self, raw: Sequence[Mapping[str, Any]]) -> list[str]:
        arn = self.scene.arn(self.name("-dlq"))
        with closing(self.function()) as function:
            told = function({"Records": [record(each, arn) for each in raw]})
        return [each["itemIdentifier"] for each in told["batchItemFailures"]]

    def drained(self) -> list[str]:
        """All that waits in the queue, one after the other."""
        came: list[str] = []
        while deliveries := self.waiting():
            came += bodies(deliveries)
            assert not self.broker.settle([(each, Ack()) for each in deliveries])
        return came

    def waiting(self, suffix: str = "") -> list[Delivery]:
        """Receive what is visible; nothing is a result."""
        return take_later(self.broker, queue=self.name(suffix), seconds=1.0)

    def arrived(self, suffix: str = "") -> list[Delivery]:
        """Receive what has to arrive, perhaps after a delay."""
        return take_later(self.broker, queue=self.name(suffix), seconds=ARRIVAL_SECONDS)


@pytest.fixture
def stage(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return made(scene, tmp_path, monkeypatch, fifo=False)


def made(scene: Scene, folder: Path, environment: pytest.MonkeyPatch, *, fifo: bool) -> Stage:
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


def test_a_dead_letter_is_imported_unchanged(stage: Stage) -> None:
    attributes: Attributes = {f"a{n}": b"\x00\xff" if n % 2 else f"v{n}" for n in range(9)}
    stage.bury(Outgoing(body=b"\x00raw", attributes=attributes, group="tenant"))
    heard: list[Event] = []
    assert stage.run(listen=heard.append) == []
    (again,) = stage.arrived()
    assert (again.message.body, again.message.group) == (b"\x00raw", "tenant")
    kept = {name: value for name, value in again.message.attributes.items() if name in attributes}
    assert kept == attributes
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"
    assert DEATH_ATTRIBUTE not in again.message.attributes
    assert [death.reason for death in earlier_deaths_of(again.message.attributes)] == ["bad"]
    assert stage.waiting("-dlq") == stage.waiting("-dead") == []
    (told,) = [each for each in heard if isinstance(each, DeadLetterReplayed)]
    assert (told.result, told.queue, told.dead_letter_queue, told.count) == ("sent", "q", "q-dlq", 1)
    assert told.replay_id == again.message.attributes[REPLAY_ID_ATTRIBUTE]


def test_a_message_that_always_fails_comes_back_three_times_and_goes_to_the_final_dlq(stage: Stage) -> None:
    stage.broker.send("q", [Outgoing(body=b"bad")])
    came = 0
    while deliveries := stage.waiting():
        came += len(deliveries)
        assert not stage.broker.settle([(each, DeadLetter(reason="always")) for each in deliveries])
        stage.run()
    assert came == 4
    (dead,) = stage.arrived("-dead")
    assert set_aside_reason(dead.message.attributes) == "replayed 3 times, and dead again"
    death = death_of(dead.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("always", "q")
    assert stage.waiting("-dlq") == []


def test_poison_goes_to_the_final_dlq_at_once(stage: Stage) -> None:
    stage.bury(Outgoing(body=b"bad"), reject=True)
    assert stage.run() == []
    (dead,) = stage.arrived("-dead")
    assert set_aside_reason(dead.message.attributes) == "another attempt cannot help: bad"
    assert stage.waiting() == stage.waiting("-dlq") == []


def test_messages_and_settings_of_the_aws_sample_are_understood(stage: Stage) -> None:
    stage.environment.setenv("MAX_ATTEMPS", "2")
    stage.put("third", {COUNTER_ATTRIBUTE: {"DataType": "Number", "StringValue": "2"}})
    stage.put("second", {COUNTER_ATTRIBUTE: {"DataType": "Number", "StringValue": "1"}})
    while stage.broker.stats("q-dlq").visible:
        assert stage.run() == []
    (again,) = stage.arrived()
    assert (again.message.body, again.message.attributes[COUNTER_ATTRIBUTE]) == (b"second", "2")
    assert bodies(stage.arrived("-dead")) == ["third"]


def test_a_dead_letter_that_waits_longer_than_a_queue_delays_is_hidden_and_named(stage: Stage) -> None:
    stage.environment.setenv("BACKOFF_RATE", "100000000")
    stage.bury(Outgoing(body=b"later"))
    heard: list[Event] = []
    (stays,) = stage.run(listen=heard.append)
    (told,) = [each for each in heard if isinstance(each, DeadLetterReplayed)]
    assert (told.result, told.message_id) == ("waiting", stays)
    assert stage.waiting() == stage.waiting("-dlq") == []
    stats = stage.broker.stats("q-dlq")
    assert (stats.visible, stats.in_flight) == (0, 1)


def test_without_a_death_the_queue_keeps_the_wait_as_a_delay(stage: Stage) -> None:
    stage.environment.setenv("BACKOFF_RATE", "100000000")
    stage.put("moved by SQS")
    assert stage.run() == []
    stats = stage.broker.stats("q")
    assert (stats.visible, stats.delayed) == (0, 1)
    assert stage.waiting("-dlq") == []


@pytest.mark.parametrize("step", [Step.REPLAY_INTENDED, Step.REPLAY_SENT, Step.REPLAY_MARKED])
def test_a_crash_at_any_step_loses_nothing_and_doubles_once(stage: Stage, step: Step) -> None:
    stage.bury(*(Outgoing(body=f"m{n}".encode()) for n in range(3)))

    def crash(at: Step) -> None:
        if at is step:
            raise RuntimeError("the machine is gone")

    first = stage.name("-dlq")
    stage.scene.raw.set_queue_attributes(QueueUrl=stage.scene.url(first), Attributes={"VisibilityTimeout": "1"})
    with pytest.raises(RuntimeError):
        stage.run(probe=crash)
    came = bodies(stage.waiting())
    left = stage.broker.stats(first)
    while left.visible or left.in_flight:
        stage.run()
        left = stage.broker.stats(first)
    came += bodies(stage.waiting())
    assert set(came) == {"m0", "m1", "m2"}
    assert all(came.count(body) <= 2 for body in set(came))
    assert len(came) == (3 if step is Step.REPLAY_INTENDED else 6)


def test_unsettled_replays_are_sent_anyway_and_no_dead_letter_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.bury(Outgoing(body=b"a"))
    stage.bury(Outgoing(body=b"p"), reject=True)

    def away(self: SqsBroker, settlements: object) -> None:
        raise TemporaryError("SQS is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqsBroker, "settle", away)
        stays: list[str] = []
        while stage.broker.stats("q-dlq").visible:
            stays += stage.run()
    assert len(stays) == 1  # the poison; of the other one Lambda itself deletes the letter
    assert bodies(stage.arrived()) == ["a"]
    assert stage.broker.stats("q-dlq").in_flight == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines].count("settlement.failed") == 2


def test_several_queues_with_one_dlq_each_get_their_own_dead_letters_back(stage: Stage) -> None:
    other = stage.scene.broker(QueueSettings(name="other", dead_letter_queue="q-dlq", receives_max=3))
    stage.environment.delenv("SQS_MAIN_URL")
    stage.environment.setenv("PENSTOCK_WORKER_QUEUES", '{"q": 1, "other": 1}')
    stage.bury(Outgoing(body=b"mine"))
    other.send("other", [Outgoing(body=b"theirs")])
    (delivery,) = take(other, queue="other")
    assert not other.settle([(delivery, DeadLetter(reason="bad"))])
    stage.put("nobody knows whose")
    while stage.broker.stats("q-dlq").visible:
        assert stage.run() == []
    assert bodies(stage.arrived()) == ["mine"]
    assert bodies(take_later(other, queue="other")) == ["theirs"]
    (dead,) = stage.arrived("-dead")
    assert dead.message.body == b"nobody knows whose"
    assert "nothing says which queue it died in" in str(set_aside_reason(dead.message.attributes))


# --- with a record


@pytest.fixture
def recorded(moto: AwsServer, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The same with a database that remembers replays."""
    with closing(Scene(moto)) as scene:
        monkeypatch.setenv("PENSTOCK_LEDGER", postgresql_url)
        yield made(scene, tmp_path, monkeypatch, fifo=False)


def test_what_is_on_record_as_sent_is_only_deleted(recorded: Stage) -> None:
    recorded.bury(Outgoing(body=b"once"))
    first = recorded.scene.url("q-dlq")
    recorded.scene.raw.set_queue_attributes(QueueUrl=first, Attributes={"VisibilityTimeout": "1"})

    def crash(at: Step) -> None:
        if at is Step.REPLAY_MARKED:
            raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError):
        recorded.run(probe=crash)
    heard: list[Event] = []
    while messages_in(recorded.broker, "q-dlq"):  # in one look: it becomes visible between two
        recorded.run(listen=heard.append)
    assert [each.result for each in heard if isinstance(each, DeadLetterReplayed)] == ["already_sent"]
    assert bodies(recorded.arrived()) == ["once"]
    assert recorded.waiting() == []


def test_a_wait_on_record_is_as_long_as_it_was_drawn_and_drawn_once(recorded: Stage) -> None:
    """Also of a letter that SQS moved, which by itself tells nothing."""
    recorded.environment.setenv("BACKOFF_RATE", "100000000")
    recorded.put("moved by SQS")
    raw = recorded.received(1)
    heard: list[Event] = []
    for _ in range(2):
        with closing(recorded.function(listen=heard.append)) as function:
            assert len(function({"Records": [record(raw[0], recorded.scene.arn("q-dlq"))]})["batchItemFailures"]) == 1
    first, second = [each for each in heard if isinstance(each, DeadLetterReplayed)]
    assert (first.result, second.result, first.due_at) == ("waiting", "waiting", second.due_at)


# --- rights


ACTIONS = {
    "change_message_visibility_batch": "sqs:ChangeMessageVisibility",
    "delete_message_batch": "sqs:DeleteMessage",
    "get_queue_attributes": "sqs:GetQueueAttributes",
    "get_queue_url": "sqs:GetQueueUrl",
    "send_message_batch": "sqs:SendMessage",
}


def rights() -> set[tuple[str, str]]:
    """Actions and queues of the function's role, as its template says."""
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


def test_the_role_of_the_template_suffices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.bury(Outgoing(body=b"poison"), reject=True)
    stage.bury(Outgoing(body=b"due"))
    allowed, refused = rights(), set[tuple[str, str]]()
    ask = SqsApi.call

    def asked(self: SqsApi, operation: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
        wanted = (ACTIONS[operation], str(parameters.get("QueueUrl", parameters.get("QueueName"))).rpartition("/")[2])
        if wanted in allowed:
            return ask(self, operation, queue=queue, **parameters)
        refused.add(wanted)
        raise ConfigurationError(f"refused: {wanted}")

    with closing(stage.function()) as function:
        mapping = stage.mapping(function)
        while stage.broker.stats("q-dlq").visible:
            with monkeypatch.context() as patch:
                patch.setattr(SqsApi, "call", asked)
                assert mapping.run() == []
    assert bodies(stage.arrived()) == ["due"]
    assert bodies(stage.arrived("-dead")) == ["poison"]
    assert refused <= {("sqs:GetQueueAttributes", "q-dead")}  # how large a letter may be there is then not known


# --- FIFO


@pytest.fixture
def fifo(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return made(scene, tmp_path, monkeypatch, fifo=True)


def died(at: float) -> Attributes:
    death = Death(
        reason="bad", attempts=1, last_failed_at=at, worker="w", queue="q.fifo", message_id="m", enqueued_at=at
    )
    return with_death({}, death)


def test_nothing_overtakes_a_waiting_message_of_its_fifo_group(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On moto, which hands several of a group over together, as AWS does."""
    with closing(Scene(moto)) as scene:
        _nothing_overtakes(made(scene, tmp_path, monkeypatch, fifo=True))


def _nothing_overtakes(fifo: Stage) -> None:
    fifo.environment.setenv("BACKOFF_RATE", "345600")
    long_ago, just_now = 1.0, time.time()
    letters = [("a1", long_ago), ("a2", just_now), ("b1", long_ago), ("a3", long_ago), ("b2", long_ago)]
    ids = {
        body: fifo.broker.send(
            "q-dlq.fifo", [Outgoing(body=body.encode(), group=body[0], attributes=died(at), deduplication_id=body)]
        )[0]
        for body, at in letters
    }
    told = fifo.call(fifo.received(5))
    assert told == [ids["a2"], ids["a3"]]
    came = fifo.drained()
    assert [body for body in came if body.startswith("a")] == ["a1"]
    assert [body for body in came if body.startswith("b")] == ["b1", "b2"]


def test_a_fifo_queues_dead_letters_come_back_in_order(fifo: Stage) -> None:
    fifo.bury(*(Outgoing(body=f"a{n}".encode(), group="a") for n in range(3)))
    while fifo.broker.stats("q-dlq.fifo").visible:
        assert fifo.run() == []
    assert fifo.drained() == ["a0", "a1", "a2"]

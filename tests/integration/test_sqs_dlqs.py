"""Queues in a chain on SQS: the receive count stays with a message, and affects the DLQ and the final DLQ.

Both servers carry the count from queue to queue, as AWS documents it ("received across all queues"), and move messages
with too many receives at the next receive. Neither has move tasks: a redrive is simulated as AWS describes it, by a new
message with the same body and attributes, and deletion of the old one.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.sqs_scene import Scene, bodies, outgoing, scene, take, take_later
from tests.unit.pipeline.objects.scene import QUEUE, run
from tests.unit.pipeline.objects.scene import Scene as ObjectScene

from penstock.brokers.sqs import SqsBroker
from penstock.brokers.sqs.facts import inspecting
from penstock.dead_letters.policy import ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.dead_letters.replayer import ReplayContext, ReplayHandler, ReplayLogCleanup
from penstock.errors import Reject
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.broker import QueueSettings
from penstock.messaging.clock import SystemClock
from penstock.messaging.death import DEATH_ATTRIBUTE, death_of, set_aside_reason
from penstock.messaging.replay import COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE, NoLog
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.notification import announce
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.sqs import check_dlq
from penstock.pipeline.objects.stream import IncomingObject

__all__ = ["scene"]

RECEIVES_MAX = 3
AT_ONCE_SECONDS = 1e-6  # a base so short that every wait is over


def chained(scene: Scene, *, dlq_receives: int, receives: int = RECEIVES_MAX, name: str = "q") -> SqsBroker:
    """Create a queue, its DLQ and its final DLQ, each with a redrive policy to the next."""
    return scene.broker(
        QueueSettings(
            name=name, dead_letter_queue=f"{name}-dlq", receives_max=receives, retention_seconds=4 * 86_400.0
        ),
        QueueSettings(name=f"{name}-dlq", dead_letter_queue=f"{name}-dead", receives_max=dlq_receives),
        QueueSettings(name=f"{name}-dead"),
    )


def wear_out(broker: SqsBroker) -> None:
    """Receive a message as often as SQS allows; then SQS itself moves it."""
    for _ in range(RECEIVES_MAX):
        (delivery,) = take_later(broker)
        assert not broker.settle([(delivery, Release())])
    assert take(broker) == []


def replayer(broker: SqsBroker, *, replays_max: int = 3) -> ReplayHandler:
    clock = SystemClock()
    policy = ReplayPolicy(replays_max=replays_max, base_seconds=AT_ONCE_SECONDS)
    context = ReplayContext(
        sources=ReplayTargets([ReplayTarget(queue="q", policy=policy)]),
        retention_seconds=broker.retention_seconds("q-dlq"),
        broker=broker,
        log=NoLog(),
        bus=Bus(),
        clock=clock,
        random=lambda: 0.5,
    )
    return ReplayHandler(context, ReplayLogCleanup(lambda _: 0, clock=clock, random=lambda: 0.5))


def replay(broker: SqsBroker, *, replays_max: int = 3) -> int:
    """Replay all messages of the DLQ as a worker does; return their number."""
    dead_letters = take(broker, queue="q-dlq")
    decisions = replayer(broker, replays_max=replays_max).begin(dead_letters).run()
    assert not broker.settle([(dead_letter, decisions[dead_letter.receipt]) for dead_letter in dead_letters])
    return len(dead_letters)


def test_a_message_moved_to_the_dlq_by_sqs_is_replayed(scene: Scene) -> None:
    broker = chained(scene, dlq_receives=1_000)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    assert replay(broker) == 1
    (again,) = take_later(broker)  # SQS counts delays in whole seconds
    assert (bodies([again]), again.attempt) == (["worn"], 1)
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"
    assert len(str(again.message.attributes[REPLAY_ID_ATTRIBUTE])) == 32
    assert take(broker, queue="q-dlq") == take(broker, queue="q-dead") == []


def test_a_message_is_replayed_up_to_the_maximum_and_then_moved_to_the_final_dlq(scene: Scene) -> None:
    broker = chained(scene, dlq_receives=1_000)
    broker.send("q", outgoing("worn"))
    for _ in range(2):
        wear_out(broker)
        assert replay(broker, replays_max=2) == 1
    wear_out(broker)
    assert replay(broker, replays_max=2) == 1
    assert take(broker) == take(broker, queue="q-dlq") == []
    (dead,) = take(broker, queue="q-dead")
    assert set_aside_reason(dead.message.attributes) == "replayed 2 times, and failed again"


def test_a_dead_letter_survives_many_reads_in_the_dlq(scene: Scene) -> None:
    broker = chained(scene, dlq_receives=1_000)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    for _ in range(30):
        (dead_letter,) = take(broker, queue="q-dlq")
        assert not broker.settle([(dead_letter, Release(uncounted=True))])
    assert replay(broker) == 1
    assert bodies(take_later(broker)) == ["worn"]


def test_a_dlq_with_the_queues_own_receive_limit_is_skipped(scene: Scene) -> None:
    broker = chained(scene, dlq_receives=RECEIVES_MAX)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    assert replay(broker) == 0  # the first receive moves it on
    assert take(broker) == []
    assert bodies(take(broker, queue="q-dead")) == ["worn"]


@pytest.mark.parametrize(
    ("receives", "level", "words"),
    [
        (20, FindingLevel.WARNING, "the first receive moves it on"),
        (30, FindingLevel.WARNING, "only 10 receives are left"),
        (1_000, FindingLevel.OK, "after 20 receives"),
    ],
)
def test_doctor_reports_a_low_receive_limit_of_a_dlq(
    scene: Scene, receives: int, level: FindingLevel, words: str
) -> None:
    chained(scene, receives=20, dlq_receives=receives)
    with inspecting(scene.server.aws, clock=SystemClock()) as inspection:
        found = check_dlq(inspection.queue("q"), inspection.dead_letters("q"), attempts_max=4)
    assert (found[0], words in found[1]) == (level, True), found


def test_messages_dead_lettered_by_penstock_are_not_skipped(scene: Scene) -> None:
    """Penstock sends the dead letter, so its count starts anew: only messages moved by SQS are affected."""
    broker = chained(scene, dlq_receives=RECEIVES_MAX)
    broker.send("q", outgoing("poison"))
    (delivery,) = take(broker)
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert replay(broker) == 1
    assert bodies(take_later(broker)) == ["poison"]


# --- a failed object


@pytest.fixture
def objects(scene: Scene, tmp_path: Path) -> Iterator[ObjectScene]:
    """Create a handler of objects whose queue is on SQS, and whose ledger uses the machine's time, as SQS does."""
    opened = ObjectScene(tmp_path)
    opened.close()
    opened.broker = chained(scene, dlq_receives=1_000, name=QUEUE)  # type: ignore[assignment]
    opened.ledger = Ledger.open(tmp_path / "shared.db", now=time.time)
    yield opened
    opened.ledger.close()


def rejecting(obj: IncomingObject) -> None:
    raise Reject("no")


def redrive(scene: Scene, source: str, destination: str) -> None:
    """Move messages as AWS's console and its move tasks do: same body and attributes, new id and age."""
    request = {"QueueUrl": scene.url(source), "MessageAttributeNames": ["All"]}
    for raw in scene.raw.receive_message(**request).get("Messages", []):
        attributes = raw.get("MessageAttributes", {})
        scene.raw.send_message(QueueUrl=scene.url(destination), MessageBody=raw["Body"], MessageAttributes=attributes)
        scene.raw.delete_message(QueueUrl=scene.url(source), ReceiptHandle=raw["ReceiptHandle"])


@pytest.mark.parametrize("suffix", ["dlq", "dead"])
def test_a_console_redrive_of_a_failed_objects_message_revives_it(
    scene: Scene, objects: ObjectScene, suffix: str
) -> None:
    ref = objects.put("a")
    first_id = objects.send(announce(ref))
    (end,) = objects.serve(objects.handler(rejecting))
    assert isinstance(end, DeadLetter)
    assert objects.state(ref) is ObjectState.DEAD
    if suffix == "dead":
        redrive(scene, f"{QUEUE}-dlq", f"{QUEUE}-dead")
    redrive(scene, f"{QUEUE}-{suffix}", QUEUE)
    (again,) = objects.receive()
    assert again.message.id != first_id
    assert DEATH_ATTRIBUTE in again.message.attributes  # not removed
    assert REPLAY_ID_ATTRIBUTE not in again.message.attributes
    decisions = run(objects.handler(lambda obj: None).begin([again]))
    assert objects.settle([(again, decisions)]) == [Ack()]
    assert objects.state(ref) is ObjectState.PROCESSED
    assert objects.receive() == []


def test_a_redriven_message_that_fails_again_is_dead_lettered_again(scene: Scene, objects: ObjectScene) -> None:
    ref = objects.put("a")
    objects.send(announce(ref))
    objects.serve(objects.handler(rejecting))
    redrive(scene, f"{QUEUE}-dlq", QUEUE)
    (end,) = objects.serve(objects.handler(rejecting))
    assert isinstance(end, DeadLetter)
    assert objects.state(ref) is ObjectState.DEAD
    (dead_letter,) = objects.broker.receive(f"{QUEUE}-dlq", messages_max=10, lease_seconds=60.0)
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("no", QUEUE)


def test_a_message_sent_before_the_death_revives_nothing(objects: ObjectScene) -> None:
    ref = objects.put("a")
    objects.send(announce(ref))
    objects.send(announce(ref))
    ends = objects.serve(objects.handler(rejecting))
    while len(ends) < 2:
        ends += objects.serve(objects.handler(lambda obj: None))
    assert sorted(type(end).__name__ for end in ends) == ["Ack", "DeadLetter"]
    assert objects.state(ref) is ObjectState.DEAD

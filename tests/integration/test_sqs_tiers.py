"""Queues behind one another on SQS: the count of receives goes with a message, and what that does to two tiers.

Both servers carry the count from queue to queue, as AWS does by its own description ("received across all queues"), and
move at a receive what was received too often. Neither has move tasks: a redrive is acted out as AWS describes it, by a
new message with the same body and attributes, and the old one deleted.
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


def chained(scene: Scene, *, first_tier_receives: int, receives: int = RECEIVES_MAX, name: str = "q") -> SqsBroker:
    """A queue, its DLQ and its final DLQ, each with a redrive policy to the next."""
    return scene.broker(
        QueueSettings(
            name=name, dead_letter_queue=f"{name}-dlq", receives_max=receives, retention_seconds=4 * 86_400.0
        ),
        QueueSettings(name=f"{name}-dlq", dead_letter_queue=f"{name}-dead", receives_max=first_tier_receives),
        QueueSettings(name=f"{name}-dead"),
    )


def wear_out(broker: SqsBroker) -> None:
    """Receive a message as often as SQS lets anybody; then SQS itself moves it."""
    for _ in range(RECEIVES_MAX):
        (delivery,) = take_later(broker)
        assert not broker.settle([(delivery, Release())])
    assert take(broker) == []


def replayer(broker: SqsBroker, *, replays_max: int = 3) -> ReplayHandler:
    clock = SystemClock()
    policy = ReplayPolicy(replays_max=replays_max, base_seconds=AT_ONCE_SECONDS)
    desk = ReplayContext(
        sources=ReplayTargets([ReplayTarget(queue="q", policy=policy)]),
        retention_seconds=broker.retention_seconds("q-dlq"),
        broker=broker,
        log=NoLog(),
        bus=Bus(),
        clock=clock,
        random=lambda: 0.5,
    )
    return ReplayHandler(desk, ReplayLogCleanup(lambda _: 0, clock=clock, random=lambda: 0.5))


def replay(broker: SqsBroker, *, replays_max: int = 3) -> int:
    """Replay all messages of the DLQ as a worker does; return their number."""
    letters = take(broker, queue="q-dlq")
    answer = replayer(broker, replays_max=replays_max).begin(letters).run()
    assert not broker.settle([(letter, answer[letter.receipt]) for letter in letters])
    return len(letters)


def test_what_sqs_itself_moved_lies_in_the_dlq_and_comes_back(scene: Scene) -> None:
    broker = chained(scene, first_tier_receives=1_000)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    assert replay(broker) == 1
    (again,) = take_later(broker)  # SQS counts delays in whole seconds
    assert (bodies([again]), again.attempt) == (["worn"], 1)
    assert again.message.attributes[COUNTER_ATTRIBUTE] == "1"
    assert len(str(again.message.attributes[REPLAY_ID_ATTRIBUTE])) == 32
    assert take(broker, queue="q-dlq") == take(broker, queue="q-dead") == []


def test_it_comes_back_as_often_as_the_policy_says_and_then_lies_in_the_final_dlq(scene: Scene) -> None:
    broker = chained(scene, first_tier_receives=1_000)
    broker.send("q", outgoing("worn"))
    for _ in range(2):
        wear_out(broker)
        assert replay(broker, replays_max=2) == 1
    wear_out(broker)
    assert replay(broker, replays_max=2) == 1
    assert take(broker) == take(broker, queue="q-dlq") == []
    (dead,) = take(broker, queue="q-dead")
    assert set_aside_reason(dead.message.attributes) == "replayed 2 times, and dead again"


def test_a_dead_letter_survives_many_reads_in_the_dlq(scene: Scene) -> None:
    broker = chained(scene, first_tier_receives=1_000)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    for _ in range(30):
        (letter,) = take(broker, queue="q-dlq")
        assert not broker.settle([(letter, Release(uncounted=True))])
    assert replay(broker) == 1
    assert bodies(take_later(broker)) == ["worn"]


def test_the_trap_a_dlq_with_the_queues_own_count_is_skipped(scene: Scene) -> None:
    broker = chained(scene, first_tier_receives=RECEIVES_MAX)
    broker.send("q", outgoing("worn"))
    wear_out(broker)
    assert replay(broker) == 0  # the first receive moves it on
    assert take(broker) == []
    assert bodies(take(broker, queue="q-dead")) == ["worn"]


@pytest.mark.parametrize(
    ("receives", "said", "words"),
    [
        (20, FindingLevel.WARNING, "the first receive moves it on"),
        (30, FindingLevel.WARNING, "only 10 receives are left"),
        (1_000, FindingLevel.OK, "after 20 receives"),
    ],
)
def test_doctor_sees_the_trap(scene: Scene, receives: int, said: FindingLevel, words: str) -> None:
    chained(scene, receives=20, first_tier_receives=receives)
    with inspecting(scene.server.aws, clock=SystemClock()) as look:
        found = check_dlq(look.queue("q"), look.dead_letters("q"), attempts_max=4)
    assert (found[0], words in found[1]) == (said, True), found


def test_what_penstock_buries_is_not_skipped_either_way(scene: Scene) -> None:
    """It is sent, and so begins anew: the trap is for what SQS moves."""
    broker = chained(scene, first_tier_receives=RECEIVES_MAX)
    broker.send("q", outgoing("poison"))
    (delivery,) = take(broker)
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert replay(broker) == 1
    assert bodies(take_later(broker)) == ["poison"]


# --- a dead object


@pytest.fixture
def objects(scene: Scene, tmp_path: Path) -> Iterator[ObjectScene]:
    """A handler of objects whose queue is on SQS, and whose ledger has the machine's own time, as SQS has."""
    made = ObjectScene(tmp_path)
    made.close()
    made.broker = chained(scene, first_tier_receives=1_000, name=QUEUE)  # type: ignore[assignment]
    made.ledger = Ledger.open(tmp_path / "shared.db", now=time.time)
    yield made
    made.ledger.close()


def rejecting(obj: IncomingObject) -> None:
    raise Reject("no")


def redrive(scene: Scene, source: str, destination: str) -> None:
    """As AWS's console and its move tasks do it: body and attributes as they are, id and age new."""
    asked = {"QueueUrl": scene.url(source), "MessageAttributeNames": ["All"]}
    for raw in scene.raw.receive_message(**asked).get("Messages", []):
        attributes = raw.get("MessageAttributes", {})
        scene.raw.send_message(QueueUrl=scene.url(destination), MessageBody=raw["Body"], MessageAttributes=attributes)
        scene.raw.delete_message(QueueUrl=scene.url(source), ReceiptHandle=raw["ReceiptHandle"])


@pytest.mark.parametrize("tier", ["dlq", "dead"])
def test_a_console_redrive_of_a_dead_objects_message_revives_it(scene: Scene, objects: ObjectScene, tier: str) -> None:
    ref = objects.put("a")
    first_id = objects.send(announce(ref))
    (end,) = objects.serve(objects.handler(rejecting))
    assert isinstance(end, DeadLetter)
    assert objects.state(ref) is ObjectState.DEAD
    if tier == "dead":
        redrive(scene, f"{QUEUE}-dlq", f"{QUEUE}-dead")
    redrive(scene, f"{QUEUE}-{tier}", QUEUE)
    (again,) = objects.receive()
    assert again.message.id != first_id
    assert DEATH_ATTRIBUTE in again.message.attributes  # nobody took it off
    assert REPLAY_ID_ATTRIBUTE not in again.message.attributes
    answer = run(objects.handler(lambda obj: None).begin([again]))
    assert objects.settle([(again, answer)]) == [Ack()]
    assert objects.state(ref) is ObjectState.PROCESSED
    assert objects.receive() == []


def test_a_redriven_message_that_fails_again_is_a_dead_letter_again(scene: Scene, objects: ObjectScene) -> None:
    ref = objects.put("a")
    objects.send(announce(ref))
    objects.serve(objects.handler(rejecting))
    redrive(scene, f"{QUEUE}-dlq", QUEUE)
    (end,) = objects.serve(objects.handler(rejecting))
    assert isinstance(end, DeadLetter)
    assert objects.state(ref) is ObjectState.DEAD
    (letter,) = objects.broker.receive(f"{QUEUE}-dlq", messages_max=10, lease_seconds=60.0)
    death = death_of(letter.message.attributes)
    assert death is not None
    assert (death.reason, death.queue) == ("no", QUEUE)


def test_what_was_sent_before_the_death_revives_nothing(objects: ObjectScene) -> None:
    ref = objects.put("a")
    objects.send(announce(ref))
    objects.send(announce(ref))
    ends = objects.serve(objects.handler(rejecting))
    while len(ends) < 2:
        ends += objects.serve(objects.handler(lambda obj: None))
    assert sorted(type(end).__name__ for end in ends) == ["Ack", "DeadLetter"]
    assert objects.state(ref) is ObjectState.DEAD

"""The rows of INPUTS about replays of many dead letters, or about a worker: 62, 80 and 82.

`tests.conformance.replay` covers rows 62, 79 and 81 to 83 for single dead letters on every broker.

Waits are tested against the uniform distribution (Kolmogorov-Smirnov). With random ids, the bound would be exceeded by
chance once in a million.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conformance.broker_harnesses import MemoryHarness
from tests.conformance.replay.scene import DIED, DLQ, FINAL_DLQ, QUEUE, TIERS, Scene

from penstock import App
from penstock.app.serving import serve
from penstock.config import Settings
from penstock.dead_letters.policy import ReplayPolicy, plan_replay
from penstock.events import DeadLetterReplayed, Event
from penstock.messaging.death import death_of, earlier_deaths_of, set_aside_reason
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE, NoLog, Replay
from penstock.worker.shutdown import StopSignal

DAY_SECONDS = 86_400.0
CHANCE = 1e-6


def distance(shares: Sequence[float]) -> float:
    """Return the largest distance between the distribution of shares and the uniform distribution over [0, 1]."""
    count = len(shares)
    return max(max((place + 1) / count - share, share - place / count) for place, share in enumerate(sorted(shares)))


def bound(count: int) -> float:
    """Return the distance that ``count`` uniform draws exceed with the probability `CHANCE`."""
    return math.sqrt(-math.log(CHANCE / 2) / (2 * count))


def wait_seconds(number: int, so_far: int, policy: ReplayPolicy) -> float:
    dead_letter = Message(
        id=f"message {number}", body=b"", enqueued_at=0.0, attributes={COUNTER_ATTRIBUTE: str(so_far)}
    )
    replay = plan_replay(
        dead_letter,
        dead_letter_queue=DLQ,
        queue=QUEUE,
        policy=policy,
        retention_seconds=14 * DAY_SECONDS,
        dlq_retention_seconds=14 * DAY_SECONDS,
        now=0.0,
    )
    assert isinstance(replay, Replay)
    return replay.due_at


@pytest.mark.parametrize("so_far", range(12))
def test_row_80_10000_waits_are_uniform_below_their_ceiling_and_none_piles_up_at_the_cap(so_far: int) -> None:
    policy = ReplayPolicy(replays_max=20, base_seconds=2.0, cap_seconds=900.0)
    ceiling_seconds = min(900.0, 2.0 * 2.0**so_far)
    shares = [wait_seconds(number, so_far, policy) / ceiling_seconds for number in range(10_000)]
    assert distance(shares) < bound(10_000)
    (_, most), *_ = Counter(math.floor(share * ceiling_seconds) for share in shares).most_common(1)
    expected = 10_000 / max(ceiling_seconds, 1.0)
    assert most <= expected + 6 * math.sqrt(expected) + 1, "too many of them in one second"


def test_row_80_waits_limited_by_the_retention_are_uniform_too() -> None:
    policy = ReplayPolicy(base_seconds=100 * DAY_SECONDS)
    days = [wait_seconds(number, 0, policy) / DAY_SECONDS for number in range(10_000)]
    assert max(days) < 0.9 * 14
    assert distance([each / (0.9 * 14) for each in days]) < bound(10_000)


def test_row_80_and_82_messages_that_always_fail_wait_uniformly_and_end_in_the_final_dlq_once() -> None:
    stand = MemoryHarness()
    scene = Scene(harness=stand, broker=stand.broker(queues=TIERS), log=NoLog())
    handler, count = scene.handler(ReplayPolicy(replays_max=3, base_seconds=2.0, cap_seconds=6.0)), 500
    scene.broker.send(QUEUE, [Outgoing(body=b"%d" % number) for number in range(count)])
    for ceiling_seconds in (2.0, 4.0, 6.0):
        assert fail_all(scene) == count
        scene.events.clear()
        while scene.run_once(handler):
            pass
        waits = [event.due_at - stand.clock.now() for event in scene.replayed() if event.due_at is not None]
        assert scene.results() == ["sent"] * count
        assert distance([wait / ceiling_seconds for wait in waits]) < bound(count)
        stand.advance(ceiling_seconds)
    assert fail_all(scene) == count
    while scene.run_once(handler):
        pass
    stand.advance(DAY_SECONDS)
    assert (len(scene.receive(QUEUE)), len(scene.receive(DLQ))) == (0, 0)
    dead_letters = [dead_letter for page in iter(lambda: scene.take(FINAL_DLQ), []) for dead_letter in page]
    assert Counter(dead_letter.message.body for dead_letter in dead_letters) == {
        b"%d" % number: 1 for number in range(count)
    }
    assert {len(earlier_deaths_of(dead_letter.message.attributes)) for dead_letter in dead_letters} == {3}


def fail_all(scene: Scene) -> int:
    """Let all messages of the queue fail, and return their number."""
    count = 0
    while deliveries := scene.receive(QUEUE):
        scene.settle({delivery.receipt: DIED for delivery in deliveries}, deliveries)
        count += len(deliveries)
    return count


class StopWhenSetAside:
    """A listener that stops its worker when a dead letter is set aside."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.replayed: list[DeadLetterReplayed] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, DeadLetterReplayed):
            self.replayed.append(event)
            if event.result == "set_aside":
                self.stop.request()


def test_rows_62_and_82_a_worker_with_replay_replays_and_sets_aside(tmp_path: Path) -> None:
    settings = Settings.model_construct(
        broker=f"sqlite:///{tmp_path}/queue.db",
        ledger=f"sqlite:///{tmp_path}/ledger.db",
        data_dir=str(tmp_path),
        dead_letters_replay=True,
        dead_letters_max_replays=2,
        dead_letters_replay_base=1e-9,
    )
    until, seen = StopWhenSetAside(), list[str | bytes | None]()
    attributes: dict[str, str | bytes] = {"binary": b"\x00\xff", COUNTER_ATTRIBUTE: "-7"}
    with App(settings=settings) as app:

        @app.handler("q", max_attempts=1)
        def fail(message: Message) -> None:
            seen.append(message.attributes.get(COUNTER_ATTRIBUTE))
            raise ValueError("no")

        app.broker.send(QUEUE, [Outgoing(body=b"\x00body", attributes=attributes, group="g")])
        serve(app, stop=until.stop, listeners=[until])
        assert seen == ["-7", "1", "2"]
        assert [event.result for event in until.replayed] == ["sent", "sent", "set_aside"]
        (dead_letter,) = app.broker.receive(FINAL_DLQ, messages_max=9, lease_seconds=60)
    assert (dead_letter.message.body, dead_letter.message.group) == (b"\x00body", "g")
    assert dead_letter.message.attributes["binary"] == b"\x00\xff"
    assert set_aside_reason(dead_letter.message.attributes) == "replayed 2 times, and failed again"
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    assert death.exception == "ValueError: no"
    assert len(earlier_deaths_of(dead_letter.message.attributes)) == 2

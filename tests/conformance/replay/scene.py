"""A queue, its two tiers, and replayers that look at the first one a step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.conformance.broker_stands import LEASE, Stand

from penstock.dead_letters.policy import ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.dead_letters.replayer import ReplayContext, ReplayHandler, ReplayLogCleanup
from penstock.events import Bus, DeadLetterReplayed, Event
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Outgoing
from penstock.messaging.replay import Replay, ReplayLog, dead_letter_replay_id
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.steps import Probe, Step, no_probe

QUEUE, FIRST, SECOND = "q", "q-dlq", "q-dead"
DIED = DeadLetter(reason="it failed", exception="ValueError: no", fingerprint="f00d", handler="shop.work")
AT_ONCE = ReplayPolicy(base_seconds=1e-9)  # waits that no broker can tell from none
TIERS = (QueueSettings(name=QUEUE), QueueSettings(name=FIRST))


class Crash(BaseException):
    """The process ends here."""


def crash_at(step: Step) -> Probe:
    """A probe at which a replayer dies."""

    def probe(reached: Step) -> None:
        if reached is step:
            raise Crash(step)

    return probe


@dataclass(kw_only=True)
class Scene:
    """``now`` is the stand's; time goes on only where a test says so."""

    stand: Stand
    broker: Broker
    log: ReplayLog
    events: list[Event] = field(default_factory=list)

    def die(
        self,
        *bodies: bytes,
        attributes: Attributes = NO_ATTRIBUTES,
        group: str | None = None,
        death: DeadLetter = DIED,
    ) -> None:
        """Let messages be sent to the queue and die there."""
        messages = [Outgoing(body=body, attributes=attributes, group=group) for body in bodies]
        self.broker.send(QUEUE, messages)
        self.fail(len(bodies), death)

    def fail(self, count: int = 1, death: DeadLetter = DIED) -> None:
        """Let as many messages of the queue as are visible, and expected, die."""
        deliveries = self.receive(QUEUE)
        assert len(deliveries) == count
        self.settle({delivery.receipt: death for delivery in deliveries}, deliveries)

    def handler(
        self,
        policy: ReplayPolicy = AT_ONCE,
        *,
        broker: Broker | None = None,
        probe: Probe = no_probe,
        sources: Sequence[str] = (QUEUE,),
    ) -> ReplayHandler:
        """A replayer of the DLQ."""
        broker = broker or self.broker
        clock = self.stand.clock
        all_sources = [
            ReplayTarget(queue=queue, policy=policy, retention_seconds=broker.retention_seconds(queue))
            for queue in sources
        ]
        return ReplayHandler(
            ReplayContext(
                sources=ReplayTargets(all_sources),
                retention_seconds=broker.retention_seconds(FIRST),
                broker=broker,
                log=self.log,
                bus=Bus(self.events.append),
                clock=clock,
                random=lambda: 0.5,
                probe=probe,
            ),
            ReplayLogCleanup(lambda limit: 0, clock=clock, random=lambda: 0.5),
        )

    def is_due_in(self, seconds: float) -> None:
        """Let it be on record that the only letter of the first tier waits so long from now."""
        (dead_letter,) = self.receive(FIRST)
        self.settle({dead_letter.receipt: Release()}, [dead_letter])
        self.log.open(
            [
                Replay(
                    replay_id=dead_letter_replay_id(FIRST, dead_letter.message),
                    dead_letter_queue=FIRST,
                    dead_letter_id=dead_letter.message.id,
                    queue=QUEUE,
                    count=1,
                    due_at=self.stand.clock.now() + seconds,
                )
            ]
        )

    def look(self, handler: ReplayHandler, *, broker: Broker | None = None) -> Mapping[str, Settlement]:
        """Give a replayer the visible messages of the DLQ, and settle as it decides."""
        broker = broker or self.broker
        dead_letters = self.receive(FIRST, broker=broker)
        if not dead_letters:
            return {}
        answer = handler.begin(dead_letters).run()
        self.settle(answer, dead_letters, broker=broker)
        return answer

    def settle(
        self, answer: Mapping[str, Settlement], deliveries: Sequence[Delivery], *, broker: Broker | None = None
    ) -> None:
        """As the worker does; nothing may fail."""
        failures = (broker or self.broker).settle([(each, answer[each.receipt]) for each in deliveries])
        assert list(failures) == []

    def receive(self, queue: str, *, broker: Broker | None = None) -> Sequence[Delivery]:
        """All that is visible."""
        return (broker or self.broker).receive(queue, messages_max=50, lease_seconds=LEASE)

    def take(self, queue: str) -> Sequence[Delivery]:
        """All that is visible, for good."""
        deliveries = self.receive(queue)
        self.settle({delivery.receipt: Ack() for delivery in deliveries}, deliveries)
        return deliveries

    def results(self) -> list[str]:
        """Return the replayers' events, in order."""
        return [event.result for event in self.replayed()]

    def replayed(self) -> list[DeadLetterReplayed]:
        """Return their events about dead letters, in order."""
        return [event for event in self.events if isinstance(event, DeadLetterReplayed)]

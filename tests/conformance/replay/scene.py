"""A queue, its DLQ and final DLQ, and replayers that process the DLQ one step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.conformance.broker_harnesses import LEASE, BrokerHarness

from penstock.dead_letters.policy import ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.dead_letters.replayer import ReplayContext, ReplayHandler, ReplayLogCleanup
from penstock.events import Bus, DeadLetterReplayed, Event
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Outgoing
from penstock.messaging.replay import Replay, ReplayLog, dead_letter_replay_id
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.steps import Probe, Step, no_probe

QUEUE, DLQ, FINAL_DLQ = "q", "q-dlq", "q-dead"
DIED = DeadLetter(reason="it failed", exception="ValueError: no", fingerprint="f00d", handler="shop.work")
AT_ONCE = ReplayPolicy(base_seconds=1e-9)  # delays too short for any broker to notice
TIERS = (QueueSettings(name=QUEUE), QueueSettings(name=DLQ))


class Crash(BaseException):
    """Simulates the death of the process."""


def crash_at(step: Step) -> Probe:
    """Return a probe at which a replayer dies."""

    def probe(reached: Step) -> None:
        if reached is step:
            raise Crash(step)

    return probe


@dataclass(kw_only=True)
class Scene:
    """A broker with replayers. Time is the harness's clock and advances only when a test advances it."""

    harness: BrokerHarness
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
        """Send messages to the queue and let them die there."""
        messages = [Outgoing(body=body, attributes=attributes, group=group) for body in bodies]
        self.broker.send(QUEUE, messages)
        self.fail(len(bodies), death)

    def fail(self, count: int = 1, death: DeadLetter = DIED) -> None:
        """Let ``count`` messages of the queue, which must be all visible ones, die."""
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
        """Return a replayer of the DLQ."""
        broker = broker or self.broker
        clock = self.harness.clock
        all_sources = [
            ReplayTarget(queue=queue, policy=policy, retention_seconds=broker.retention_seconds(queue))
            for queue in sources
        ]
        return ReplayHandler(
            ReplayContext(
                sources=ReplayTargets(all_sources),
                retention_seconds=broker.retention_seconds(DLQ),
                broker=broker,
                log=self.log,
                bus=Bus(self.events.append),
                clock=clock,
                random=lambda: 0.5,
                probe=probe,
            ),
            ReplayLogCleanup(lambda limit: 0, clock=clock, random=lambda: 0.5),
        )

    def make_due_in(self, seconds: float) -> None:
        """Record that the only message of the DLQ is due that many seconds from now."""
        (dead_letter,) = self.receive(DLQ)
        self.settle({dead_letter.receipt: Release()}, [dead_letter])
        self.log.open(
            [
                Replay(
                    replay_id=dead_letter_replay_id(DLQ, dead_letter.message),
                    dead_letter_queue=DLQ,
                    dead_letter_id=dead_letter.message.id,
                    queue=QUEUE,
                    count=1,
                    due_at=self.harness.clock.now() + seconds,
                )
            ]
        )

    def run_once(self, handler: ReplayHandler, *, broker: Broker | None = None) -> Mapping[str, Settlement]:
        """Give a replayer the visible messages of the DLQ, and settle as it decides."""
        broker = broker or self.broker
        dead_letters = self.receive(DLQ, broker=broker)
        if not dead_letters:
            return {}
        decisions = handler.begin(dead_letters).run()
        self.settle(decisions, dead_letters, broker=broker)
        return decisions

    def settle(
        self, decisions: Mapping[str, Settlement], deliveries: Sequence[Delivery], *, broker: Broker | None = None
    ) -> None:
        """Settle as the worker does; no settlement may fail."""
        failures = (broker or self.broker).settle([(each, decisions[each.receipt]) for each in deliveries])
        assert list(failures) == []

    def receive(self, queue: str, *, broker: Broker | None = None) -> Sequence[Delivery]:
        """Receive all visible messages."""
        return (broker or self.broker).receive(queue, messages_max=50, lease_seconds=LEASE)

    def take(self, queue: str) -> Sequence[Delivery]:
        """Receive and ack all visible messages."""
        deliveries = self.receive(queue)
        self.settle({delivery.receipt: Ack() for delivery in deliveries}, deliveries)
        return deliveries

    def results(self) -> list[str]:
        """Return the results of the replay events, in order."""
        return [event.result for event in self.replayed()]

    def replayed(self) -> list[DeadLetterReplayed]:
        """Return the replay events about dead letters, in order."""
        return [event for event in self.events if isinstance(event, DeadLetterReplayed)]

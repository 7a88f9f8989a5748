"""A trace stays with its message through redelivery, death and replay, and never prevents delivery."""

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, receive
from tests.traced import Traces, context_in, linked, traceparent

from penstock.messaging.broker import Broker, QueueSettings, ReceiveRequest, send_each
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import Replay, dead_letter_replay_id, replayed
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.messaging.tracing import unwrapped

TIERS = (QueueSettings(name="q"), QueueSettings(name="q-dlq"))
FOREIGN_CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # W3C's own example


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def broker(harness: BrokerHarness, traces: Traces) -> Broker:
    return traces.tracing.broker(harness.broker(queues=TIERS))


def test_a_message_carries_the_trace_context_of_its_send(broker: Broker, traces: Traces) -> None:
    (id,) = broker.send("q", [Outgoing(body=b"1")])
    sent = traces.only("send q")
    (delivery,) = receive(broker)
    assert context_in(delivery.message.attributes) == traceparent(sent)
    received = traces.only("receive q")
    assert linked(received) == [traceparent(sent)]
    system = unwrapped(broker).capabilities.system
    named = {"messaging.system": system, "messaging.destination.name": "q", "messaging.message.id": id}
    assert dict(sent.attributes or {}) == named | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert dict(received.attributes or {}) == named | {
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
    }


def test_only_a_turn_with_deliveries_records_a_receive_span(broker: Broker, traces: Traces) -> None:
    assert not broker.turn([], [ReceiveRequest(queue="q", messages_max=10)], lease_seconds=LEASE).deliveries
    assert not traces.spans
    broker.send("q", [Outgoing(body=b"1")])
    turn = broker.turn([], [ReceiveRequest(queue="q", messages_max=10)], lease_seconds=LEASE)
    assert len(turn.deliveries) == 1
    assert linked(traces.only("receive q")) == [traceparent(traces.only("send q"))]


def test_messages_sent_together_share_a_context_and_keep_their_own(broker: Broker, traces: Traces) -> None:
    broker.send("q", [Outgoing(body=b"1"), Outgoing(body=b"2", attributes={"traceparent": FOREIGN_CONTEXT, "a": "b"})])
    sent = traces.only("send q")
    assert linked(sent) == [FOREIGN_CONTEXT]
    assert (sent.attributes or {})["messaging.batch.message_count"] == 2
    found = {delivery.message.body: dict(delivery.message.attributes) for delivery in receive(broker)}
    assert found == {b"1": {"traceparent": traceparent(sent)}, b"2": {"traceparent": FOREIGN_CONTEXT, "a": "b"}}


def test_a_trace_context_survives_a_release_a_death_and_a_replay(
    broker: Broker, harness: BrokerHarness, traces: Traces
) -> None:
    broker.send("q", [Outgoing(body=b"1", attributes={"a": "b"})])
    origin = traceparent(traces.only("send q"))
    (first,) = receive(broker)
    broker.settle([(first, Release())])
    (second,) = receive(broker)
    assert context_in(second.message.attributes) == origin
    broker.settle([(second, DeadLetter(reason="it is bad"))])
    (dead_letter,) = receive(broker, queue="q-dlq")
    assert context_in(dead_letter.message.attributes) == origin
    replay = Replay(
        replay_id=dead_letter_replay_id("q-dlq", dead_letter.message),
        dead_letter_queue="q-dlq",
        dead_letter_id=dead_letter.message.id,
        queue="q",
        count=1,
        due_at=harness.clock.now(),
    )
    send_each(broker, "q", [replayed(dead_letter.message, replay, delay_seconds=0.0)])
    broker.settle([(dead_letter, Ack())])
    assert linked(traces.named("send q")[-1]) == [origin], "the replay's span links to the origin of the message"
    (again,) = receive(broker)
    assert context_in(again.message.attributes) == origin
    assert again.message.attributes["a"] == "b"


def test_a_message_with_ten_attributes_still_carries_its_trace_context(broker: Broker, traces: Traces) -> None:
    attributes: dict[str, str | bytes] = {f"a{n}": b"\x00\xff" if n % 2 else "text" for n in range(10)}
    broker.send("q", [Outgoing(body=b"\xfe", attributes=attributes, group="g")])
    (delivery,) = receive(broker)
    assert dict(delivery.message.attributes) == attributes | {"traceparent": traceparent(traces.only("send q"))}
    assert (delivery.message.body, delivery.message.group) == (b"\xfe", "g")


def test_the_largest_message_is_sent_with_or_without_its_trace_context(broker: Broker, traces: Traces) -> None:
    broker.send("q", [Outgoing(body=b"x" * broker.capabilities.body_bytes_max)])
    (delivery,) = receive(broker)
    sent = traces.only("send q")
    untraced = (sent.attributes or {}).get("penstock.untraced_messages", 0)
    assert (untraced, context_in(delivery.message.attributes)) in [(0, traceparent(sent)), (1, None)]
    assert untraced == (1 if broker.capabilities.system == "aws_sqs" else 0)


def test_a_duplicate_with_a_trace_context_is_dropped(broker: Broker, traces: Traces) -> None:
    if not broker.capabilities.deduplicates:
        pytest.skip("not applicable: this broker does not deduplicate")
    (first,) = broker.send("q", [Outgoing(body=b"1", deduplication_id="tick")])
    (second,) = broker.send("q", [Outgoing(body=b"1", deduplication_id="tick")])
    assert first == second
    assert broker.stats("q").visible == 1
    (delivery,) = receive(broker)
    assert context_in(delivery.message.attributes) == traceparent(traces.named("send q")[0])


def test_an_invalid_trace_context_is_passed_on_and_never_linked(broker: Broker, traces: Traces) -> None:
    broker.send("q", [Outgoing(body=b"1", attributes={"traceparent": "nonsense"})])
    (delivery,) = receive(broker)
    assert context_in(delivery.message.attributes) == "nonsense"
    assert [len(span.links) for span in traces.spans] == [0, 0]


def test_a_traced_broker_has_all_methods_of_the_plain_one(harness: BrokerHarness, traces: Traces) -> None:
    plain = harness.broker(queues=TIERS)
    broker = traces.tracing.broker(plain)
    assert unwrapped(broker) is plain
    assert traces.tracing.broker(broker) is broker, "once is enough"
    abilities = {name for name in dir(plain) if not name.startswith("_")}
    assert abilities <= {name for name in dir(broker) if not name.startswith("_")}
    assert broker.queue_names() == plain.queue_names()

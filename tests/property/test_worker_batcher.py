"""For any arrivals, no delivery is lost, duplicated or reordered, and no limit is exceeded."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.worker.batcher import NOTHING, Batch, ClosedBy, Limits, collect, due

WEIGHTS = st.lists(st.lists(st.integers(min_value=0, max_value=200), max_size=12), max_size=12)
LIMITS = st.builds(
    Limits,
    messages_max=st.integers(min_value=1, max_value=8),
    bytes_max=st.integers(min_value=1, max_value=150),
    wait_seconds=st.floats(min_value=0.0, max_value=10.0),
)


def numbered(number: int) -> Delivery:
    message = Message(id=str(number), body=b"", enqueued_at=0.0)
    return Delivery(message=message, queue="q", receipt=str(number), attempt=1, received_at=0.0)


@given(arrivals=WEIGHTS, limits=LIMITS)
def test_batches_hold_every_delivery_once_in_order_within_the_limits(arrivals: list[list[int]], limits: Limits) -> None:
    weights = {str(n): weight for n, weight in enumerate(weight for group in arrivals for weight in group)}
    collecting, batches, number = NOTHING, list[Batch](), 0
    for now, group in enumerate(arrivals):
        deliveries = [(numbered(number + n), weight) for n, weight in enumerate(group)]
        number += len(group)
        collecting, closed = collect(collecting, deliveries, limits=limits, now=float(now))
        batches += closed
        # The open batch has room: a full batch never waits for another receive.
        assert len(collecting.deliveries) < limits.messages_max
        assert collecting.bytes < limits.bytes_max or not collecting.deliveries
    last = due(collecting, limits=limits, now=0.0, receive_was_empty=True)
    everything = batches + ([last] if last else [])

    assert [delivery.receipt for batch in everything for delivery in batch.deliveries] == list(weights)
    for batch in everything:
        weighed = [weights[delivery.receipt] for delivery in batch.deliveries]
        assert batch.bytes == sum(weighed)
        assert 1 <= len(weighed) <= limits.messages_max
        assert batch.bytes <= limits.bytes_max or len(weighed) == 1
        assert batch.closed_by is not ClosedBy.COUNT or len(weighed) == limits.messages_max


@given(
    limits=LIMITS,
    opened_at=st.floats(min_value=0, max_value=1e6),
    age_seconds=st.floats(min_value=0, max_value=100),
)
def test_a_batch_closes_by_age_exactly_from_the_limit_on(limits: Limits, opened_at: float, age_seconds: float) -> None:
    roomy = Limits(messages_max=2, bytes_max=2, wait_seconds=limits.wait_seconds)
    collecting, _ = collect(NOTHING, [(numbered(0), 1)], limits=roomy, now=opened_at)
    now = opened_at + age_seconds
    closed = due(collecting, limits=roomy, now=now, receive_was_empty=False)
    assert (closed is not None) == (now - opened_at >= roomy.wait_seconds)

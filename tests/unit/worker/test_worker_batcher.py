"""When an open batch closes."""

from collections.abc import Callable

import pytest

from penstock.messaging.delivery import Delivery
from penstock.worker.batcher import NOTHING, ClosedBy, Limits, OpenBatch, collect, due

Make = Callable[..., Delivery]
LIMITS = Limits(messages_max=3, bytes_max=100, wait_seconds=30.0)


def test_a_batch_closes_by_count(delivery: Make) -> None:
    still_open, closed = collect(NOTHING, [(delivery(n), 1) for n in range(4)], limits=LIMITS, now=5.0)
    assert [(len(batch.deliveries), batch.closed_by) for batch in closed] == [(3, ClosedBy.COUNT)]
    assert still_open == OpenBatch(deliveries=(delivery(3),), bytes=1, opened_at=5.0)


def test_a_batch_closes_before_a_delivery_that_would_exceed_the_bytes(delivery: Make) -> None:
    still_open, closed = collect(NOTHING, [(delivery(0), 60), (delivery(1), 41)], limits=LIMITS, now=0.0)
    assert [(batch.bytes, batch.closed_by) for batch in closed] == [(60, ClosedBy.BYTES)]
    assert still_open.bytes == 41


def test_a_batch_may_have_exactly_the_maximum_bytes(delivery: Make) -> None:
    still_open, closed = collect(NOTHING, [(delivery(0), 60), (delivery(1), 40)], limits=LIMITS, now=0.0)
    assert [batch.bytes for batch in closed] == [100]
    assert still_open == NOTHING


def test_a_delivery_larger_than_the_limit_runs_alone(delivery: Make) -> None:
    _, closed = collect(NOTHING, [(delivery(0), 1), (delivery(1), 500), (delivery(2), 1)], limits=LIMITS, now=0.0)
    assert [[item.message.id for item in batch.deliveries] for batch in closed] == [["m0"], ["m1"]]


def test_the_age_of_a_batch_counts_from_its_first_delivery(delivery: Make) -> None:
    first, _ = collect(NOTHING, [(delivery(0), 1)], limits=LIMITS, now=10.0)
    second, _ = collect(first, [(delivery(1), 1)], limits=LIMITS, now=39.0)
    assert due(second, limits=LIMITS, now=39.9, receive_was_empty=False) is None
    batch = due(second, limits=LIMITS, now=40.0, receive_was_empty=False)
    assert batch is not None
    assert batch.closed_by is ClosedBy.AGE
    assert len(batch.deliveries) == 2


def test_an_empty_receive_closes_the_batch(delivery: Make) -> None:
    still_open, _ = collect(NOTHING, [(delivery(0), 1)], limits=LIMITS, now=10.0)
    batch = due(still_open, limits=LIMITS, now=10.0, receive_was_empty=True)
    assert batch is not None
    assert batch.closed_by is ClosedBy.EMPTY


@pytest.mark.parametrize("receive_was_empty", [True, False])
def test_an_empty_batch_is_never_due(receive_was_empty: bool) -> None:
    assert due(NOTHING, limits=LIMITS, now=1e9, receive_was_empty=receive_was_empty) is None

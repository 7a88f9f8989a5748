"""Rotation of queues: shares follow the weights for any read sizes, and no queue saves up turns."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.queue_scheduler import Rotation

WEIGHTS = st.lists(st.integers(1, 10), min_size=1, max_size=6)
READS = st.integers(1, 50)


def turn(rotation: Rotation, full: set[int], messages: int) -> int | None:
    """Run one round as the worker does: poll in order, and stop at the first queue with messages."""
    for consumer in rotation.order():
        if consumer in full:
            rotation.advance(consumer, messages)
            return consumer
        rotation.skip(consumer)
    return None


def test_weights_of_three_to_one_share_polls_three_to_one() -> None:
    rotation = Rotation([3, 1])
    picks = Counter(turn(rotation, {0, 1}, 1) for _ in range(400))
    assert picks == {0: 300, 1: 100}


@given(weights=WEIGHTS, data=st.data())
def test_queues_that_are_always_full_share_by_weight_for_any_read_sizes(
    weights: list[int], data: st.DataObject
) -> None:
    """No queue is ever further from its share than one read of each of two queues."""
    reads = data.draw(st.lists(READS, min_size=len(weights), max_size=len(weights)))
    rotation, got = Rotation(weights), Counter[int]()
    consumers = set(range(len(weights)))
    for _ in range(300):
        consumer = rotation.order()[0]
        got[consumer] += reads[consumer]
        rotation.advance(consumer, reads[consumer])
    for one in consumers:
        for other in consumers:
            apart = abs(got[one] / weights[one] - got[other] / weights[other])
            assert apart <= reads[one] / weights[one] + reads[other] / weights[other] + 1e-6


@given(weights=st.tuples(st.integers(1, 5), st.integers(1, 5)), reads=st.lists(READS, min_size=600, max_size=600))
def test_shares_are_within_five_per_cent_when_reads_vary(weights: tuple[int, int], reads: list[int]) -> None:
    rotation, got = Rotation(weights), Counter[int]()
    for messages in reads:
        consumer = turn(rotation, {0, 1}, messages)
        assert consumer is not None
        got[consumer] += messages
    share = weights[0] / sum(weights)
    slack = max(50, 0.05 * got.total())  # there may be only a few reads
    assert abs(got[0] - share * got.total()) <= slack


@given(weights=WEIGHTS, data=st.data())
def test_an_empty_queue_yields_its_turn_at_once(weights: list[int], data: st.DataObject) -> None:
    rotation = Rotation(weights)
    lines = st.sets(st.integers(0, len(weights) - 1))
    for full in data.draw(st.lists(lines, max_size=40)):
        picked = turn(rotation, full, data.draw(READS))
        assert (picked in full) if full else picked is None


@given(weights=st.tuples(st.integers(1, 5), st.integers(1, 5)), alone=st.integers(1, 500))
def test_a_queue_that_was_idle_gets_only_its_share_afterwards(weights: tuple[int, int], alone: int) -> None:
    """However long the other queue was served alone, afterwards the shares are those of the weights."""
    rotation = Rotation(weights)
    for _ in range(alone):
        turn(rotation, {0}, 1)
    rounds = 20 * sum(weights)
    picks = Counter(turn(rotation, {0, 1}, 1) for _ in range(rounds))
    assert abs(picks[0] - 20 * weights[0]) <= 2
    assert abs(picks[1] - 20 * weights[1]) <= 2


@given(weights=st.tuples(st.integers(1, 5), st.integers(1, 5)), alone=st.integers(1, 500))
def test_a_queue_that_was_served_alone_keeps_its_share_afterwards(weights: tuple[int, int], alone: int) -> None:
    """The second queue is served alone for a while; the first then returns, and gets no extra turns for its absence."""
    rotation = Rotation(weights)
    for _ in range(5):
        turn(rotation, {0}, 1)
    for _ in range(alone):
        turn(rotation, {1}, 1)
    picks = Counter(turn(rotation, {0, 1}, 1) for _ in range(20 * sum(weights)))
    missed = max(0.0, 5 / weights[0] - alone / weights[1]) * weights[1]  # turns that the first had before still count
    assert abs(picks[1] - 20 * weights[1]) <= 2 + missed

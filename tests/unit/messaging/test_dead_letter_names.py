"""By its name: whether a queue holds dead letters, where those of another one are, and whose they are."""

import pytest

from penstock.messaging.broker import conventional_dead_letter_queue, conventional_source, is_fifo, names_dead_letters


@pytest.mark.parametrize(
    ("queue", "holds"),
    [
        ("orders", False),
        ("orders-dlq", True),
        ("orders.fifo", False),
        ("orders-dlq.fifo", True),
        ("orders.fifo-dlq", True),
        ("orders-dlq-2", False),
    ],
)
def test_which_queues_hold_dead_letters(queue: str, holds: bool) -> None:
    assert names_dead_letters(queue) is holds


@pytest.mark.parametrize(
    ("queue", "source"),
    [
        ("orders-dlq", "orders"),
        ("orders-dead", "orders-dlq"),
        ("orders-dlq.fifo", "orders.fifo"),
        ("orders-dead.fifo", "orders-dlq.fifo"),
        ("orders.fifo-dlq", "orders.fifo"),
        ("orders.fifo-dead", "orders.fifo-dlq"),
        ("orders", None),
        ("orders.fifo", None),
        ("-dlq", None),
        ("-dead.fifo", None),
    ],
)
def test_whose_dead_letters_a_queue_holds(queue: str, source: str | None) -> None:
    assert conventional_source(queue) == source


@pytest.mark.parametrize("queue", ["orders", "orders.fifo", "orders-dlq", "orders-dlq.fifo", "orders.fifo-dlq"])
def test_the_way_there_and_back_is_one(queue: str) -> None:
    assert conventional_source(conventional_dead_letter_queue(queue)) == queue


@pytest.mark.parametrize(
    ("queue", "fifo"),
    [
        ("orders.fifo", True),
        ("https://sqs.eu-west-1.amazonaws.com/1/orders.fifo", True),
        ("arn:aws:sqs:eu-west-1:1:orders-dlq.fifo", True),
        ("orders", False),
        ("fifo", False),
    ],
)
def test_which_queues_keep_order(queue: str, fifo: bool) -> None:
    assert is_fifo(queue) is fifo

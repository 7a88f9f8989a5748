"""Names of dead-letter queues: recognize them, and map queues to dead-letter queues and back."""

import pytest

from penstock.messaging.broker import conventional_dead_letter_queue, conventional_source, is_fifo, names_dead_letters


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("orders", False),
        ("orders-dlq", True),
        ("orders.fifo", False),
        ("orders-dlq.fifo", True),
        ("orders.fifo-dlq", True),
        ("orders-dlq-2", False),
    ],
)
def test_queue_names_for_dead_letters_are_recognized(queue: str, expected: bool) -> None:
    assert names_dead_letters(queue) is expected


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
def test_the_source_of_a_dead_letter_queue_follows_from_its_name(queue: str, source: str | None) -> None:
    assert conventional_source(queue) == source


@pytest.mark.parametrize("queue", ["orders", "orders.fifo", "orders-dlq", "orders-dlq.fifo", "orders.fifo-dlq"])
def test_the_source_of_the_conventional_dead_letter_queue_is_the_queue(queue: str) -> None:
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
def test_fifo_queues_are_recognized_by_name(queue: str, fifo: bool) -> None:
    assert is_fifo(queue) is fifo

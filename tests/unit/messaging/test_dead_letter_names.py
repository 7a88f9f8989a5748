"""By its name: whether a queue holds dead letters, and where those of another one are."""

import pytest

from penstock.messaging.broker import dead_letter_names, names_dead_letters


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


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_where_dead_letters_go_is_known_for_such(queue: str) -> None:
    names = dead_letter_names(queue)
    assert names[0] == f"{queue}-dlq"
    assert ("orders-dlq.fifo" in names) is queue.endswith(".fifo")
    assert all(map(names_dead_letters, names))

"""Messages and deliveries made from drafts equal those of the constructors."""

from dataclasses import FrozenInstanceError

import pytest

from penstock.messaging.delivery import Delivery
from penstock.messaging.drafts import new_delivery, new_message
from penstock.messaging.message import NO_ATTRIBUTES, Message

MADE = new_message("s-000000000001", b"body", 1.5, NO_ATTRIBUTES, "tenant")


def test_a_message_has_its_fields_in_their_places() -> None:
    expected = Message(id="s-000000000001", body=b"body", enqueued_at=1.5, attributes=NO_ATTRIBUTES, group="tenant")
    assert type(MADE) is Message
    assert expected == MADE
    assert repr(MADE) == repr(expected)


def test_a_delivery_has_its_fields_in_their_places() -> None:
    made = new_delivery(MADE, "q", "s-7-0", 1, 2.5)
    expected = Delivery(message=MADE, queue="q", receipt="s-7-0", attempt=1, received_at=2.5)
    assert type(made) is Delivery
    assert made == expected


def test_neither_can_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        MADE.body = b"other"  # type: ignore[misc] # the point of the test
    with pytest.raises(FrozenInstanceError):
        new_delivery(MADE, "q", "s-7-0", 1, 2.5).attempt = 2  # type: ignore[misc] # as above

"""Incidents reach whoever hears while there is somebody."""

from penstock.app.relay import Relay
from penstock.events import Event, MessagesVanished

INCIDENT = MessagesVanished(queue="q", entries=("1-0",))


def test_what_comes_while_somebody_hears_is_passed_on() -> None:
    relay, heard, inner = Relay(), list[Event](), list[Event]()
    relay(INCIDENT)
    with relay.passing_to(heard.append):
        relay(INCIDENT)
        with relay.passing_to(inner.append):
            relay(INCIDENT)
        relay(INCIDENT)
    relay(INCIDENT)
    assert (len(heard), len(inner)) == (2, 1)

"""The forwarding of broker events to the current listener."""

from penstock.app.context import EventForwarder
from penstock.events import Event, MessagesDeleted

INCIDENT = MessagesDeleted(queue="q", entries=("1-0",))


def test_events_are_forwarded_to_the_innermost_current_listener() -> None:
    forwarder, outer, inner = EventForwarder(), list[Event](), list[Event]()
    forwarder(INCIDENT)
    with forwarder.passing_to(outer.append):
        forwarder(INCIDENT)
        with forwarder.passing_to(inner.append):
            forwarder(INCIDENT)
        forwarder(INCIDENT)
    forwarder(INCIDENT)
    assert (len(outer), len(inner)) == (2, 1)

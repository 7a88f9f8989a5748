"""Incidents reach whoever hears while there is somebody."""

from penstock.app.context import EventForwarder
from penstock.events import Event, MessagesDeleted

INCIDENT = MessagesDeleted(queue="q", entries=("1-0",))


def test_what_comes_while_somebody_hears_is_passed_on() -> None:
    incidents, heard, inner = EventForwarder(), list[Event](), list[Event]()
    incidents(INCIDENT)
    with incidents.passing_to(heard.append):
        incidents(INCIDENT)
        with incidents.passing_to(inner.append):
            incidents(INCIDENT)
        incidents(INCIDENT)
    incidents(INCIDENT)
    assert (len(heard), len(inner)) == (2, 1)

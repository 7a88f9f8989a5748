"""How a queue stands, in words: for the list, for the screen that refreshes, and for one look of the monitor."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.monitor_look import QueueLook
    from penstock.app.queues import QueueStanding


def state_of(one: "QueueStanding") -> str:
    """Whether it is handed over: empty where it is."""
    if one.paused:
        return "paused"
    return "breaker" if one.breaker is not None else "unserved" if one.unserved is not None else ""


def oldest_visible(one: "QueueStanding | QueueLook") -> str:
    """How long its oldest visible message has waited. An estimate says that it is one."""
    seconds = one.oldest_visible_message_age_seconds
    age = age_of(seconds if one.visible else seconds or None)
    return f"about {age}" if age and one.oldest_visible_message_age_source == "estimated" else age


def oldest(one: "QueueStanding | QueueLook") -> str:
    """How old its oldest message is. Brokers call the age of no message 0; to people it is none."""
    there = one.visible or one.in_flight or one.delayed
    return age_of(one.oldest_message_age_seconds) if there else ""


def age_of(seconds: float | None) -> str:
    """A span of time for people; empty where nobody can tell."""
    from penstock.app.standing import span

    return "" if seconds is None else span(seconds)

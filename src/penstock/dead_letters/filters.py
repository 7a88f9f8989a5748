"""Select dead-lettered messages, and find the queue in which each one failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.dead_letters.groups import NO_REASON, group_id, group_of, key_of
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.errors import InvalidMessage
from penstock.messaging.broker import conventional_source, listed_name, names_dead_letters
from penstock.messaging.death import DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE, earlier_deaths_of, set_aside_reason
from penstock.messaging.message import Message
from penstock.objects.notification import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Conditions on a dead-lettered message. None and empty conditions match everything."""

    handler: str | None = None
    error: str | None = None  # a group's key, or text in reason, exception or fingerprint; ignores case
    group: str | None = None  # the id of its group
    older_than_seconds: float | None = None  # since it was dead-lettered
    younger_than_seconds: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    object_uri: str | None = None  # an object that its body names, if that is a notification
    ids: frozenset[str] = frozenset()  # ids that it has now, or had in a queue where it failed

    @property
    def is_empty(self) -> bool:
        """Return True if there is no condition, so that every message matches."""
        return self == DeadLetterFilter()

    def matches(self, dead_letter: DeadLetteredMessage, *, now: float) -> bool:
        """Return True if the message meets every condition. The cheapest conditions are checked first."""
        message = dead_letter.message
        return (
            self._matches_age(now - message.enqueued_at)
            and all(_text(message.attributes.get(name)) == value for name, value in self.attributes.items())
            and (self.group is None or self.group == group_id(group_of(dead_letter)))
            and self._matches_death(dead_letter)
            and (self.object_uri is None or self.object_uri in objects_of(message))
        )

    def ids_met(self, dead_letter: DeadLetteredMessage) -> frozenset[str]:
        """Return the requested ids that belong to this message, now or before earlier replays."""
        return self.ids & ids_of(dead_letter) if self.ids else self.ids

    def _matches_age(self, age_seconds: float) -> bool:
        if self.older_than_seconds is not None and age_seconds < self.older_than_seconds:
            return False
        return self.younger_than_seconds is None or age_seconds < self.younger_than_seconds

    def _matches_death(self, dead_letter: DeadLetteredMessage) -> bool:
        if self.handler is None and self.error is None and not self.ids:
            return True
        if not self._may_match_death(dead_letter):
            return False
        death = dead_letter.death
        if self.ids and not self.ids_met(dead_letter):
            return False
        if self.handler is not None and (death is None or death.handler != self.handler):
            return False
        if self.error is None or key_of(death) == self.error:
            return True
        texts = [set_aside_reason(dead_letter.message.attributes)]
        if death is not None:
            texts += [death.reason, death.exception, death.fingerprint]
        sought = self.error.casefold()
        return any(sought in text.casefold() for text in texts if text)

    def _may_match_death(self, dead_letter: DeadLetteredMessage) -> bool:
        """Return False if the death's text rules out a match, so that `matches` need not decode it.

        Searching costs a twentieth of decoding (measured).
        """
        text = dead_letter.message.attributes.get(DEATH_ATTRIBUTE)
        if not isinstance(text, str):
            return True
        if self.ids and dead_letter.id not in self.ids:
            texts = (text, _text(dead_letter.message.attributes.get(EARLIER_DEATHS_ATTRIBUTE)) or "")
            if not any(not _is_plain(id) or any(id in stored for stored in texts) for id in self.ids):
                return False
        if self.handler is not None and _is_plain(self.handler) and self.handler not in text:
            return False
        if self.error is None or not _is_plain(self.error) or self.error == NO_REASON:
            return True
        sought, aside = self.error.casefold(), set_aside_reason(dead_letter.message.attributes)
        return sought in text.casefold() or (aside is not None and sought in aside.casefold())


def ids_of(dead_letter: DeadLetteredMessage) -> frozenset[str]:
    """Return the message's id, the one it had in the queue where it failed, and those from before earlier replays."""
    death = dead_letter.death
    before = [earlier.message_id for earlier in earlier_deaths_of(dead_letter.message.attributes)]
    return frozenset({dead_letter.id, *before, *([] if death is None else [death.message_id])})


def objects_of(message: Message) -> frozenset[str]:
    """Return the URIs of the objects that the body names; empty if it is not a notification."""
    try:
        found = parse(message.body, buckets_allowed=None)
    except InvalidMessage:
        return frozenset()
    return frozenset(ref.uri for ref in found.objects)


def origins_of(dead_letter: DeadLetteredMessage) -> Sequence[str]:
    """Return the queues that the message may have come from, without DLQs, most reliable source first.

    The sources are the broker, the message's death, its earlier deaths, and the name of its queue. Deaths may be
    forged.
    """
    death = dead_letter.death
    named = [
        dead_letter.moved_from,
        None if death is None else death.queue,
        *(earlier.queue for earlier in reversed(earlier_deaths_of(dead_letter.message.attributes))),
        source_of(dead_letter.queue),
    ]
    return [queue for queue in named if queue and not names_dead_letters(listed_name(queue))]


def source_of(queue: str) -> str | None:
    """Return the queue that a DLQ or final DLQ belongs to, by its name alone."""
    source = conventional_source(queue)
    return source if source is None else source_of(source) or source


def _is_plain(text: str) -> bool:
    """Return True if the text appears unchanged in JSON.

    False for text with <>: keys of groups contain placeholders, such as <n>, which no message contains.
    """
    return text.isascii() and text.isprintable() and not set(text) & set('"\\<>')


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value

"""The groups (tenants) of the messages that have waited longest in a queue, from a sample."""

from collections import Counter
from dataclasses import dataclass

from penstock.messaging.broker import Broker

SAMPLE_MAX = 200  # messages; each is read with its body


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """The oldest messages of a queue: their number, and the group that most of them belong to, if it has a name."""

    messages: int
    group: str | None = None
    in_group: int = 0

    @property
    def share(self) -> float:
        return self.in_group / self.messages if self.messages else 0.0


def sample_groups(broker: Broker, queue: str, *, messages_max: int = SAMPLE_MAX) -> GroupSample | None:
    """Return a sample of the oldest messages; None if the broker cannot list messages without receiving them."""
    if not broker.capabilities.browsable:
        return None
    groups = [message.group for message in broker.browse(queue, messages_max=messages_max)]
    named = Counter(group for group in groups if group is not None).most_common(1)
    if not named:
        return GroupSample(messages=len(groups))
    ((group, count),) = named
    return GroupSample(messages=len(groups), group=group, in_group=count)

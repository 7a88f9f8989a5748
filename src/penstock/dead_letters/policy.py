"""Decide how to handle a message in a DLQ: pure functions of the message, the recorded replay and the time.

A message waits uniform(0, min(cap, base x 2^n)) seconds before its replay, where n is the number of its earlier
replays: exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015).
The cap applies before the jitter: capping the drawn value would cluster most messages at the cap. The random number is
derived from the replay's id, so every process draws the same one.

`ReplayTargets` finds the queue that a message returns to if several queues share one DLQ.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.messaging.backoff import ceiling_seconds
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.replay import COUNT_MAX, Replay, dead_letter_replay_id, replays_so_far

RETENTION_SHARE_LEFT = 0.1  # minimum share of its retention that a message has left when its replay is due


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """How often, and after which delays, the dead-lettered messages of one queue are replayed automatically."""

    replays_max: int = 3
    base_seconds: float = 2.0
    cap_seconds: float | None = None  # None: the queue's retention

    def __post_init__(self) -> None:
        if not 0 <= self.replays_max <= COUNT_MAX:
            raise ConfigurationError(f"replays_max is {self.replays_max}: set it to a value between 0 and {COUNT_MAX}")
        if not self.base_seconds > 0:
            raise ConfigurationError(f"the base of replays is {self.base_seconds:g} s: it has to be more than 0")
        if self.cap_seconds is not None and not self.cap_seconds > 0:
            raise ConfigurationError(f"the cap of replays is {self.cap_seconds:g} s: it has to be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveToFinal:
    """Move the message to the final DLQ, for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HideFor:
    """Hide the message in its DLQ for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAfter:
    """Send the message back to its queue, visible there after a delay."""

    delay_seconds: float


def poison_move(dead_letter: Message) -> MoveToFinal | None:
    """Return the move to the final DLQ of a message that must not be replayed at all; None if it may be."""
    death = death_of(dead_letter.attributes)
    if death is None or not death.poison:
        return None
    return MoveToFinal(reason=f"another attempt cannot help: {death.reason}")


def plan_replay(
    dead_letter: Message,
    *,
    dead_letter_queue: str,
    queue: str,
    policy: ReplayPolicy,
    retention_seconds: float | None,
    dlq_retention_seconds: float | None,
    now: float,
) -> Replay | MoveToFinal:
    """Return the replay to record, or the reason why there is none.

    ``retention_seconds`` is the queue's retention, ``dlq_retention_seconds`` the DLQ's; None: unlimited. No delay
    exceeds the latter.
    """
    rejected = poison_move(dead_letter)
    if rejected is not None:
        return rejected
    so_far = replays_so_far(dead_letter.attributes)
    if so_far >= policy.replays_max:
        times = "once" if so_far == 1 else f"{so_far} times"
        return MoveToFinal(reason=f"replayed {times}, and failed again" if so_far else "its queue is not replayed")
    replay_id = dead_letter_replay_id(dead_letter_queue, dead_letter)
    cap_seconds = policy.cap_seconds if policy.cap_seconds is not None else retention_seconds
    longest_seconds = ceiling_seconds(
        attempt=so_far + 1,
        base_seconds=policy.base_seconds,
        cap_seconds=math.inf if cap_seconds is None else cap_seconds,
    )
    # The range is limited before the draw, so that messages do not cluster at its end.
    if dlq_retention_seconds is not None:
        last_moment = dead_letter.enqueued_at + (1.0 - RETENTION_SHARE_LEFT) * dlq_retention_seconds
        longest_seconds = min(longest_seconds, max(last_moment - now, 0.0))
    return Replay(
        replay_id=replay_id,
        dead_letter_queue=dead_letter_queue,
        dead_letter_id=dead_letter.id,
        queue=queue,
        count=so_far + 1,
        due_at=now + spread(replay_id) * longest_seconds,
    )


def next_step(
    replay: Replay, *, now: float, delay_seconds_max: float, hide_seconds_max: float
) -> HideFor | ReplayAfter:
    """Return the next step of a recorded replay. A delay longer than the queue supports is spent hidden in the DLQ."""
    wait_seconds = max(replay.due_at - now, 0.0)
    if wait_seconds <= delay_seconds_max:
        return ReplayAfter(delay_seconds=wait_seconds)
    return HideFor(seconds=min(wait_seconds - delay_seconds_max, hide_seconds_max))


def spread(replay_id: str) -> float:
    """Return a number in [0, 1), uniform over ids, which are digests."""
    return int(replay_id[:13], 16) / 16**13


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """A queue whose dead-lettered messages return to it."""

    queue: str
    policy: ReplayPolicy
    retention_seconds: float | None = None  # of the queue; None: unlimited or unknown


class ReplayTargets:
    """The queues that share one DLQ, at least one, with their policies. Immutable."""

    def __init__(self, sources: Sequence[ReplayTarget]) -> None:
        self._all = tuple(sources)
        self._by_name: Mapping[str, ReplayTarget] = {listed_name(source.queue): source for source in sources}

    def __iter__(self) -> Iterator[ReplayTarget]:
        return iter(self._all)

    def named(self, queue: str) -> ReplayTarget | None:
        """Return the queue with this name, URL or ARN."""
        return self._by_name.get(listed_name(queue))

    def of(self, dead_letter: Delivery) -> ReplayTarget | MoveToFinal:
        """Return the queue where the message failed, or why that is unknown.

        The message's own record may be forged, so it can only select one of these queues. If the broker itself moved
        the message, this failure is not recorded in it: a death that it carries is an older one, or comes from the
        sender.
        """
        death = death_of(dead_letter.message.attributes)
        queue = None if death is None else death.queue
        if dead_letter.moved_from is not None and not names_dead_letters(dead_letter.moved_from):
            queue = dead_letter.moved_from
        if queue is None:
            if len(self._all) == 1:
                return self._all[0]
            names = ", ".join(source.queue for source in self._all)
            return MoveToFinal(
                reason=f"the queue where it failed is not recorded, and several queues share this DLQ: {names}"
            )
        found = self.named(queue)
        return found or MoveToFinal(
            reason=f"it failed in the queue {queue[:200]}, whose dead letters are not replayed from here"
        )

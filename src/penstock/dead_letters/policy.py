"""What becomes of a dead letter of the first tier: pure functions from the letter, what is on record, and the time.

A letter waits uniform(0, min(cap, base x 2^n)) seconds before its replay, where n counts those it had: exponential
backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015). The cap is inside the
draw: capping what was drawn would pile most letters up at the cap. The draw is made of the replay's id, so that it is
made once, whoever makes it.

Which queues share one first tier, and to which of them a dead letter goes back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.replay import COUNT_MAX, Replay, letter_replay_id, replays_so_far

RETENTION_SHARE_KEPT = 0.1  # of its retention a letter has left, at least, when its replay is due


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """How often and after which waits the dead letters of one queue come back by themselves."""

    replays_max: int = 3
    base_seconds: float = 2.0
    cap_seconds: float | None = None  # None: the queue's retention

    def __post_init__(self) -> None:
        if not 0 <= self.replays_max <= COUNT_MAX:
            raise ConfigurationError(f"replays_max is {self.replays_max}: give it a value between 0 and {COUNT_MAX}")
        if not self.base_seconds > 0:
            raise ConfigurationError(f"the base of replays is {self.base_seconds:g} s: it has to be more than 0")
        if self.cap_seconds is not None and not self.cap_seconds > 0:
            raise ConfigurationError(f"the cap of replays is {self.cap_seconds:g} s: it has to be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveToFinal:
    """It goes to the second tier, for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HideFor:
    """It stays where it is, hidden for so long."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAfter:
    """It goes back to its queue, visible there after so long."""

    delay_seconds: float


def poison(letter: Message) -> MoveToFinal | None:
    """Why a letter is not replayed at all; None where it may be."""
    death = death_of(letter.attributes)
    if death is None or not death.poison:
        return None
    return MoveToFinal(reason=f"another attempt cannot help: {death.reason}")


def planned(
    letter: Message,
    *,
    letter_queue: str,
    queue: str,
    policy: ReplayPolicy,
    retention_seconds: float | None,
    letter_retention_seconds: float | None,
    now: float,
) -> Replay | MoveToFinal:
    """The replay that is to be put on record, or why there is none any more.

    ``retention_seconds`` is the queue's, ``letter_retention_seconds`` that of where the letter lies; None: for ever. No
    wait outlives the latter.
    """
    rejected = poison(letter)
    if rejected is not None:
        return rejected
    so_far = replays_so_far(letter.attributes)
    if so_far >= policy.replays_max:
        times = "once" if so_far == 1 else f"{so_far} times"
        return MoveToFinal(reason=f"replayed {times}, and dead again" if so_far else "its queue is not replayed")
    replay_id = letter_replay_id(letter_queue, letter)
    cap_seconds = policy.cap_seconds if policy.cap_seconds is not None else retention_seconds
    longest_seconds = ceiling_seconds(so_far, base_seconds=policy.base_seconds, cap_seconds=cap_seconds)
    if letter_retention_seconds is not None:  # inside the draw, too, so that nothing piles up at its end
        last_moment = letter.enqueued_at + (1.0 - RETENTION_SHARE_KEPT) * letter_retention_seconds
        longest_seconds = min(longest_seconds, max(last_moment - now, 0.0))
    return Replay(
        replay_id=replay_id,
        letter_queue=letter_queue,
        letter_id=letter.id,
        queue=queue,
        count=so_far + 1,
        due_at=now + spread(replay_id) * longest_seconds,
    )


def next_step(
    replay: Replay, *, now: float, delay_seconds_max: float, hold_seconds_max: float
) -> HideFor | ReplayAfter:
    """What to do now for a replay on record: a wait that the queue itself cannot keep is kept by hiding the letter."""
    wait_seconds = max(replay.due_at - now, 0.0)
    if wait_seconds <= delay_seconds_max:
        return ReplayAfter(delay_seconds=wait_seconds)
    return HideFor(seconds=min(wait_seconds - delay_seconds_max, hold_seconds_max))


def ceiling_seconds(so_far: int, *, base_seconds: float, cap_seconds: float | None) -> float:
    """The longest wait after so many replays."""
    grown = base_seconds * 2.0 ** min(so_far, 60)
    return grown if cap_seconds is None else min(cap_seconds, grown)


def spread(replay_id: str) -> float:
    """A number of [0, 1), uniform over ids, which are digests."""
    return int(replay_id[:13], 16) / 16**13


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """A queue whose dead letters come back to it."""

    queue: str
    policy: ReplayPolicy
    retention_seconds: float | None = None  # of the queue; None: for ever, or nobody can tell


class ReplayTargets:
    """Those of one first tier: at least one."""

    def __init__(self, sources: Sequence[ReplayTarget]) -> None:
        self._all = tuple(sources)
        self._by_name: Mapping[str, ReplayTarget] = {listed_name(source.queue): source for source in sources}

    def __iter__(self) -> Iterator[ReplayTarget]:
        return iter(self._all)

    def named(self, queue: str) -> ReplayTarget | None:
        """The one of this name, URL or ARN."""
        return self._by_name.get(listed_name(queue))

    def of(self, letter: Delivery) -> ReplayTarget | MoveToFinal:
        """Where it died; or why nobody can say. What a letter says of itself may be forged: it opens no other queue.

        What the broker moved by itself nobody wrote a death on: one that it has is an older one, or the sender's.
        """
        death = death_of(letter.message.attributes)
        queue = None if death is None else death.queue
        if letter.moved_from is not None and not names_dead_letters(letter.moved_from):
            queue = letter.moved_from
        if queue is None:
            if len(self._all) == 1:
                return self._all[0]
            names = ", ".join(source.queue for source in self._all)
            return MoveToFinal(reason=f"nothing says which queue it died in: {names} share this one")
        found = self.named(queue)
        return found or MoveToFinal(
            reason=f"it died in the queue {queue[:200]}, whose dead letters do not come back here"
        )

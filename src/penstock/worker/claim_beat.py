"""The claims of the batches at work, extended as a set: one call for all claims of a keeper.

The bounds of the calls derive from the lease, and the calls of a beat end with the beat: what was not extended by then
belongs to the next one, on a fresh connection. Claims that end first are extended first, so that no claim waits while
others are extended again and again. If a call takes more than half its bound, the next one has half as many claims:
a ledger that is slow for each claim would never answer for all of them. If calls take as long for few claims as for
many, as over a slow network, smaller calls would extend fewer claims in the same time: then calls grow again.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import ClaimLost
from penstock.events import Bus, HeartbeatFailed, LeasesEndangered
from penstock.messaging.claims import ClaimKeeper, HeldClaim
from penstock.messaging.clock import Clock
from penstock.worker.beats import TRIES, TRY_AGAIN_SECONDS, Beats
from penstock.worker.settings import WorkerSettings


class Claimed(Protocol):
    """A batch at work that may hold a claim. No method blocks."""

    @property
    def queue(self) -> str:
        """The queue of its deliveries."""
        ...

    def claim(self) -> HeldClaim | None:
        """Return the claim to extend. Raises `ClaimLost` if the work cannot go on."""
        ...

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if a claim that its keeper does not know any more is a loss."""
        ...

    def lose(self) -> None:
        """End the work without a settlement, since the claim is lost."""
        ...


Holding = tuple[Claimed, HeldClaim]

_AS_LONG = 4 / 3  # how much longer a larger call may take whose size is not what takes the time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """Of a keeper's last call that it answered."""

    count: int
    seconds: float
    size_matters: bool  # whether it takes longer for more claims


class ClaimBeat:
    """The claims' part of a heartbeat."""

    def __init__(
        self,
        *,
        claims: Callable[[], Sequence[Claimed]],
        beats: Beats,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        ended: threading.Event,
    ) -> None:
        self._claims = claims
        self._beats = beats
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._ended = ended
        self._lock = threading.Lock()
        self._ends_at: dict[HeldClaim, float] = {}  # under the lock (monotonic): a lower bound, once it was extended
        # The number of claims in one call, and the pace of the last one; each written by the thread of that keeper.
        self._sizes: dict[ClaimKeeper, int] = {}
        self._paces: dict[ClaimKeeper, _Pace] = {}

    def begin(self) -> None:
        """Begin to extend all claims; waits for no answer."""
        began_at = self._clock.monotonic()
        by_keeper: dict[ClaimKeeper, list[Holding]] = {}
        for claimed, claim in self._held():
            by_keeper.setdefault(claim.keeper, []).append((claimed, claim))
        for keeper, held in by_keeper.items():
            self._beats.begin(keeper, partial(self._extend_all, keeper, held, began_at))

    def watch(self) -> None:
        """Report claims that were not extended in time."""
        now, within_seconds = self._clock.monotonic(), self._settings.endangered_seconds
        left_seconds: dict[str, list[float]] = {}
        held = self._held()
        with self._lock:
            # A claim that is seen for the first time was taken a moment ago.
            self._ends_at = {claim: self._ends_at.get(claim, now + self._settings.lease_seconds) for _, claim in held}
            for claimed, claim in held:
                if self._ends_at[claim] - now < within_seconds:
                    left_seconds.setdefault(claimed.queue, []).append(self._ends_at[claim] - now)
        for queue, left in left_seconds.items():
            self._bus.emit(
                LeasesEndangered(queue=queue, held="claims", count=len(left), seconds_left=max(min(left), 0.0))
            )

    def _held(self) -> Sequence[Holding]:
        held: list[Holding] = []
        for claimed in self._claims():
            try:
                claim = claimed.claim()
            except ClaimLost:
                claimed.lose()
                continue
            if claim is not None:
                held.append((claimed, claim))
        return held

    def _extend_all(self, keeper: ClaimKeeper, held: Sequence[Holding], began_at: float) -> None:
        """Extend claims. Calls that fail are repeated until the time of a beat is over, up to `TRIES` times in all."""
        ends_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        with self._lock:
            waiting = sorted(held, key=lambda holding: self._ends_at.get(holding[1], math.inf))
        for left in reversed(range(TRIES)):
            failed: list[Holding] = []
            while waiting:
                size = self._sizes.get(keeper, self._settings.settle_max)
                group, waiting = waiting[:size], waiting[size:]
                asked_at = self._clock.monotonic()
                again = self._extend(keeper, group, began_at, last=not left, ends_at=ends_at)
                failed += again
                self._resize(keeper, len(group), self._clock.monotonic() - asked_at, answered=again is not group)
                if self._clock.monotonic() >= ends_at:
                    return
            waiting = failed
            if not waiting or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _resize(self, keeper: ClaimKeeper, count: int, seconds: float, *, answered: bool) -> None:
        """Set the number of claims in the next calls to what the keeper extends well within the bound."""
        size = self._sizes.get(keeper, self._settings.settle_max)
        share = seconds / self._settings.claim_answer_seconds
        before = self._paces.pop(keeper, None)
        size_matters = True
        if answered:
            size_matters = _size_matters(before, count, seconds)
            self._paces[keeper] = _Pace(count=count, seconds=seconds, size_matters=size_matters)
        if share > 1 / 2 and size_matters:
            self._sizes[keeper] = max(min(count, size) // 2, 1)
        elif (share < 1 / 8 or not size_matters) and count == size:
            self._sizes[keeper] = min(2 * size, self._settings.settle_max)

    def _extend(
        self, keeper: ClaimKeeper, group: Sequence[Holding], began_at: float, *, last: bool, ends_at: float
    ) -> Sequence[Holding]:
        """Return what is to be tried again."""
        lease_ends_at = began_at + self._settings.claim_seconds
        try:
            extension = keeper.extend(
                [claim.id for _, claim in group],
                lease_seconds=max(lease_ends_at - self._clock.monotonic(), self._settings.claim_seconds / 2),
                answer_seconds=self._settings.claim_answer_seconds,
            )
        except Exception as error:
            last = last or self._clock.monotonic() >= ends_at
            for queue in dict.fromkeys(claimed.queue for claimed, _ in group):
                self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
            return group
        with self._lock:
            for _, claim in group:
                if claim.id not in extension.lost and claim.id not in extension.late:
                    self._ends_at[claim] = lease_ends_at
        for claimed, claim in group:
            if claim.id in extension.lost and claimed.loses(claim):
                claimed.lose()
        return [(claimed, claim) for claimed, claim in group if claim.id in extension.late]


def _size_matters(before: _Pace | None, count: int, seconds: float) -> bool:
    """Return False if calls are known to take about as long for few claims as for many."""
    if before is None or count == 1:  # fewer than one claim is none
        return count > 1
    if count == before.count:
        return before.size_matters
    fewer_seconds, more_seconds = (before.seconds, seconds) if count > before.count else (seconds, before.seconds)
    return more_seconds > _AS_LONG * fewer_seconds

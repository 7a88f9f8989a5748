"""When failures say something of what a handler stands on, and not of its messages: a breaker. Values in, values out.

Closed: everything runs. Once enough executions in a row failed in the same way (one fingerprint), no message in two of
them and no success in between, it is open: nothing begins for a while, and what fails in that way meanwhile is not the
messages' fault. When the pause is over one message is a probe. If it fails in the same way, the next pause may be
longer; anything else closes the breaker. A probe that does not end is not waited for without end: after a minute
another message is tried beside it, after two more the next, and so on, and whichever succeeds closes the breaker.

What failed in a row is only forgotten after a success. So a breaker that was closed by a message of its own mind (one
that was rejected, say) opens again at the first failure, if the outage is not over.

The breaker of one handler in one worker: the states of `breaker` behind a lock, asked by the worker what may begin
and told by calls how they ended. Other processes have breakers of their own.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from penstock.errors import UsageError
from penstock.events import BreakerClosed, BreakerOpened, Bus
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

PAUSE_BASE_SECONDS = 1.0
FAILURES_DEFAULT = 10
PAUSE_SECONDS_MAX_DEFAULT = 30.0
FINGERPRINTS_MAX = 16  # that are counted at once; the ones met longest ago are forgotten
AWAY_SECONDS_MAX = 300.0  # for which one message may stay away beyond the pause
PROBE_SECONDS = 60.0  # for which a probe is the only one; twice as long with each that has not ended
PROBE_SECONDS_MAX = 3_600.0
KIN_MIN = 2  # executions: so many failing in another way, since the last success, belong to the same outage

Groups = tuple[frozenset[str], ...]  # the message ids of executions that have no message in common
Streaks = Mapping[str, Groups]  # by fingerprint, the one met last at the end
NONE: Streaks = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """After how many failures it opens (0: never), and how long it may wait for the next probe: full jitter, growing
    from `PAUSE_BASE_SECONDS`. Raises `UsageError` for numbers that cannot work."""

    failures: int = FAILURES_DEFAULT
    pause_seconds_max: float = PAUSE_SECONDS_MAX_DEFAULT

    def __post_init__(self) -> None:
        if self.failures < 0:
            raise UsageError(f"breaker_failures={self.failures} has to be 0, for never, or more.")
        if not self.pause_seconds_max > 0:
            raise UsageError(f"breaker_probe_seconds_max={self.pause_seconds_max:g} has to be more than 0.")

    def ceiling_seconds(self, probes: int) -> float:
        """The longest pause after that many probes failed."""
        return backoff_seconds(
            attempt=probes + 1, base_seconds=PAUSE_BASE_SECONDS, cap_seconds=self.pause_seconds_max, random=_at_most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFailure:
    """One execution's failure. ``message_ids`` and ``receipts`` are of all its deliveries."""

    fingerprint: str
    error: str
    message_ids: frozenset[str]
    receipts: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedState:
    """All is well, or nearly so."""

    streaks: Streaks = field(default_factory=lambda: NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenState:
    """Nothing begins before ``until`` (monotonic, as all times), and then one execution at a time: the ``probe``, and
    after ``overdue_at`` the next one, beside those that are overdue."""

    streaks: Streaks
    fingerprint: str  # that opened it
    error: str
    failures: int  # in a row, with it
    opened_at: float
    until: float
    probes: int = 0  # that failed
    probe: frozenset[str] | None = None  # the receipts of what is being tried
    overdue_at: float = 0.0  # when it has been tried for so long that it is not the only one any more
    overdue: Groups = ()  # the receipts of those that are; the ends of each still count, but for its failures

    def explains(self, fingerprint: str) -> bool:
        """Whether failures of that kind are the outage's: those that opened it, and others that came with them, since
        what is down may refuse some calls and let others hang."""
        return fingerprint == self.fingerprint or len(self.streaks.get(fingerprint, ())) >= KIN_MIN


State = ClosedState | OpenState
CALM = ClosedState()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerDecision:
    """What a failure comes to; ``excused``: it is the outage's and not the message's."""

    state: State
    excused: bool


def failed(
    state: State, fault: BreakerFailure, *, policy: BreakerPolicy, now: float, random: Random
) -> BreakerDecision:
    """The function raised, or ran out of time."""
    if policy.failures == 0:
        return BreakerDecision(state=state, excused=False)
    streaks = _counted(state.streaks, fault, groups_max=max(policy.failures, KIN_MIN))
    if isinstance(state, OpenState):
        return _failed_while_open(replace(state, streaks=streaks), fault, policy=policy, now=now, random=random)
    count = len(streaks[fault.fingerprint])
    if count < policy.failures:
        return BreakerDecision(state=ClosedState(streaks=streaks), excused=False)
    opened = OpenState(
        streaks=streaks,
        fingerprint=fault.fingerprint,
        error=fault.error,
        failures=count,
        opened_at=now,
        until=now + policy.ceiling_seconds(0) * random(),
    )
    return BreakerDecision(state=opened, excused=True)


def succeeded(state: State, receipts: frozenset[str]) -> State:
    """The function returned. While open that is news of a probe alone: others may have been served long ago."""
    return state if isinstance(state, OpenState) and not is_probe(state, receipts) else CALM


def answered(state: State, receipts: frozenset[str]) -> State:
    """The function ended with a word about its message alone: rejected, or to be tried at a time it names."""
    return ClosedState(streaks=state.streaks) if isinstance(state, OpenState) and is_probe(state, receipts) else state


def left(state: State, receipts: frozenset[str]) -> State:
    """The execution ended without having called the function, or was broken off: another one may be the probe."""
    return _without(state, receipts) if isinstance(state, OpenState) else state


def began(state: State, receipts: frozenset[str], *, now: float) -> State:
    """An execution begins: it is the probe, if one is due."""
    if not isinstance(state, OpenState) or not admits(state, now=now):
        return state
    overdue = state.overdue if state.probe is None else (*state.overdue, state.probe)
    alone_seconds = backoff_seconds(
        attempt=len(overdue) + 1, base_seconds=PROBE_SECONDS, cap_seconds=PROBE_SECONDS_MAX, random=_at_most
    )
    return replace(state, probe=receipts, overdue_at=now + alone_seconds, overdue=overdue)


def admits(state: State, *, now: float) -> int | None:
    """How many messages may be at hand for what begins next; None: any number."""
    if isinstance(state, ClosedState):
        return None
    return 1 if now >= _next_at(state) else 0


def opens_at(state: State, *, now: float) -> float | None:
    """When a probe may begin; None where that is not a matter of time."""
    return _next_at(state) if isinstance(state, OpenState) and now < _next_at(state) else None


def is_probe(state: OpenState, receipts: frozenset[str]) -> bool:
    """Whether that is what is being tried, however long."""
    return any(not tried.isdisjoint(receipts) for tried in (*state.overdue, state.probe or frozenset()))


def delay_seconds(state: State, *, policy: BreakerPolicy, now: float, random: Random, tries: int = 1) -> float:
    """How long what was excused stays away: somewhat beyond the pause, so that another message is the next probe; and
    twice as long with each of its ``tries``, or a few that always fail, at the head of their queue, would be the probe
    in turns and those behind them never."""
    rest_seconds = max(state.until - now, 0.0) if isinstance(state, OpenState) else 0.0
    probes = state.probes if isinstance(state, OpenState) else 0
    away_seconds = policy.ceiling_seconds(probes) * 2.0 ** (min(max(tries, 1), 16) - 1)
    return rest_seconds + min(away_seconds, AWAY_SECONDS_MAX) * (1.0 + random()) / 2.0


class TriedMessages:
    """Which messages were tried while the breaker is open, so that each probe is a message that was not, if there is
    one. Else some that fail for a reason of their own, at the head of their queue, would be tried again and again, and
    those behind them never.

    Whether there is one shows when a tried message is passed over: another comes, or that one again.
    """

    def __init__(self, *, messages_max: int = 10_000) -> None:
        self._messages_max = messages_max
        self._passed_at: dict[str, int | None] = {}  # by message id: how many there were when it was passed over
        self._tries: dict[str, int] = {}  # of the same

    def add(self, message_ids: frozenset[str]) -> None:
        """These were tried, in vain."""
        for message_id in message_ids:
            self._passed_at.pop(message_id, None)
            self._passed_at[message_id] = None
            self._tries[message_id] = self._tries.get(message_id, 0) + 1
        while len(self._passed_at) > self._messages_max:
            oldest = next(iter(self._passed_at))
            del self._passed_at[oldest], self._tries[oldest]

    def tries(self, message_ids: frozenset[str]) -> int:
        """How often one of these was tried, at most; 0: none was."""
        return max((self._tries.get(message_id, 0) for message_id in message_ids), default=0)

    def passes_over(self, message_id: str) -> bool:
        """Whether to look for another message first."""
        if message_id not in self._passed_at:
            return False
        count = len(self._passed_at)
        if self._passed_at[message_id] == count:  # and no other was found since
            return False
        self._passed_at[message_id] = count
        return True


def _next_at(state: OpenState) -> float:
    """When the next probe may begin."""
    return state.until if state.probe is None else state.overdue_at


def _without(state: OpenState, receipts: frozenset[str]) -> OpenState:
    """The same without this probe."""
    overdue = tuple(tried for tried in state.overdue if tried.isdisjoint(receipts))
    ended = state.probe is not None and not state.probe.isdisjoint(receipts)
    return replace(state, probe=None if ended else state.probe, overdue=overdue)


def _failed_while_open(
    state: OpenState, fault: BreakerFailure, *, policy: BreakerPolicy, now: float, random: Random
) -> BreakerDecision:
    probing, same = is_probe(state, fault.receipts), state.explains(fault.fingerprint)
    if not probing:
        return BreakerDecision(state=state, excused=same)
    if not same:  # so the outage is over, unless the next failure says otherwise
        return failed(ClosedState(streaks=state.streaks), fault, policy=policy, now=now, random=random)
    rest = _without(state, fault.receipts)
    if rest.overdue != state.overdue:  # the pause is that of those that answer in time
        return BreakerDecision(state=rest, excused=True)
    pause_seconds = policy.ceiling_seconds(state.probes + 1) * random()
    return BreakerDecision(state=replace(rest, probes=state.probes + 1, until=now + pause_seconds), excused=True)


def _counted(streaks: Streaks, fault: BreakerFailure, *, groups_max: int) -> Streaks:
    groups = streaks.get(fault.fingerprint, ())
    if groups and groups[-1] == fault.message_ids:  # a batch tells of each of its messages
        return streaks
    apart = (*(group for group in groups if group.isdisjoint(fault.message_ids)), fault.message_ids)
    others = [(name, other) for name, other in streaks.items() if name != fault.fingerprint]
    return MappingProxyType({**dict(others[-FINGERPRINTS_MAX + 1 :]), fault.fingerprint: apart[-groups_max:]})


def _at_most() -> float:
    return 1.0


OFF = BreakerPolicy(failures=0)


@dataclass(frozen=True)  # without slots: the sets are made when they are asked for, which is seldom
class ExecutionDeliveries:
    """The deliveries of one execution: they are tried together and may fail together."""

    deliveries: Sequence[Delivery]

    @cached_property
    def message_ids(self) -> frozenset[str]:
        """What tells messages apart, over all their deliveries."""
        return frozenset(delivery.message.id for delivery in self.deliveries)

    @cached_property
    def receipts(self) -> frozenset[str]:
        """What tells these deliveries from all others."""
        return frozenset(delivery.receipt for delivery in self.deliveries)


class LineBreaker:
    """A `penstock.worker.line.Gate` for the worker, and what calls tell of themselves. Any thread may call it.

    ``refunds``: whether a release can give the attempt back. Where none can, a message may have lost its attempts to an
    outage, so `spares` has to be asked before it is given up on for them.
    """

    def __init__(
        self,
        policy: BreakerPolicy,
        *,
        queue: str,
        handler: str,
        bus: Bus,
        clock: Clock,
        random: Random,
        refunds: bool = True,
    ) -> None:
        self._policy = policy
        self._queue = queue
        self._handler = handler
        self._bus = bus
        self._clock = clock
        self._random = random
        self._refunds = refunds
        self._lock = threading.Lock()
        self._state: State = CALM  # this and the rest: written under the lock
        self._tried = TriedMessages()
        self._closed_at: float | None = None  # epoch seconds; the last time

    # -- by the worker -------------------------------------------------------------------------------------------

    def admits(self) -> int | None:
        """How many messages may be at hand for what begins next; None: any number."""
        state = self._state
        return None if isinstance(state, ClosedState) else admits(state, now=self._clock.monotonic())

    def opens_at(self) -> float | None:
        """When it admits one without anybody's doing (monotonic)."""
        state = self._state
        return None if isinstance(state, ClosedState) else opens_at(state, now=self._clock.monotonic())

    def put_back_seconds(self) -> float:
        """What nobody began is for other workers, whose breakers may be closed."""
        return 0.0

    # -- by the handler and its calls ----------------------------------------------------------------------------

    def begins(self, deliveries: Sequence[Delivery]) -> None:
        """An execution of these is about to begin."""
        if not self._closed:
            now = self._clock.monotonic()
            self._change(lambda state: began(state, ExecutionDeliveries(deliveries).receipts, now=now))

    def holds_back(self, party: ExecutionDeliveries) -> float | None:
        """Asked before the function is called: for how many seconds to put the message back instead; None: call.

        That is for what began just before the breaker opened, and for a probe that was tried before.
        """
        if self._closed:
            return None
        with self._lock:
            state = self._state
            if isinstance(state, ClosedState):
                return None
            if not is_probe(state, party.receipts):
                return 0.0
            tried = any(self._tried.passes_over(delivery.message.id) for delivery in party.deliveries)
            # Where each look costs an attempt the broker's order has to do: it is no order, or nearly none.
            return self._delay_seconds(party.message_ids) if tried and self._refunds else None

    def spares(self, delivery: Delivery) -> bool:
        """Whether its attempts may have gone to an outage, so that their number says nothing."""
        if self._refunds:
            return False
        closed_at = self._closed_at
        return isinstance(self._state, OpenState) or (
            closed_at is not None and delivery.message.enqueued_at <= closed_at
        )

    def succeeded(self, party: ExecutionDeliveries) -> None:
        """The function returned."""
        if self._state is not CALM:
            self._change(lambda state: succeeded(state, party.receipts))

    def answered(self, party: ExecutionDeliveries) -> None:
        """The function ended with a word about its message alone."""
        if not self._closed:
            self._change(lambda state: answered(state, party.receipts))

    def left(self, party: ExecutionDeliveries) -> None:
        """The execution ended without a word of what the handler stands on."""
        if not self._closed:
            self._change(lambda state: left(state, party.receipts))

    def failed(self, party: ExecutionDeliveries, *, fingerprint: str, error: str) -> float | None:
        """The function raised or ran out of time. Where that is the outage's failure and not the message's: for how
        many seconds to put the message back, uncharged."""
        fault = BreakerFailure(
            fingerprint=fingerprint, error=error, message_ids=party.message_ids, receipts=party.receipts
        )
        now, delay_seconds = self._clock.monotonic(), None
        with self._lock:
            before = self._state
            verdict = failed(before, fault, policy=self._policy, now=now, random=self._random)
            self._become(verdict.state)
            if verdict.excused:
                self._tried.add(fault.message_ids)
                delay_seconds = self._delay_seconds(party.message_ids)
        self._tell(before, verdict.state)
        return delay_seconds

    @property
    def is_on(self) -> bool:
        """Whether it ever opens."""
        return self._policy.failures > 0

    @property
    def _closed(self) -> bool:
        return isinstance(self._state, ClosedState)

    def _change(self, step: Callable[[State], State]) -> None:
        """Take the step, and tell of it afterwards."""
        with self._lock:
            before = self._state
            self._become(step(before))
            after = self._state
        self._tell(before, after)

    def _become(self, after: State) -> None:
        """Under the lock."""
        if isinstance(self._state, OpenState) and isinstance(after, ClosedState):
            self._closed_at = self._clock.now()
            self._tried = TriedMessages()
        if isinstance(self._state, ClosedState) and isinstance(after, OpenState):
            for message_ids in after.streaks[after.fingerprint]:
                self._tried.add(message_ids)
        self._state = after

    def _delay_seconds(self, message_ids: frozenset[str]) -> float:
        return delay_seconds(
            self._state,
            policy=self._policy,
            now=self._clock.monotonic(),
            random=self._random,
            tries=self._tried.tries(message_ids),
        )

    def _tell(self, before: State, after: State) -> None:
        again = (
            isinstance(before, OpenState) and isinstance(after, OpenState) and before.fingerprint != after.fingerprint
        )
        if isinstance(before, OpenState) and (again or isinstance(after, ClosedState)):
            self._bus.emit(
                BreakerClosed(
                    queue=self._queue,
                    handler=self._handler,
                    open_seconds=self._clock.monotonic() - before.opened_at,
                    probes=before.probes + 1,
                )
            )
        if isinstance(after, OpenState) and (again or isinstance(before, ClosedState)):
            self._bus.emit(
                BreakerOpened(
                    queue=self._queue,
                    handler=self._handler,
                    fingerprint=after.fingerprint,
                    failures=after.failures,
                    error=after.error,
                )
            )

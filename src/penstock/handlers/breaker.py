"""Circuit breaker: pause a queue when failures point to a dependency of the handler rather than to its messages.

- The breaker's state machine: pure functions from state to state
- `TriedMessages`: prefers untried messages as probes
- `CircuitBreaker`: the breaker of one handler in one worker, the state machine behind a lock. The worker reads from it
  how many messages it may hold, and calls report their results to it. Each process has its own breakers.

Closed: everything runs. The breaker opens after enough consecutive executions failed in the same way (one fingerprint),
with no message in two of them and no success in between. While it is open, nothing begins for a pause, and failures
with that fingerprint are not blamed on their messages. After the pause, one message is a probe. If it fails in the same
way, the next pause may be longer; any other result closes the breaker. A probe that does not end does not block the
queue: after one minute another message is tried in parallel, after two more the next, and so on. The first success
closes the breaker.

Only a success resets the counts of consecutive failures. A breaker closed by a message that failed on its own account
(rejected, for example) thus opens again at the first failure, if the outage is not over.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from penstock.errors import UsageError
from penstock.events import BreakerClosed, BreakerOpened, Bus
from penstock.messaging.backoff import Random, ceiling_seconds, upper_half
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

PAUSE_BASE_SECONDS = 1.0
FAILURES_DEFAULT = 10
PAUSE_SECONDS_MAX_DEFAULT = 30.0
FINGERPRINTS_MAX = 16  # fingerprints counted at the same time; the least recently seen are dropped
EXTRA_SECONDS_MAX = 300.0  # the maximum delay of one message beyond the pause
PROBE_SECONDS = 60.0  # how long a probe runs alone; doubled for each probe that has not ended
PROBE_SECONDS_MAX = 3_600.0
RELATED_MIN = 2  # this many executions that failed in another way since the last success belong to the same outage

Groups = tuple[frozenset[str], ...]  # the message ids of executions that have no message in common
Streaks = Mapping[str, Groups]  # by fingerprint, the last seen at the end
NONE: Streaks = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """The settings of a breaker: when it opens, and how long it waits between probes.

    It opens after ``failures`` failures (0: never). The pause before the next probe grows exponentially from
    `PAUSE_BASE_SECONDS` up to ``pause_seconds_max``, with full jitter. Raises `UsageError` for numbers out of range.
    """

    failures: int = FAILURES_DEFAULT
    pause_seconds_max: float = PAUSE_SECONDS_MAX_DEFAULT

    def __post_init__(self) -> None:
        if self.failures < 0:
            raise UsageError(f"breaker_failures={self.failures} has to be 0 or more; 0 means never.")
        if not self.pause_seconds_max > 0:
            raise UsageError(f"breaker_probe_seconds_max={self.pause_seconds_max:g} has to be more than 0.")

    def ceiling_seconds(self, probes: int) -> float:
        """Return the maximum pause after this many failed probes."""
        return ceiling_seconds(attempt=probes + 1, base_seconds=PAUSE_BASE_SECONDS, cap_seconds=self.pause_seconds_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFailure:
    """The failure of one execution. ``message_ids`` and ``receipts`` cover all its deliveries."""

    fingerprint: str
    error: str
    message_ids: frozenset[str]
    receipts: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedState:
    """The breaker is closed; ``streaks`` counts recent failures."""

    streaks: Streaks = field(default_factory=lambda: NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenState:
    """The breaker is open: nothing begins before ``until`` (monotonic, as all times), then one execution at a time.

    That execution is the ``probe``. After ``overdue_at`` the next probe runs beside those that are overdue.
    """

    streaks: Streaks
    fingerprint: str  # the one that opened it
    error: str
    failures: int  # consecutive failures with this fingerprint
    opened_at: float
    until: float
    probes: int = 0  # failed probes
    probe: frozenset[str] | None = None  # the receipt handles of the current probe
    overdue_at: float = 0.0  # when the probe is overdue and another one may begin
    # The receipt handles of overdue probes; their results still count, except that failures do not extend the pause.
    overdue: Groups = ()

    def explains(self, fingerprint: str) -> bool:
        """Return True if failures with this fingerprint belong to the outage.

        These are the failures that opened the breaker and others that occurred with them: a dependency that is down may
        refuse some calls and let others hang.
        """
        return fingerprint == self.fingerprint or len(self.streaks.get(fingerprint, ())) >= RELATED_MIN


State = ClosedState | OpenState
CALM = ClosedState()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerDecision:
    """The result of a failure. ``excused``: the outage caused it, not the message."""

    state: State
    excused: bool


def failed(
    state: State, fault: BreakerFailure, *, policy: BreakerPolicy, now: float, random: Random
) -> BreakerDecision:
    """Return the state after a function raised or timed out, and whether the message is excused."""
    if policy.failures == 0:
        return BreakerDecision(state=state, excused=False)
    streaks = _counted(state.streaks, fault, groups_max=max(policy.failures, RELATED_MIN))
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
    """Return the state after a function returned. While open, only a probe counts: others may have run long before."""
    return state if isinstance(state, OpenState) and not is_probe(state, receipts) else CALM


def decided(state: State, receipts: frozenset[str]) -> State:
    """Return the state after a result that concerns the message alone: rejected, or a retry with its own delay."""
    return ClosedState(streaks=state.streaks) if isinstance(state, OpenState) and is_probe(state, receipts) else state


def left(state: State, receipts: frozenset[str]) -> State:
    """Return the state after an execution ended early or without calling the function: another may be the probe."""
    return _without(state, receipts) if isinstance(state, OpenState) else state


def began(state: State, receipts: frozenset[str], *, now: float) -> State:
    """Return the state after an execution begins: it is the probe, if one is due."""
    if not isinstance(state, OpenState) or not admits(state, now=now):
        return state
    overdue = state.overdue if state.probe is None else (*state.overdue, state.probe)
    alone_seconds = ceiling_seconds(attempt=len(overdue) + 1, base_seconds=PROBE_SECONDS, cap_seconds=PROBE_SECONDS_MAX)
    return replace(state, probe=receipts, overdue_at=now + alone_seconds, overdue=overdue)


def admits(state: State, *, now: float) -> int | None:
    """Return how many messages may be held for the next execution; None for no limit."""
    if isinstance(state, ClosedState):
        return None
    return 1 if now >= _next_at(state) else 0


def opens_at(state: State, *, now: float) -> float | None:
    """Return when a probe may begin; None if that does not depend on time."""
    return _next_at(state) if isinstance(state, OpenState) and now < _next_at(state) else None


def is_probe(state: OpenState, receipts: frozenset[str]) -> bool:
    """Return True if these deliveries are a probe, overdue or not."""
    return any(not tried.isdisjoint(receipts) for tried in (*state.overdue, state.probe or frozenset()))


def delay_seconds(state: State, *, policy: BreakerPolicy, now: float, random: Random, tries: int = 1) -> float:
    """Return the seconds by which to delay an excused message.

    The delay exceeds the pause, so that another message is the next probe, and doubles with each of the message's
    ``tries``. Otherwise a few messages that always fail, at the head of their queue, would take turns as the probe, and
    the messages behind them would never be tried.
    """
    rest_seconds = max(state.until - now, 0.0) if isinstance(state, OpenState) else 0.0
    probes = state.probes if isinstance(state, OpenState) else 0
    extra_seconds = ceiling_seconds(
        attempt=tries, base_seconds=policy.ceiling_seconds(probes), cap_seconds=EXTRA_SECONDS_MAX
    )
    return rest_seconds + upper_half(extra_seconds, random)


class TriedMessages:
    """The messages tried while a breaker is open, so that each probe is an untried message if the queue has one.

    Owned by a `CircuitBreaker`, which calls it under its lock.

    Otherwise messages that fail for their own reasons, at the head of their queue, would be tried again and again, and
    the messages behind them never. The only way to find out if the queue has an untried message is to pass over a tried
    one: then either another message is received, or the same one again.
    """

    def __init__(self, *, messages_max: int = 10_000) -> None:
        self._messages_max = messages_max
        # By message id: the number of tried messages when it was passed over.
        self._passed_at: dict[str, int | None] = {}
        self._tries: dict[str, int] = {}  # number of tries of the same messages

    def add(self, message_ids: frozenset[str]) -> None:
        """Record that these messages were tried and failed."""
        for message_id in message_ids:
            self._passed_at.pop(message_id, None)
            self._passed_at[message_id] = None
            self._tries[message_id] = self._tries.get(message_id, 0) + 1
        while len(self._passed_at) > self._messages_max:
            oldest = next(iter(self._passed_at))
            del self._passed_at[oldest], self._tries[oldest]

    def tries(self, message_ids: frozenset[str]) -> int:
        """Return the highest number of tries of any of these messages; 0 if none was tried."""
        return max((self._tries.get(message_id, 0) for message_id in message_ids), default=0)

    def pass_over(self, message_id: str) -> bool:
        """Record that a message is passed over and return True, if another message should be tried first."""
        if message_id not in self._passed_at:
            return False
        count = len(self._passed_at)
        if self._passed_at[message_id] == count:  # and no untried message was found since
            return False
        self._passed_at[message_id] = count
        return True


def _next_at(state: OpenState) -> float:
    """Return when the next probe may begin."""
    return state.until if state.probe is None else state.overdue_at


def _without(state: OpenState, receipts: frozenset[str]) -> OpenState:
    """Return the state without this probe."""
    overdue = tuple(tried for tried in state.overdue if tried.isdisjoint(receipts))
    ended = state.probe is not None and not state.probe.isdisjoint(receipts)
    return replace(state, probe=None if ended else state.probe, overdue=overdue)


def _failed_while_open(
    state: OpenState, fault: BreakerFailure, *, policy: BreakerPolicy, now: float, random: Random
) -> BreakerDecision:
    probing, same = is_probe(state, fault.receipts), state.explains(fault.fingerprint)
    if not probing:
        return BreakerDecision(state=state, excused=same)
    if not same:  # so the outage is over, unless the next failure shows otherwise
        return failed(ClosedState(streaks=state.streaks), fault, policy=policy, now=now, random=random)
    rest = _without(state, fault.receipts)
    if rest.overdue != state.overdue:  # an overdue probe does not extend the pause
        return BreakerDecision(state=rest, excused=True)
    pause_seconds = policy.ceiling_seconds(state.probes + 1) * random()
    return BreakerDecision(state=replace(rest, probes=state.probes + 1, until=now + pause_seconds), excused=True)


def _counted(streaks: Streaks, fault: BreakerFailure, *, groups_max: int) -> Streaks:
    groups = streaks.get(fault.fingerprint, ())
    if groups and groups[-1] == fault.message_ids:  # a batch reports each of its messages
        return streaks
    apart = (*(group for group in groups if group.isdisjoint(fault.message_ids)), fault.message_ids)
    others = [(name, other) for name, other in streaks.items() if name != fault.fingerprint]
    return MappingProxyType({**dict(others[-FINGERPRINTS_MAX + 1 :]), fault.fingerprint: apart[-groups_max:]})


OFF = BreakerPolicy(failures=0)


class ExecutionDeliveries:
    """The deliveries of one execution, which are tried together and may fail together.

    Every execution has one, so it is a plain class, and the sets are made when they are needed, which is rare.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries = deliveries

    @cached_property
    def message_ids(self) -> frozenset[str]:
        """The ids of the messages, the same in each delivery of a message."""
        return frozenset(delivery.message.id for delivery in self.deliveries)

    @cached_property
    def receipts(self) -> frozenset[str]:
        """The receipt handles, unique to these deliveries."""
        return frozenset(delivery.receipt for delivery in self.deliveries)


class CircuitBreaker:
    """The circuit breaker of one handler in one worker: a `penstock.worker.consumer.Gate` of its queue. Thread-safe.

    The worker reads it as a gate; the handler's calls report their results to it. ``releases_uncounted``: True if the
    broker can release a message without counting an attempt. If it cannot, an outage may use up a message's attempts,
    so call `is_excused` before dead-lettering a message for its number of attempts.
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
        releases_uncounted: bool = True,
    ) -> None:
        self._policy = policy
        self._queue = queue
        self._handler = handler
        self._bus = bus
        self._clock = clock
        self._random = random
        self._releases_uncounted = releases_uncounted
        self._lock = threading.Lock()
        self._state: State = CALM  # this and the rest: written under the lock
        self._tried = TriedMessages()
        self._closed_at: float | None = None  # epoch seconds; last time it closed

    # -- called by the worker --------------------------------------------------------------------------------------

    def admits(self) -> int | None:
        """Return how many messages may be held for the next execution; None for no limit."""
        state = self._state
        return None if isinstance(state, ClosedState) else admits(state, now=self._clock.monotonic())

    def opens_at(self) -> float | None:
        """Return when the next probe may begin (monotonic); None if that does not depend on time."""
        state = self._state
        return None if isinstance(state, ClosedState) else opens_at(state, now=self._clock.monotonic())

    def release_delay_seconds(self) -> float:
        """Return 0: messages not begun go to other workers at once, whose breakers may be closed."""
        return 0.0

    # -- called by the handler and its calls -----------------------------------------------------------------------

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        """Record that an execution of these deliveries is about to begin."""
        if not self._closed:
            now = self._clock.monotonic()
            self._change(lambda state: began(state, ExecutionDeliveries(deliveries).receipts, now=now))

    def decide_release_seconds(self, together: ExecutionDeliveries) -> float | None:
        """Return the seconds for which to release the message instead of calling the function; None to call it.

        This stops executions that began just before the breaker opened, and probes of messages tried before.
        """
        if self._closed:
            return None
        with self._lock:
            state = self._state
            if isinstance(state, ClosedState):
                return None
            if not is_probe(state, together.receipts):
                return 0.0
            tried = any(self._tried.pass_over(delivery.message.id) for delivery in together.deliveries)
            # If each receive counts as an attempt, passing over would use attempts up. Brokers that count this way
            # hardly keep an order, so another message follows anyway.
            return self._delay_seconds(together.message_ids) if tried and self._releases_uncounted else None

    def is_excused(self, delivery: Delivery) -> bool:
        """Return True if an outage may have used up attempts of the message, so that their number means nothing."""
        if self._releases_uncounted:
            return False
        closed_at = self._closed_at
        return isinstance(self._state, OpenState) or (
            closed_at is not None and delivery.message.enqueued_at <= closed_at
        )

    def record_success(self, together: ExecutionDeliveries) -> None:
        """Record that the function returned."""
        if self._state is not CALM:
            self._change(lambda state: succeeded(state, together.receipts))

    def record_decided(self, together: ExecutionDeliveries) -> None:
        """Record a result that concerns the message alone."""
        if not self._closed:
            self._change(lambda state: decided(state, together.receipts))

    def skip(self, together: ExecutionDeliveries) -> None:
        """Record that the execution ended without a result for the breaker."""
        if not self._closed:
            self._change(lambda state: left(state, together.receipts))

    def record_failure(self, together: ExecutionDeliveries, *, fingerprint: str, error: str) -> float | None:
        """Record that the function raised or timed out.

        If the outage caused the failure, return the seconds for which to release the message without counting an
        attempt.
        """
        fault = BreakerFailure(
            fingerprint=fingerprint, error=error, message_ids=together.message_ids, receipts=together.receipts
        )
        now, delay_seconds = self._clock.monotonic(), None
        with self._lock:
            before = self._state
            decision = failed(before, fault, policy=self._policy, now=now, random=self._random)
            self._enter(decision.state)
            if decision.excused:
                self._tried.add(fault.message_ids)
                delay_seconds = self._delay_seconds(together.message_ids)
        self._emit_change(before, decision.state)
        return delay_seconds

    @property
    def is_on(self) -> bool:
        """Return True if the breaker can open."""
        return self._policy.failures > 0

    @property
    def _closed(self) -> bool:
        return isinstance(self._state, ClosedState)

    def _change(self, step: Callable[[State], State]) -> None:
        """Apply a step, then emit the change."""
        with self._lock:
            before = self._state
            self._enter(step(before))
            after = self._state
        self._emit_change(before, after)

    def _enter(self, after: State) -> None:
        """Set the state. Call under the lock."""
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

    def _emit_change(self, before: State, after: State) -> None:
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

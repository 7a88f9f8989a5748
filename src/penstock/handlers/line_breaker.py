"""The breaker of one handler in one worker: the states of `breaker` behind a lock, asked by the worker what may begin
and told by calls how they ended. Other processes have breakers of their own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.events import BreakerClosed, BreakerOpened, Bus
from penstock.handlers import breaker
from penstock.handlers.breaker import CALM, BreakerPolicy, Closed, Fault, Open, State, Tried
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.waits import Random

OFF = BreakerPolicy(failures=0)


@dataclass(frozen=True)  # without slots: the sets are made when they are asked for, which is seldom
class Party:
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
        self._tried = Tried()
        self._closed_at: float | None = None  # epoch seconds; the last time

    # -- by the worker -------------------------------------------------------------------------------------------

    def admits(self) -> int | None:
        """How many messages may be at hand for what begins next; None: any number."""
        state = self._state
        return None if isinstance(state, Closed) else breaker.admits(state, now=self._clock.monotonic())

    def opens_at(self) -> float | None:
        """When it admits one without anybody's doing (monotonic)."""
        state = self._state
        return None if isinstance(state, Closed) else breaker.opens_at(state, now=self._clock.monotonic())

    def put_back_seconds(self) -> float:
        """What nobody began is for other workers, whose breakers may be closed."""
        return 0.0

    # -- by the handler and its calls ----------------------------------------------------------------------------

    def begins(self, deliveries: Sequence[Delivery]) -> None:
        """An execution of these is about to begin."""
        if not self._closed:
            now = self._clock.monotonic()
            self._change(lambda state: breaker.began(state, Party(deliveries).receipts, now=now))

    def holds_back(self, party: Party) -> float | None:
        """Asked before the function is called: for how many seconds to put the message back instead; None: call.

        That is for what began just before the breaker opened, and for a probe that was tried before.
        """
        if self._closed:
            return None
        with self._lock:
            state = self._state
            if isinstance(state, Closed):
                return None
            if not breaker.is_probe(state, party.receipts):
                return 0.0
            tried = any(self._tried.passes_over(delivery.message.id) for delivery in party.deliveries)
            # Where each look costs an attempt the broker's order has to do: it is no order, or nearly none.
            return self._delay_seconds(party.message_ids) if tried and self._refunds else None

    def spares(self, delivery: Delivery) -> bool:
        """Whether its attempts may have gone to an outage, so that their number says nothing."""
        if self._refunds:
            return False
        closed_at = self._closed_at
        return isinstance(self._state, Open) or (closed_at is not None and delivery.message.enqueued_at <= closed_at)

    def succeeded(self, party: Party) -> None:
        """The function returned."""
        if self._state is not CALM:
            self._change(lambda state: breaker.succeeded(state, party.receipts))

    def answered(self, party: Party) -> None:
        """The function ended with a word about its message alone."""
        if not self._closed:
            self._change(lambda state: breaker.answered(state, party.receipts))

    def left(self, party: Party) -> None:
        """The execution ended without a word of what the handler stands on."""
        if not self._closed:
            self._change(lambda state: breaker.left(state, party.receipts))

    def failed(self, party: Party, *, fingerprint: str, error: str) -> float | None:
        """The function raised or ran out of time. Where that is the outage's failure and not the message's: for how
        many seconds to put the message back, uncharged."""
        fault = Fault(fingerprint=fingerprint, error=error, message_ids=party.message_ids, receipts=party.receipts)
        now, delay_seconds = self._clock.monotonic(), None
        with self._lock:
            before = self._state
            verdict = breaker.failed(before, fault, policy=self._policy, now=now, random=self._random)
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
        return isinstance(self._state, Closed)

    def _change(self, step: Callable[[State], State]) -> None:
        """Take the step, and tell of it afterwards."""
        with self._lock:
            before = self._state
            self._become(step(before))
            after = self._state
        self._tell(before, after)

    def _become(self, after: State) -> None:
        """Under the lock."""
        if isinstance(self._state, Open) and isinstance(after, Closed):
            self._closed_at = self._clock.now()
            self._tried = Tried()
        if isinstance(self._state, Closed) and isinstance(after, Open):
            for message_ids in after.streaks[after.fingerprint]:
                self._tried.add(message_ids)
        self._state = after

    def _delay_seconds(self, message_ids: frozenset[str]) -> float:
        return breaker.delay_seconds(
            self._state,
            policy=self._policy,
            now=self._clock.monotonic(),
            random=self._random,
            tries=self._tried.tries(message_ids),
        )

    def _tell(self, before: State, after: State) -> None:
        again = isinstance(before, Open) and isinstance(after, Open) and before.fingerprint != after.fingerprint
        if isinstance(before, Open) and (again or isinstance(after, Closed)):
            self._bus.emit(
                BreakerClosed(
                    queue=self._queue,
                    handler=self._handler,
                    open_seconds=self._clock.monotonic() - before.opened_at,
                    probes=before.probes + 1,
                )
            )
        if isinstance(after, Open) and (again or isinstance(before, Closed)):
            self._bus.emit(
                BreakerOpened(
                    queue=self._queue,
                    handler=self._handler,
                    fingerprint=after.fingerprint,
                    failures=after.failures,
                    error=after.error,
                )
            )

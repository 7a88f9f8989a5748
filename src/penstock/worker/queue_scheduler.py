"""Schedule polls: which queues to poll, in which order, and how long to leave empty or failing queues alone.

- `Rotation`: weighted fair order of the consumers
- `ServedConsumer`: the runtime state of one consumer
- `QueueScheduler`: the polls of all consumers
- `ArrivalFlag`: the broker's signal that messages arrived, which ends the rest of an idle worker

The order is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Each consumer has a virtual time, which each
of its messages advances by 1/weight; the one furthest behind is polled first. Consumers whose queues are always full
thus get messages in proportion to their weights, regardless of the size of a receive. An empty queue does not save up
turns: when it has messages again, its time starts at that of the others.
"""

import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass

from penstock.errors import UserError
from penstock.events import Bus, ReceiveFailed
from penstock.messaging.backoff import Random, idle_seconds
from penstock.messaging.broker import Broker, Listening, ReceiveRequest, TurnResult
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.worker.consumer import Consumer
from penstock.worker.executor import Executor
from penstock.worker.jobs import BackgroundJob
from penstock.worker.prefetch import PrefetchBuffer
from penstock.worker.settings import WorkerSettings


class Rotation:
    """The weighted order of one worker's consumers, by index. Used by the I/O thread only."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = tuple(weights)
        self._times = [0.0] * len(self._weights)
        self._busy = [False] * len(self._weights)
        self._now = 0.0  # never decreases: the virtual time at which the last turn began
        self._turn = 0
        self._last_turns = [0] * len(self._weights)

    def order(self) -> Sequence[int]:
        """Return the consumers in the order to poll them; among equals, the least recently served first."""
        return sorted(
            range(len(self._weights)), key=lambda consumer: (self._times[consumer], self._last_turns[consumer])
        )

    def skip(self, consumer: int) -> None:
        """Record that a consumer had no messages, or no room for them."""
        self._busy[consumer] = False

    def advance(self, consumer: int, messages: int) -> None:
        """Record that a consumer received this many messages."""
        if not self._busy[consumer]:
            self._times[consumer] = max(self._times[consumer], self._now)
        self._busy[consumer] = True
        self._now = max(self._now, self._times[consumer])
        self._times[consumer] += messages / self._weights[consumer]
        self._turn += 1
        self._last_turns[consumer] = self._turn


@dataclass(slots=True, kw_only=True)
class ServedConsumer:
    """The runtime state of one consumer. The I/O thread writes the mutable fields unless noted."""

    consumer: Consumer
    prefetch: PrefetchBuffer
    executor: Executor
    jobs: Sequence[BackgroundJob]
    poll_at: float  # monotonic: the earliest next poll
    polled_at: float | None = None  # monotonic: last successful poll
    receive_failures: int = 0  # in a row
    may_have_arrivals: bool = False  # an arrival may have been missed since the last poll
    halted: bool = False  # set once, by any thread that meets an error no retry can fix
    started: bool = False  # whether the prerequisite is ready; set once, by `penstock-start`

    @property
    def idle(self) -> bool:
        """Return True if nothing is running or held."""
        return not self.executor.busy and self.prefetch.empty

    @property
    def awaits(self) -> str | None:
        """The prerequisite that is still starting, if any."""
        return None if self.started or self.consumer.start is None else self.consumer.start.awaits

    @property
    def capacity(self) -> int:
        """The number of messages that may still be received."""
        if self.halted or self.awaits is not None:
            return 0
        capacity = self.prefetch.capacity(self.executor.free)
        admitted = None if self.consumer.gate is None else self.consumer.gate.admits()
        # Held messages already count: a batch that waits for more messages must not admit a second probe.
        return capacity if admitted is None else max(min(capacity, admitted - self.prefetch.count), 0)

    @property
    def barred(self) -> bool:
        """Return True if held messages must not begin here: the consumer was halted, or its gate closed."""
        if self.halted or self.consumer.gate is None:
            return self.halted
        admitted = self.consumer.gate.admits()
        return admitted is not None and self.prefetch.count > admitted

    @property
    def release_delay_seconds(self) -> float:
        """Seconds for which barred messages stay invisible."""
        return 0.0 if self.consumer.gate is None else self.consumer.gate.release_delay_seconds()

    @property
    def opens_at(self) -> float | None:
        """The time at which the gate admits more (monotonic), if that depends on time."""
        return None if self.halted or self.consumer.gate is None else self.consumer.gate.opens_at()

    @property
    def polls_early(self) -> bool:
        """Return True if it should be polled before ``poll_at``, because a message may have arrived."""
        return self.may_have_arrivals and not self.receive_failures

    def due_batches(self, now: float) -> Sequence[Sequence[Delivery]]:
        """Return the batches to begin now: several for a consumer that shares slots, else one after any backoff.

        A consumer of few, long runs begins another one beside them only for a full batch: while one runs, a smaller
        batch loses nothing by growing.
        """
        free = self.executor.free
        if free < 1 or now < self.executor.not_before or self.barred:
            return ()
        if self.consumer.shares_slots:
            return self.prefetch.next_batches(free, now)
        return self.prefetch.next_batches(1, now, only_full=self.executor.is_running)


CALM_SECONDS = 0.002  # early polls wait this long after a false alarm: bounds their number, with hardly any delay


class QueueScheduler:
    """The polls of all consumers: which to poll next, and how long to wait. Used by the I/O thread only.

    A poll tries the consumers in rotation order until one has messages. All consumers share one idle wait: it grows
    while none receives anything, and the first message resets it. While other consumers receive messages, an empty
    queue is polled again after the shortest idle wait. A consumer backs off alone if its own receive failed.

    After an arrival was signalled, or may have been missed, a consumer is polled once more before the worker rests,
    regardless of its wait. After a false alarm the next one waits a moment: the arrivals may be for other workers.
    """

    def __init__(
        self, *, consumers: Sequence[ServedConsumer], settings: WorkerSettings, clock: Clock, bus: Bus, random: Random
    ) -> None:
        self._consumers = consumers
        self._rotation = Rotation([served.consumer.weight for served in consumers])
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._idle_seconds = settings.idle_floor_seconds
        # This and the next describe the last poll: consumers by index in rotation order, None for no room.
        self._began_at = 0.0
        self._polled: Sequence[tuple[int, ReceiveRequest | None]] = ()
        self._full: str | None = None  # the queue that filled the request of the last poll
        self._found_empty: Set[str] = frozenset()
        self._signalled = False  # an arrival was signalled, and nothing received since
        self._calm_until = 0.0  # monotonic

    @property
    def full(self) -> str | None:
        """The queue that filled the request of the last poll, so it probably has more messages; None if none did."""
        return self._full

    @property
    def found_empty(self) -> Set[str]:
        """The queues that were empty in the last poll."""
        return self._found_empty

    @property
    def with_capacity(self) -> Set[str]:
        """The queues with room."""
        return frozenset(served.consumer.queue for served in self._consumers if served.capacity > 0)

    def begin_poll(self) -> Sequence[ReceiveRequest]:
        """Return the receive requests of the next poll: consumers that are due, else those with missed arrivals.

        Consumers without room are left out. The caller must report the result with `record`.
        """
        now = self._began_at = self._clock.monotonic()
        capacities = [(index, self._consumers[index].capacity) for index in self._rotation.order()]
        polled = {index for index, capacity in capacities if capacity > 0 and self._consumers[index].poll_at <= now}
        if not polled and self._calm_until <= now:
            polled = {index for index, capacity in capacities if capacity > 0 and self._consumers[index].polls_early}
        self._polled = [
            (index, self._consumers[index].prefetch.request(capacity) if capacity > 0 else None)
            for index, capacity in capacities
            if capacity < 1 or index in polled
        ]
        return [request for _, request in self._polled if request is not None]

    def record(self, turn: TurnResult, *, listened: Set[str]) -> None:
        """Record the result of the requests of `begin_poll`.

        ``listened``: the queues in which arrivals since the poll are signalled. Raises `UserError` if the broker can
        never serve the request.
        """
        empty: list[ServedConsumer] = []
        self._found_empty = frozenset()
        for index, request in self._polled:
            served = self._consumers[index]
            if request is not None and turn.deliveries and turn.deliveries[0].queue == request.queue:
                drained = turn.drained and request.queue in listened
                self._record_received(served, turn, drained=drained)
                self._rotation.advance(index, len(turn.deliveries))
                is_full = len(turn.deliveries) >= request.messages_max and not drained
                self._full = request.queue if is_full else None
                return
            self._rotation.skip(index)
            if request is None:
                continue
            if turn.receive_error is not None and turn.receive_error[0] == request.queue:
                self._record_failure(served, turn.receive_error[1])
                break
            self._record_empty(served, listened=request.queue in listened)
            empty.append(served)
            self._found_empty |= {request.queue}
        if empty:
            self._full = None
            self._extend_idle(empty, turn.next_in_seconds)
            self._check_false_alarm()

    def record_signal(self) -> None:
        """Record a signalled arrival; its queue is unknown."""
        self._signalled = True
        self.suspect_arrivals(besides=frozenset())

    def suspect_arrivals(self, *, besides: Set[str]) -> None:
        """Record that arrivals may have been missed in all queues ``besides`` these."""
        for served in self._consumers:
            if served.consumer.queue not in besides:
                served.may_have_arrivals = True

    def rest_seconds(self) -> float | None:
        """Return the seconds until the next poll; None if no consumer has room."""
        roomy = [served for served in self._consumers if served.capacity > 0]
        poll_at = [min(served.poll_at, self._calm_until) if served.polls_early else served.poll_at for served in roomy]
        return max(min(poll_at) - self._clock.monotonic(), 0.0) if poll_at else None

    def _check_false_alarm(self) -> None:
        """Record a false alarm if all consumers were polled in vain."""
        if self._signalled and not any(served.polls_early and served.capacity > 0 for served in self._consumers):
            self._signalled = False
            self._calm_until = self._clock.monotonic() + CALM_SECONDS

    def _record_received(self, served: ServedConsumer, turn: TurnResult, *, drained: bool) -> None:
        """Record a receive. If it drained its queue, the next poll waits like one after an empty receive."""
        self._signalled, self._calm_until = False, 0.0
        served.receive_failures = 0
        now = served.polled_at = self._clock.monotonic()
        served.prefetch.add(turn.deliveries, now, drained=drained)
        self._reset_idle()
        if drained:
            served.may_have_arrivals = False
            rest_seconds = self._settings.idle_floor_seconds
            if turn.next_in_seconds is not None:
                rest_seconds = min(rest_seconds, max(turn.next_in_seconds, 0.001))
            served.poll_at = now + rest_seconds

    def _record_empty(self, served: ServedConsumer, *, listened: bool) -> None:
        served.receive_failures = 0
        served.may_have_arrivals = served.may_have_arrivals and not listened
        now = served.polled_at = self._clock.monotonic()
        served.prefetch.add((), now)
        served.poll_at = now + self._settings.idle_floor_seconds

    def _record_failure(self, served: ServedConsumer, error: Exception) -> None:
        if isinstance(error, UserError):
            raise error
        served.receive_failures += 1
        self._bus.emit(ReceiveFailed(queue=served.consumer.queue, error=f"{type(error).__name__}: {error}"))
        wait_seconds = self._settings.retry_seconds(served.receive_failures, self._random)
        served.poll_at = self._clock.monotonic() + max(wait_seconds, self._settings.idle_floor_seconds)

    def _reset_idle(self) -> None:
        """Reset the idle waits after a message arrived."""
        if self._idle_seconds == self._settings.idle_floor_seconds:
            return
        self._idle_seconds = self._settings.idle_floor_seconds
        soon = self._clock.monotonic() + self._idle_seconds
        for served in self._consumers:
            if not served.receive_failures:
                served.poll_at = min(served.poll_at, soon)

    def _extend_idle(self, empty: Sequence[ServedConsumer], next_in_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds(
            self._idle_seconds,
            floor_seconds=self._settings.idle_floor_seconds,
            ceiling_seconds=self._settings.idle_ceiling_seconds,
            random=self._random,
        )
        # The time that a poll waited in the broker counts as rest; after a slow response the worker rests a moment.
        now = self._clock.monotonic()
        poll_at = max(self._began_at + self._idle_seconds, now + 0.001)
        # A message that is already due but was not received is no reason to poll sooner.
        if next_in_seconds is not None and next_in_seconds > 0:
            poll_at = min(poll_at, now + max(next_in_seconds, 0.001))
        for served in empty:
            served.poll_at = poll_at


class ArrivalFlag:
    """The signal that messages arrived.

    The I/O thread calls it, except for `_signal`, which a thread of the broker calls.
    """

    def __init__(self, *, broker: Broker, queues: Sequence[str], wake: threading.Event) -> None:
        self._broker = broker
        self._queues = queues
        self._wake = wake
        self._listening: Listening | None = None
        self._wanted: Set[str] = frozenset()  # last requested, and not signalled yet
        self._signalled = False  # set by the broker's thread, unset by the I/O thread

    @property
    def wanted(self) -> Set[str]:
        """The queues in which the next arrival will be, or was, signalled."""
        return self._wanted

    def open(self) -> None:
        """Start listening, unless there is no queue."""
        if self._queues:
            self._listening = self._broker.listen(self._queues, self._signal)

    def want(self, queues: Set[str]) -> None:
        """Listen to these queues from now on; cheap to repeat."""
        if self._wanted != queues and self._listening is not None:
            self._wanted = queues
            self._listening.want(queues)

    def take(self) -> bool:
        """Return True if an arrival was signalled since the last call, and reset the flag; then call `want` again."""
        if not self._signalled:
            return False
        self._signalled, self._wanted = False, frozenset()
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()

    def _signal(self) -> None:
        self._signalled = True  # before waking: the I/O thread reads it once awake
        self._wake.set()

"""What whoever asks a queue gets: what a listener's poll brought before, else what a call brings now."""

from collections.abc import Sequence

from penstock.brokers.sqs.at_once import outcome
from penstock.brokers.sqs.held import Catch, Held
from penstock.brokers.sqs.leases import Leases
from penstock.brokers.sqs.received import Received, held_seconds
from penstock.brokers.sqs.receiving import Receiving
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

LOOK_AGAIN_SECONDS = 0.05
LATE = 1 / 3  # of a lease, after which a worker's heartbeat would have extended it


class Taking:
    """Any thread may call it."""

    def __init__(self, *, held: Held, receiving: Receiving, leases: Leases, poll_seconds: float, clock: Clock) -> None:
        self._held = held
        self._receiving = receiving
        self._leases = leases
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._closed = False  # written by the thread that closes

    def take(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[Delivery]:
        """At most so many; waits up to that long for the first."""
        taken = self._taken_now(queue, messages_max, lease_seconds)
        if not taken and wait_seconds:
            taken = self._awaited(queue, messages_max, lease_seconds, wait_seconds)
        return self.still_held(taken, lease_seconds)

    def close(self) -> None:
        """Who waits returns when the poll does."""
        self._closed = True

    def poll(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[Received]:
        """One call that waits."""
        return self._receiving.poll(queue, messages_max, lease_seconds, wait_seconds)

    def still_held(self, deliveries: Sequence[Delivery], lease_seconds: float) -> Sequence[Delivery]:
        """What nobody extended while settlements, or other calls, took their time. Past its lease it is left out, and
        comes again."""
        ages = [(delivery, held_seconds(delivery, self._clock)) for delivery in deliveries]
        held = [delivery for delivery, seconds in ages if seconds < lease_seconds]
        old = [delivery for delivery, seconds in ages if LATE * lease_seconds < seconds < lease_seconds]
        lost = outcome(lambda: self._leases.extend(old, lease_seconds)) if old else ()
        return held if isinstance(lost, Exception) else [delivery for delivery in held if delivery not in lost]

    def _taken_now(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[Received]:
        """What is held, and more where there seems to be more. What a poll under way would bring is left to it."""
        catch = self._held.take(queue, messages_max)
        if catch is None:
            return () if self._held.is_polled(queue) else self._receiving.take(queue, messages_max, lease_seconds)
        mine = self._leased(queue, catch, lease_seconds)
        wanted = messages_max - len(mine)
        if not (catch.was_full and wanted):
            return mine
        more = outcome(lambda: self._receiving.take(queue, wanted, lease_seconds))
        return mine if isinstance(more, Exception) else [*mine, *more]  # an error will be met by the next to ask

    def _awaited(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[Received]:
        """Wait for the first message: by polls of our own, or for what a listener's poll brings."""
        deadline = self._clock.monotonic() + wait_seconds
        while not self._closed and (left := deadline - self._clock.monotonic()) > 0:
            if self._held.is_polled(queue):
                self._held.wait(queue, min(left, LOOK_AGAIN_SECONDS))
                taken = self._taken_now(queue, messages_max, lease_seconds)
            else:
                taken = self.poll(queue, messages_max, lease_seconds, min(left, self._poll_seconds))
            if taken:
                return taken
        return ()

    def _leased(self, queue: str, catch: Catch, lease_seconds: float) -> Sequence[Received]:
        """With the lease that whoever takes them thinks they have. What SQS gave to others meanwhile is left out."""
        if catch.lease_seconds == lease_seconds:
            return catch.deliveries
        changed = outcome(lambda: self._leases.change(queue, [(each, lease_seconds) for each in catch.deliveries]))
        if isinstance(changed, Exception):
            self._held.put_back(queue, catch)
            raise changed
        failed = {place for place, _ in changed}
        return [each for place, each in enumerate(catch.deliveries) if place not in failed]

"""Which executions of one line are past the handler's timeout.

An execution counts the time of the user's code itself, so the end of its timeout is known as a lower bound only: it
moves while the execution waits for the ledger. Each execution is asked again when its bound has come.
"""

import heapq
from collections.abc import Sequence

from penstock.messaging.clock import Clock
from penstock.worker.flight import Flight


class Timeouts:
    """The running executions of one line, by the time at which each is to be asked. Called under the line's lock.

    New ones have the same bound after their begin, so they stay in order. Only those that outlived it get to the heap.
    """

    def __init__(self, timeout_seconds: float | None, *, clock: Clock) -> None:
        """``timeout_seconds`` None: no execution is ever overdue."""
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._young: dict[Flight, float] = {}
        self._old: list[tuple[float, int, Flight]] = []
        self._pushed = 0  # tells entries of the heap with equal times apart

    def add(self, flights: Sequence[Flight]) -> None:
        """Watch executions that are about to begin."""
        if self._timeout_seconds is not None:
            self._young.update(dict.fromkeys(flights, self._clock.monotonic() + self._timeout_seconds))

    def remove(self, flight: Flight) -> None:
        """Forget an execution that has returned."""
        self._young.pop(flight, None)

    def next_at(self) -> float | None:
        """When the next one is to be asked (monotonic)."""
        self._forget_ended()
        young = next(iter(self._young.values()), None)
        old = self._old[0][0] if self._old else None
        return min((at for at in (young, old) if at is not None), default=None)

    def overdue(self) -> Sequence[Flight]:
        """Take out the executions whose timeout is over."""
        if self._timeout_seconds is None:
            return ()
        now, found = self._clock.monotonic(), []
        for flight in self._due(now):
            left_seconds = flight.execution.left_seconds(self._timeout_seconds)
            if left_seconds <= 0:
                found.append(flight)
            else:
                self._pushed += 1
                heapq.heappush(self._old, (now + left_seconds, self._pushed, flight))
        return found

    def _due(self, now: float) -> Sequence[Flight]:
        due: list[Flight] = []
        while (at := self.next_at()) is not None and at <= now:
            if self._old and self._old[0][0] == at:
                due.append(heapq.heappop(self._old)[2])
            else:
                flight = next(iter(self._young))
                del self._young[flight]
                due.append(flight)
        return due

    def _forget_ended(self) -> None:
        while self._young and (flight := next(iter(self._young))).ended:
            del self._young[flight]
        while self._old and self._old[0][2].ended:
            heapq.heappop(self._old)

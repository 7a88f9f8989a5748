"""The exchange with the broker: what is to be settled goes out and messages come in, in one turn."""

from collections.abc import Callable, Set

from penstock.messaging.broker import Broker, Turn
from penstock.worker.asking import Asking
from penstock.worker.hearing import Hearing
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

NOTHING_TO_DO = Turn()


class Exchange:
    """Turns at the broker, and the ear that tells when one makes sense. The I/O thread's alone."""

    def __init__(
        self,
        *,
        broker: Broker,
        settler: Settler,
        asking: Asking,
        hearing: Hearing,
        settings: WorkerSettings,
        lines: int,
    ) -> None:
        self._broker = broker
        self._settler = settler
        self._asking = asking
        self._hearing = hearing
        self._looks_cost = broker.capabilities.looks_cost
        self._lease_seconds = settings.lease_seconds
        self._poll_wait_seconds = settings.poll_wait_seconds if lines == 1 else 0.0  # others would wait for it

    def open(self) -> None:
        """Begin to listen."""
        self._hearing.open()

    def close(self) -> None:
        """Listen no more."""
        self._hearing.close()

    def turn(self, *, idle: Callable[[], bool]) -> bool:
        """Settle a group of what is due and ask all lines that may be asked; answers whether any message arrived.

        While the worker is ``idle`` (nothing at work, nothing to settle) the broker may wait for messages; else
        somebody waits for this thread. Raises `UserError` when the broker never can do what was asked.
        """
        if self._hearing.told():
            self._asking.alarmed()
        wait_seconds = self._poll_wait_seconds if self._poll_wait_seconds and idle() else 0.0
        group = self._settler.take_due()
        asks = self._asking.asks()
        if asks and self._asking.full is None:
            # Before the look, so that no arrival falls between the look and the rest.
            self._listen(self._asking.roomy)
        heard = self._hearing.wanted
        turn = NOTHING_TO_DO
        if group.settlements or asks:
            turn = self._broker.turn(
                group.settlements, asks, lease_seconds=self._lease_seconds, wait_seconds=wait_seconds
            )
        try:
            self._settler.applied(group, turn.failures, turn.settle_error)
        finally:
            arrived = self._asking.came(turn, heard=heard)
        if self._looks_cost and asks and self._asking.full is not None:
            self._listen_beside(self._asking.full)
        return arrived

    def rest_seconds(self) -> float | None:
        """How long to rest until a line is to be asked; None while none has room."""
        seconds = self._asking.rest_seconds()
        if seconds is None:
            self.stop_listening()
        elif full := self._hearing.wanted - self._asking.roomy:
            self._listen(self._hearing.wanted - full)
        return seconds

    def stop_listening(self) -> None:
        """No arrival could be taken, so none is to be told of: another worker may have room."""
        if self._hearing.wanted:
            self._hearing.want(frozenset())
            self._asking.unheard()

    def _listen_beside(self, full: str) -> None:
        """While one queue keeps the worker busy those found empty are heard, and not asked again and again in vain.

        Only those: what waits in others would come at once, take the way of an arrival, and find no room.
        """
        heard = (self._hearing.wanted | self._asking.found_empty) & self._asking.roomy
        self._listen(heard - {full})

    def _listen(self, roomy: Set[str]) -> None:
        """Where there is room; an arrival elsewhere is for a worker that has some."""
        self._hearing.want(roomy)
        self._asking.unheard_beside(roomy)

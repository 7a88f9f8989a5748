"""Asking the queues: whose turn it is, how long an empty or failing one is left alone, how long to rest."""

from collections.abc import Sequence

from penstock.errors import UserError
from penstock.events import Bus, ReceiveFailed
from penstock.messaging.clock import Clock
from penstock.messaging.waits import Random, backoff_seconds, idle_seconds
from penstock.worker.rotation import Rotation
from penstock.worker.served_line import ServedLine
from penstock.worker.settings import WorkerSettings

NOBODY_SECONDS = 60.0  # a bound for the wait for a freed slot


class Asking:
    """One round over the lines at a time, in rotation's order, until one brings something. The I/O thread's alone.

    One idle state for the worker: its waits grow while no line brings anything, and the first message resets them for
    all. While others bring messages, an empty line is asked again after the shortest of these waits. A line whose
    receive failed backs off alone.
    """

    def __init__(
        self, *, lines: Sequence[ServedLine], settings: WorkerSettings, clock: Clock, bus: Bus, random: Random
    ) -> None:
        self._lines = lines
        self._rotation = Rotation([served.line.weight for served in lines])
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._idle_seconds = settings.idle_floor_seconds

    def ask(self, *, worker_idle: bool) -> tuple[bool, float]:
        """Receive from the first line that has room and messages; answers whether any came, and how long to rest.

        Raises `UserError` when a broker never can do what was asked.
        """
        empty: list[ServedLine] = []
        began_at = self._clock.monotonic()
        for index in self._rotation.order():
            served = self._lines[index]
            room = served.room
            if room < 1:
                self._rotation.passed(index)
            elif served.ask_at <= self._clock.monotonic():
                arrived = self._receive(served, room, worker_idle=worker_idle)
                if arrived:
                    self._rotation.served(index, arrived)
                    self._hasten()
                    return True, 0.0
                self._rotation.passed(index)
                if not served.receive_failures:
                    empty.append(served)
        if empty:
            self._idle(empty, began_at)
        return False, self._rest_seconds()

    def _receive(self, served: ServedLine, room: int, *, worker_idle: bool) -> int:
        # A poll may only wait in the broker where nobody else waits for this thread.
        may_wait = worker_idle and len(self._lines) == 1
        wait_seconds = self._settings.poll_wait_seconds if may_wait else 0.0
        try:
            arrived = served.intake.receive(room, now=self._clock.monotonic, wait_seconds=wait_seconds)
        except UserError:
            raise
        except Exception as error:
            self._receive_failed(served, error)
            return 0
        served.receive_failures = 0
        if not arrived:
            served.ask_at = self._clock.monotonic() + self._settings.idle_floor_seconds
        return arrived

    def _receive_failed(self, served: ServedLine, error: Exception) -> None:
        served.receive_failures += 1
        self._bus.emit(ReceiveFailed(queue=served.line.queue, error=f"{type(error).__name__}: {error}"))
        wait_seconds = backoff_seconds(
            attempt=served.receive_failures,
            base_seconds=self._settings.retry_base_seconds,
            cap_seconds=self._settings.retry_cap_seconds,
            random=self._random,
        )
        served.ask_at = self._clock.monotonic() + max(wait_seconds, self._settings.idle_floor_seconds)

    def _hasten(self) -> None:
        """Something came: the waits begin anew."""
        if self._idle_seconds == self._settings.idle_floor_seconds:
            return
        self._idle_seconds = self._settings.idle_floor_seconds
        soon = self._clock.monotonic() + self._idle_seconds
        for served in self._lines:
            if not served.receive_failures:
                served.ask_at = min(served.ask_at, soon)

    def _idle(self, empty: Sequence[ServedLine], began_at: float) -> None:
        self._idle_seconds = idle_seconds(
            self._idle_seconds,
            floor_seconds=self._settings.idle_floor_seconds,
            ceiling_seconds=self._settings.idle_ceiling_seconds,
            random=self._random,
        )
        # The time that a poll waited in the broker counts; a broker that answers late still gets a moment's rest.
        ask_at = max(began_at + self._idle_seconds, self._clock.monotonic() + 0.001)
        for served in empty:
            served.ask_at = ask_at

    def _rest_seconds(self) -> float:
        ask_at = min((served.ask_at for served in self._lines if served.room > 0), default=None)
        return NOBODY_SECONDS if ask_at is None else max(ask_at - self._clock.monotonic(), 0.0)

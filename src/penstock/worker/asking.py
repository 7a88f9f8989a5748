"""Asking the queues: whose turn it is, how long an empty or failing one is left alone, how long to rest."""

from collections.abc import Sequence

from penstock.errors import UserError
from penstock.events import Bus, ReceiveFailed
from penstock.messaging.clock import Clock
from penstock.messaging.waits import Random, backoff_seconds, idle_seconds
from penstock.worker.rotation import Rotation
from penstock.worker.service import Service
from penstock.worker.settings import WorkerSettings

NOBODY_SECONDS = 60.0  # a bound for the wait for a freed slot


class Asking:
    """One round over the lines at a time, in rotation's order, until one brings something. The I/O thread's alone.

    One idle state for the worker: its waits grow while no line brings anything, and the first message resets them for
    all. While others bring messages, an empty line is asked again after the shortest of these waits. A line whose
    receive failed backs off alone.
    """

    def __init__(
        self, *, services: Sequence[Service], settings: WorkerSettings, clock: Clock, bus: Bus, random: Random
    ) -> None:
        self._services = services
        self._rotation = Rotation([service.line.weight for service in services])
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._idle_seconds = settings.idle_floor_seconds

    def ask(self, *, worker_idle: bool) -> tuple[bool, float]:
        """Receive from the first line that has room and messages; answers whether any came, and how long to rest.

        Raises `UserError` when a broker never can do what was asked.
        """
        empty: list[Service] = []
        began_at = self._clock.monotonic()
        for index in self._rotation.order():
            service = self._services[index]
            room = service.room
            if room < 1:
                self._rotation.passed(index)
            elif service.ask_at <= self._clock.monotonic():
                arrived = self._receive(service, room, worker_idle=worker_idle)
                if arrived:
                    self._rotation.served(index, arrived)
                    self._hasten()
                    return True, 0.0
                self._rotation.passed(index)
                if not service.receive_failures:
                    empty.append(service)
        if empty:
            self._idle(empty, began_at)
        return False, self._rest_seconds()

    def _receive(self, service: Service, room: int, *, worker_idle: bool) -> int:
        # A poll may only wait in the broker where nobody else waits for this thread.
        may_wait = worker_idle and len(self._services) == 1
        wait_seconds = self._settings.poll_wait_seconds if may_wait else 0.0
        try:
            arrived = service.intake.receive(room, now=self._clock.monotonic, wait_seconds=wait_seconds)
        except UserError:
            raise
        except Exception as error:
            self._receive_failed(service, error)
            return 0
        service.receive_failures = 0
        if not arrived:
            service.ask_at = self._clock.monotonic() + self._settings.idle_floor_seconds
        return arrived

    def _receive_failed(self, service: Service, error: Exception) -> None:
        service.receive_failures += 1
        self._bus.emit(ReceiveFailed(queue=service.line.queue, error=f"{type(error).__name__}: {error}"))
        wait_seconds = backoff_seconds(
            attempt=service.receive_failures,
            base_seconds=self._settings.retry_base_seconds,
            cap_seconds=self._settings.retry_cap_seconds,
            random=self._random,
        )
        service.ask_at = self._clock.monotonic() + max(wait_seconds, self._settings.idle_floor_seconds)

    def _hasten(self) -> None:
        """Something came: the waits begin anew."""
        if self._idle_seconds == self._settings.idle_floor_seconds:
            return
        self._idle_seconds = self._settings.idle_floor_seconds
        soon = self._clock.monotonic() + self._idle_seconds
        for service in self._services:
            if not service.receive_failures:
                service.ask_at = min(service.ask_at, soon)

    def _idle(self, empty: Sequence[Service], began_at: float) -> None:
        self._idle_seconds = idle_seconds(
            self._idle_seconds,
            floor_seconds=self._settings.idle_floor_seconds,
            ceiling_seconds=self._settings.idle_ceiling_seconds,
            random=self._random,
        )
        # The time that a poll waited in the broker counts; a broker that answers late still gets a moment's rest.
        ask_at = max(began_at + self._idle_seconds, self._clock.monotonic() + 0.001)
        for service in empty:
            service.ask_at = ask_at

    def _rest_seconds(self) -> float:
        ask_at = min((service.ask_at for service in self._services if service.room > 0), default=None)
        return NOBODY_SECONDS if ask_at is None else max(ask_at - self._clock.monotonic(), 0.0)

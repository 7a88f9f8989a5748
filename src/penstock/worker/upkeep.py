"""Upkeep of one line's handler, in the I/O thread while the line has nothing to do; each has its own time."""

from penstock.errors import PublishHalted, UserError
from penstock.events import Bus, UpkeepFailed
from penstock.messaging.clock import Clock
from penstock.messaging.handler import BatchHandler
from penstock.messaging.waits import Random, backoff_seconds
from penstock.worker.settings import WorkerSettings


class Upkeep:
    """When it is due, and what becomes of its failures. The I/O thread's alone.

    ``in_a_hurry``: for a worker that is to finish, upkeep follows each batch as soon as the line is idle, since what
    the worker waits for may hang on it.
    """

    def __init__(
        self,
        *,
        handler: BatchHandler,
        in_a_hurry: bool,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
    ) -> None:
        self._handler = handler
        self._in_a_hurry = in_a_hurry
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._failures = 0
        self._due_at = clock.monotonic()
        self._concluded = 0  # batches, at the last success

    @property
    def due_at(self) -> float:
        """Monotonic."""
        return self._due_at

    def due(self, concluded: int) -> bool:
        """Whether it is time; ``concluded`` counts the line's batches."""
        hurry = self._in_a_hurry and concluded != self._concluded and not self._failures
        return hurry or self._clock.monotonic() >= self._due_at

    def care(self, concluded: int) -> Exception | None:
        """Do it; a failure is told, puts the next one off, and is answered. Raises what is fatal."""
        try:
            self._handler.upkeep()
        except (UserError, PublishHalted):
            raise
        except Exception as error:
            self._failures += 1
            self._due_at = self._clock.monotonic() + backoff_seconds(
                attempt=self._failures,
                base_seconds=self._settings.backoff_base_seconds,
                cap_seconds=self._settings.backoff_cap_seconds,
                random=self._random,
            )
            self._bus.emit(UpkeepFailed(handler=self._handler.name, error=f"{type(error).__name__}: {error}"))
            return error
        self._failures = 0
        self._concluded = concluded
        self._due_at = self._clock.monotonic() + self._settings.upkeep_seconds
        return None

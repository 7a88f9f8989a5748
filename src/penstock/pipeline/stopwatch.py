"""How long the stages of a batch took."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.messaging.clock import Clock


class Stopwatch:
    """Seconds by stage; a stage entered twice adds up. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        return {stage: round(seconds, 3) for stage, seconds in self._seconds.items()}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_at = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.monotonic() - began_at

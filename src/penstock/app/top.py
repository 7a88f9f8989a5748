"""Looking again and again: how everything stands, how fast it moves, and what cannot be asked at the moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.app.flow import Flow, Flows
from penstock.app.scope import Scope
from penstock.app.standing import Standing
from penstock.app.status import Looks
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One look. Without a standing ``error`` says what could not be asked."""

    at: float  # epoch seconds
    standing: Standing | None
    flows: Mapping[str, Flow] = field(default_factory=dict)  # by queue
    error: str | None = None

    @property
    def verdict(self) -> str:
        """One line."""
        return self.standing.verdict if self.standing is not None else f"cannot be told: {self.error}"


class Watch:
    """One look after another at a scope. For one thread."""

    def __init__(self, scope: Scope, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._looks = Looks(scope, clock=self._clock)
        self._flows = Flows()

    def look(self) -> Frame:
        """Now. A server that is away is told in the frame; raises what no waiting mends."""
        try:
            standing = self._looks.look()
        except TemporaryError as error:
            return Frame(at=self._clock.now(), standing=None, error=str(error))
        flows = self._flows.since(standing, at=self._clock.monotonic())
        return Frame(at=self._clock.now(), standing=standing, flows=flows)

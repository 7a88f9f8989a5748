"""An engine of which the machinery starts while the worker serves other queues already."""

from collections.abc import Callable

from penstock.pipeline.engine import RunRequest, RunResult, StandingEngine


class LateEngine:
    """A `penstock.pipeline.engine.StandingEngine` that is made by `start`. Its line begins no run before that has
    returned."""

    def __init__(self, make: Callable[[], StandingEngine]) -> None:
        self._make = make
        self._made: StandingEngine | None = None  # written by the thread that starts it

    def start(self) -> None:
        """Make the engine. Raises what that raises."""
        self._made = self._make()

    def run(self, request: RunRequest) -> RunResult:
        return self._engine.run(request)

    def cancel(self, attempt_id: str) -> None:
        self._engine.cancel(attempt_id)

    def check(self) -> None:
        if self._made is not None:
            self._made.check()

    @property
    def _engine(self) -> StandingEngine:
        if self._made is None:
            raise RuntimeError("a run began before its engine was started")
        return self._made

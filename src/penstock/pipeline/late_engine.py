"""An engine whose machinery starts while the worker already serves other queues."""

from collections.abc import Callable

from penstock.pipeline.engine import CheckedEngine, RunRequest, RunResult


class LateEngine:
    """A `penstock.pipeline.engine.CheckedEngine` that `start` makes. Its line begins no run before that."""

    def __init__(self, make: Callable[[], CheckedEngine]) -> None:
        self._make = make
        self._made: CheckedEngine | None = None  # written by the thread that starts it

    def start(self) -> None:
        """Make the engine. Raises what its factory raises."""
        self._made = self._make()

    def run(self, request: RunRequest) -> RunResult:
        return self._engine.run(request)

    def cancel(self, attempt_id: str) -> None:
        self._engine.cancel(attempt_id)

    def check(self) -> None:
        if self._made is not None:
            self._made.check()

    @property
    def _engine(self) -> CheckedEngine:
        if self._made is None:
            raise RuntimeError("a run began before its engine was started")
        return self._made

"""Kill the process at a chosen step of the protocol, for the tests that prove that this does no harm."""

import os
import signal
import threading

from penstock.errors import ConfigurationError
from penstock.messaging.steps import Probe, Step, no_probe


def killing_probe(kill_at: str | None) -> Probe:
    """Return a probe that kills the process group with SIGKILL at ``step``, or at its n-th occurrence for ``step:n``.

    Raises `ConfigurationError` for an unknown step.
    """
    if kill_at is None:
        return no_probe
    name, _, count = kill_at.partition(":")
    try:
        step, remaining = Step(name), int(count or 1)
    except ValueError as error:
        known = ", ".join(step.value for step in Step)
        raise ConfigurationError(
            f"kill_at is {kill_at!r}; it is `step` or `step:n` with one of the steps {known}."
        ) from error
    return _KillAt(step, remaining)


class _KillAt:
    """A probe that kills the process group at one step. Any thread may call it."""

    def __init__(self, step: Step, remaining: int) -> None:
        self._step = step
        self._lock = threading.Lock()
        self._remaining = remaining  # written under the lock, by any thread that reaches the step

    def __call__(self, step: Step) -> None:
        if step is not self._step:
            return
        with self._lock:
            self._remaining -= 1
            if self._remaining == 0:
                os.killpg(os.getpgrp(), signal.SIGKILL)

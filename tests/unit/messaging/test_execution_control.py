"""Stop signals of one execution."""

import threading
from collections.abc import Callable

import pytest

from penstock.errors import Interrupted
from penstock.messaging.call import ExecutionControl

DEADLINE_SECONDS = 60.0
LONG_SECONDS = 60.0


def test_a_stop_interrupts_only_executions_that_release_and_an_end_interrupts_all() -> None:
    finishing, ending_at_stop = ExecutionControl(), ExecutionControl(ends_at_stop=True)
    for control in (finishing, ending_at_stop):
        control.check()
        control.stop()
        assert (control.stopping, control.over) == (True, False)
    finishing.check()
    with pytest.raises(Interrupted):
        ending_at_stop.check()
    finishing.end()
    assert finishing.over
    with pytest.raises(Interrupted):
        finishing.check()


@pytest.mark.parametrize("signal", [ExecutionControl.stop, ExecutionControl.end])
def test_a_watcher_is_called_at_the_signal_or_at_once_after_it(signal: Callable[[ExecutionControl], None]) -> None:
    calls: list[str] = []
    control = ExecutionControl(ends_at_stop=True)
    control.watch(lambda: calls.append("while watching"))
    signal(control)
    control.watch(lambda: calls.append("at once"))
    control.watch(None)
    control.end()
    assert calls == ["while watching", "at once"]


@pytest.mark.parametrize("signal", [ExecutionControl.stop, ExecutionControl.end])
def test_a_stop_or_an_end_interrupts_a_sleep(signal: Callable[[ExecutionControl], None]) -> None:
    control, begun = ExecutionControl(ends_at_stop=True), threading.Event()

    def sleep() -> None:
        begun.set()
        control.sleep(LONG_SECONDS)

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    assert begun.wait(DEADLINE_SECONDS)
    signal(control)
    sleeper.join(DEADLINE_SECONDS)
    assert not sleeper.is_alive()


def test_an_ended_execution_does_not_sleep() -> None:
    control = ExecutionControl()
    control.end()
    sleeper = threading.Thread(target=control.sleep, args=(LONG_SECONDS,), daemon=True)
    sleeper.start()
    sleeper.join(DEADLINE_SECONDS)
    assert not sleeper.is_alive()

"""The stop signals of one execution."""

import threading
from collections.abc import Callable

import pytest

from penstock.errors import Interrupted
from penstock.messaging.call import ExecutionControl

DEADLINE_SECONDS = 60.0
LONG_SECONDS = 60.0


def test_a_stop_ends_only_what_gives_back_and_an_end_everything() -> None:
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


@pytest.mark.parametrize("tell", [ExecutionControl.stop, ExecutionControl.end])
def test_whoever_watches_hears_of_the_end_however_early_it_comes(tell: Callable[[ExecutionControl], None]) -> None:
    heard: list[str] = []
    control = ExecutionControl(ends_at_stop=True)
    control.watch(lambda: heard.append("while watching"))
    tell(control)
    control.watch(lambda: heard.append("at once"))
    control.watch(None)
    control.end()
    assert heard == ["while watching", "at once"]


@pytest.mark.parametrize("tell", [ExecutionControl.stop, ExecutionControl.end])
def test_the_end_of_the_work_ends_a_sleep(tell: Callable[[ExecutionControl], None]) -> None:
    control, begun = ExecutionControl(ends_at_stop=True), threading.Event()

    def sleep() -> None:
        begun.set()
        control.sleep(LONG_SECONDS)

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    assert begun.wait(DEADLINE_SECONDS)
    tell(control)
    sleeper.join(DEADLINE_SECONDS)
    assert not sleeper.is_alive()


def test_work_that_has_ended_does_not_sleep() -> None:
    control = ExecutionControl()
    control.end()
    sleeper = threading.Thread(target=control.sleep, args=(LONG_SECONDS,), daemon=True)
    sleeper.start()
    sleeper.join(DEADLINE_SECONDS)
    assert not sleeper.is_alive()

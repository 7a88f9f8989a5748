"""Stop requests to workers."""

import os
import signal
import threading

import pytest

from penstock.worker.shutdown import DUMPING, PAUSING, STOPPING, StopSignal

DEADLINE_SECONDS = 60.0


def test_one_request_drains_and_the_second_is_urgent() -> None:
    stop = StopSignal()
    seen = [(stop.requested, stop.urgent)]
    for _ in range(3):
        stop.request()
        seen.append((stop.requested, stop.urgent))
    assert seen == [(False, False), (True, False), (True, True), (True, True)]


def test_watchers_are_woken_at_every_request() -> None:
    stop, event = StopSignal(), threading.Event()
    with stop.watched_by(event):
        stop.request()
        assert event.is_set()
        event.clear()
        stop.request()
        assert event.is_set()
    event.clear()
    stop.request()
    assert not event.is_set()


def test_a_watcher_that_joins_late_is_woken_at_once() -> None:
    stop, event = StopSignal(), threading.Event()
    stop.request()
    with stop.watched_by(event):
        assert event.is_set()


def test_a_request_that_interrupts_another_neither_deadlocks_nor_is_missed() -> None:
    stop = StopSignal()

    class Interrupted(threading.Event):
        """While it is being set, with its lock held, the next signal arrives."""

        sets = 0

        def set(self) -> None:
            self.sets += 1
            if self.sets == 1:
                with self._cond:  # type: ignore[attr-defined] # the same lock that the real set holds
                    stop.request()
            super().set()

    event = Interrupted()
    with stop.watched_by(event):
        asking = threading.Thread(target=stop.request, daemon=True)
        asking.start()
        asking.join(DEADLINE_SECONDS)
        assert not asking.is_alive(), "deadlocked"
    assert stop.urgent
    assert event.sets == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_handled_while_installed(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stop = StopSignal()
    stop.install()
    try:
        os.kill(os.getpid(), number)
        assert stop.requested
    finally:
        stop.remove()
    assert signal.getsignal(number) is before


def test_requests_for_a_pause_and_for_stacks_wake_the_watchers_and_stop_no_worker() -> None:
    stop, event = StopSignal(), threading.Event()
    with stop.watched_by(event):
        stop.pause()
        assert event.is_set()
        event.clear()
        stop.request_stacks()
        assert event.is_set()
    assert (stop.paused, stop.stacks_requested, stop.requested) == (True, 1, False)


def test_each_signal_makes_its_own_request() -> None:
    before = {number: signal.getsignal(number) for number in (*PAUSING, *DUMPING, *STOPPING)}
    stop = StopSignal()
    stop.install()
    try:
        os.kill(os.getpid(), signal.SIGTSTP)
        assert (stop.paused, stop.requested) == (True, False)
        os.kill(os.getpid(), signal.SIGTTIN)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (stop.stacks_requested, stop.requested, stop.signal_number) == (2, False, None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, stop.signal_number) == (True, signal.SIGTERM)
    finally:
        stop.remove()
    assert {number: signal.getsignal(number) for number in before} == before


def test_only_the_signals_named_are_handled() -> None:
    before = signal.getsignal(signal.SIGTSTP)
    stop = StopSignal()
    stop.install(*STOPPING)
    try:
        assert signal.getsignal(signal.SIGTSTP) is before
    finally:
        stop.remove()

"""Run several worker processes under one supervisor.

The supervisor starts N children, each in its own process group (so that Ctrl-C at a terminal reaches them once, through
the supervisor); forwards signals; restarts children that die, after an exponential backoff with jitter; kills those
that exceed the stop timeout; and reaps all processes, including orphans, as PID 1 of a container has to.

One thread. Signals arrive as bytes in a pipe, so nothing happens inside a signal handler.
"""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from penstock.errors import ConfigurationError, UsageError
from penstock.events import Listener, ProcessExited, ProcessKilled
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import DUMPING, PAUSING, STOPPING, StopSignal

BACKOFF_BASE_SECONDS = 1.0
BACKOFF_CAP_SECONDS = 60.0
SETTLED_SECONDS = 60.0  # after this uptime, the next failure counts as the first
KILLED_BEFORE_SECONDS = 1.0  # before the end of the stop timeout, to be ahead of the platform
HOPELESS = frozenset({ConfigurationError.exit_code, UsageError.exit_code})  # a restart would fail in the same way
FORWARDED = (*STOPPING, *PAUSING, *DUMPING)

Spawn = Callable[[int], int]


@dataclass(slots=True)
class _ProcessSlot:
    """The state of one of the N children: running, waiting for its restart, or neither, when it is not restarted."""

    pid: int | None = None
    started_at: float = 0.0  # monotonic
    failures: int = 0  # consecutive
    start_at: float | None = None  # monotonic


class Supervisor:
    """Run children until all have ended.

    ``spawn`` starts the child with this number, from 0, and returns its process id. Without ``restarts``, it only
    forwards signals and reaps. ``early`` handles signals before `run` does: after a stop then, no child is started.
    """

    def __init__(
        self,
        spawn: Spawn,
        *,
        processes: int,
        stop_timeout_seconds: float,
        restarts: bool = True,
        clock: Clock,
        random: Random,
        emit: Listener,
        early: StopSignal | None = None,
    ) -> None:
        self._spawn = spawn
        self._early = early
        self._slots = [_ProcessSlot() for _ in range(processes)]
        self._stop_timeout_seconds = stop_timeout_seconds
        self._restarts = restarts
        self._clock = clock
        self._random = random
        self._emit = emit
        self._paused = False
        self._stopping = False
        self._kill_at: float | None = None  # monotonic
        self._worst = 0

    def run(self) -> int:
        """Run until no child is left.

        Return 0 if all of them exited with 0, else a failure's exit code. Main thread only.
        """
        with _signals() as news:
            now = self._clock.monotonic()
            for slot in self._slots:
                slot.start_at = now
            if self._early is not None and self._early.requested:
                self._stop()
            while self._turn():
                for number in news(self._rest_seconds()):
                    self._heed(number)
        return self._worst

    def _turn(self) -> bool:
        """Reap, start and kill as due; return True if there is anything left to wait for."""
        self._reap()
        now = self._clock.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.start_at is not None and slot.start_at <= now:
                slot.pid, slot.started_at, slot.start_at = self._spawn(number), now, None
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
        return any(slot.pid is not None or slot.start_at is not None for slot in self._slots)

    def _rest_seconds(self) -> float | None:
        times = [slot.start_at for slot in self._slots if slot.start_at is not None]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def _heed(self, number: int) -> None:
        """Forward a signal to the children, including a second request to stop."""
        if number not in FORWARDED:
            return
        if number in STOPPING:
            self._stop()
        if number in PAUSING:
            self._paused = True
        self._send(number)

    def _stop(self) -> None:
        """Start no more children, and set the time to kill those that are left."""
        for slot in self._slots:
            slot.start_at = None
        if not self._stopping:
            self._stopping = True
            self._kill_at = self._clock.monotonic() + self._stop_timeout_seconds - KILLED_BEFORE_SECONDS

    def _send(self, number: int) -> None:
        for slot in self._slots:
            if slot.pid is not None:  # not reaped yet, so the process id is still its own
                os.kill(slot.pid, number)

    def _kill(self) -> None:
        self._kill_at = None
        for slot in self._slots:
            if slot.pid is not None:
                self._emit(ProcessKilled(process=slot.pid))
        self._send(signal.SIGKILL)

    def _reap(self) -> None:
        """Reap all ended processes: our children, and orphans that were reparented to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for slot in self._slots:
                if slot.pid == pid:
                    self._record_exit(slot, os.waitstatus_to_exitcode(status))

    def _record_exit(self, slot: _ProcessSlot, exit_code: int) -> None:
        assert slot.pid is not None
        process, slot.pid = slot.pid, None
        now = self._clock.monotonic()
        if self._may_start_again(exit_code):
            slot.failures = 1 if now - slot.started_at >= SETTLED_SECONDS else slot.failures + 1
            wait_seconds = BACKOFF_BASE_SECONDS + backoff_seconds(
                attempt=slot.failures,
                base_seconds=BACKOFF_BASE_SECONDS,
                cap_seconds=BACKOFF_CAP_SECONDS,
                random=self._random,
            )
            slot.start_at = now + wait_seconds
            self._emit(ProcessExited(process=process, exit_code=exit_code, restart_in_seconds=wait_seconds))
            return
        self._emit(ProcessExited(process=process, exit_code=exit_code, restart_in_seconds=None))
        if self._restarts and exit_code in HOPELESS and not self._stopping:
            self._worst = exit_code
            self._stop()
            self._send(signal.SIGTERM)
        self._worst = self._worst or _exit_code(exit_code)

    def _may_start_again(self, exit_code: int) -> bool:
        """Return True if a child is restarted: not after exit code 0, nor once the supervisor is stopping or paused."""
        is_ending = self._stopping or self._paused
        return self._restarts and exit_code != 0 and exit_code not in HOPELESS and not is_ending


def spawner(arguments: Callable[[int], Sequence[str]], *, executable: str, environment: Mapping[str, str]) -> Spawn:
    """Return a function that starts `python ARGUMENTS` in its own process group, with our standard streams.

    ``arguments`` may differ per child. Forwarded signals are blocked at first: one that arrives before the child has
    its handlers waits, instead of killing the process. `ready_for_signals` unblocks them.
    """

    def spawn(number: int) -> int:
        return os.posix_spawn(
            executable,
            [executable, *arguments(number)],
            environment,
            setpgroup=0,
            setsigmask=[int(number) for number in FORWARDED],
        )

    return spawn


def ready_for_signals() -> None:
    """Unblock the forwarded signals, in a child that has installed its handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


@contextmanager
def lifeline() -> Iterator[int]:
    """Yield a descriptor for children that reaches end of file when this process ends, however it ends."""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


def end_with_parent(descriptor: int, stop: StopSignal) -> None:
    """Request a stop in a child when the supervisor at the other end of the lifeline has ended."""
    os.set_inheritable(descriptor, False)

    def follow() -> None:
        while os.read(descriptor, 1):
            pass
        stop.request()

    threading.Thread(target=follow, name="penstock-lifeline", daemon=True).start()


def _exit_code(exit_code: int) -> int:
    """Return the exit code as a shell reports it: 128 plus the signal for a killed process."""
    return 128 - exit_code if exit_code < 0 else exit_code


@contextmanager
def _signals() -> Iterator[Callable[[float | None], bytes]]:
    """Receive signals as values: yield a function that waits up to this long and returns the signals received."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)

    def noted(_number: int, _frame: FrameType | None) -> None:
        """Do nothing: the byte in the pipe is enough, but without a handler no signal would be written to it."""

    before: dict[int, Any] = {}
    wakeup_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    for handled in (*FORWARDED, signal.SIGCHLD):
        before[handled] = signal.signal(handled, noted)

    def news(seconds: float | None) -> bytes:
        readable, _, _ = select.select([ours], [], [], seconds)
        return ours.recv(4096) if readable else b""

    try:
        yield news
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        ours.close()
        theirs.close()

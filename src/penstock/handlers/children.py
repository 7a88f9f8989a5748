"""Handlers in processes of their own: for work that holds the GIL, leaks, or may never end.

Each child runs one call at a time and is reused. It is spawned, never forked. Interrupting a call kills its child with
whatever that started; a child that dies takes its call with it and nothing else; and none outlives this process. What
goes to a child is the message as it came; the body is read there, by the same codec. The function travels by its name,
so it has to be one that can be imported. What a child does is in `child`.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, PenstockError, Reject, Retry
from penstock.handlers.child import Raised, Retrying, Returned, SentCall, serve
from penstock.handlers.pipe import Pipe
from penstock.messaging.call_context import TellRetry
from penstock.messaging.failure import Failure
from penstock.messaging.queue import Queue
from penstock.messaging.tracing import Continuing

END_SECONDS = 0.5  # for children that were asked to end, all together


class ChildFailed(PenstockError):
    """What a child's function raised, in words; ``traceback`` is the child's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure  # `failure_of` takes it as it is


class ChildDied(PenstockError):
    """The process ended in the middle of a call: killed, out of memory, a crash in C code."""


class Child:
    """One process, driven by the thread that took it."""

    def __init__(
        self, function: Callable[..., Any], queue: Queue[Any], wants_context: bool, continuing: Continuing | None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, function, queue, wants_context, continuing), name="penstock-child", daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe = Pipe(ours, end=_end_of(self._process))
        self._killed = False  # written by whoever kills it; it may take a moment to be gone
        self.busy = False  # written by the thread that took it

    @property
    def alive(self) -> bool:
        """Whether it can take a call."""
        return not self._killed and self._process.is_alive()

    @property
    def suspended(self) -> bool:
        """Whether somebody suspended it (SIGSTOP, a debugger): it may never go on, so its lease must not."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # gone, or a system without /proc
            return False
        return state in ("T", "t")

    def call(self, sent: SentCall, *, tell_retry: TellRetry) -> Any:
        """Run it there; raises what the function raised, or `ChildDied`."""
        try:
            self._pipe.send(sent)
            self.busy = True
            answer: Retrying | Returned | Raised = self._pipe.receive()
            while isinstance(answer, Retrying):
                tell_retry(answer.tries, answer.delay_seconds, ChildFailed(answer.failure))
                answer = self._pipe.receive()
            self.busy = False
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise ChildDied(f"the handler's process ended in the middle of the message ({how})") from error
        if isinstance(answer, Returned):
            return answer.result
        raise _exception_of(answer)

    def kill(self) -> None:
        """End it now, with what it started; a call in it ends with `ChildDied`."""
        self._killed = True
        if self._process.is_alive() and self._process.pid is not None:
            with suppress(OSError):  # its group is not there yet
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def ask_to_end(self) -> None:
        """An idle child ends by that. Only the thread that took it, or nobody, may be using it."""
        self._killed = True
        with suppress(OSError):
            self._pipe.close()

    def ended_by(self, deadline: float) -> bool:
        """Wait for its end until then (`time.monotonic`); answers whether it has come."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        return self._process.exitcode is not None


class Children:
    """The children of one handler: made when they are needed, kept for the next call. Any thread may call it."""

    def __init__(
        self,
        function: Callable[..., Any],
        queue: Queue[Any],
        *,
        wants_context: bool,
        continuing: Continuing | None = None,
    ) -> None:
        _check_importable(function)
        self._function = function
        self._queue = queue
        self._wants_context = wants_context
        self._continuing = continuing
        self._lock = threading.Lock()
        self._idle: list[Child] = []  # under the lock, as is the next
        self._closed = False

    def take(self) -> Child:
        """A child for one call, to be put back or killed."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
        return Child(self._function, self._queue, self._wants_context, self._continuing)

    def put_back(self, child: Child) -> None:
        """The call is over."""
        with self._lock:
            keep = child.alive and not self._closed
            if keep:
                self._idle.append(child)
        if not keep:
            child.ask_to_end()

    def close(self) -> None:
        """End those that are idle; the others when their calls end, or are interrupted by whoever began them."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for child in idle:
            child.ask_to_end()
        deadline = time.monotonic() + END_SECONDS
        left = [child for child in idle if not child.ended_by(deadline)]
        for child in left:
            child.kill()
        deadline = time.monotonic() + END_SECONDS
        for child in left:
            child.ended_by(deadline)


def _end_of(process: SpawnProcess) -> Connection | int:
    """Something to wait for that is ready when the process has ended.

    Its sentinel is a pipe, which processes that it forked keep open, so it is the second choice.
    """
    if process.pid is not None and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return Connection(os.pidfd_open(process.pid), writable=False)  # which closes it, when nobody needs it
    return process.sentinel


def _exception_of(raised: Raised) -> PenstockError:
    if raised.kind == "reject":
        return Reject(raised.failure.error)
    if raised.kind == "retry":
        return Retry(raised.failure.error, delay_seconds=raised.delay_seconds)
    return ChildFailed(raised.failure)


def _check_importable(function: Callable[..., Any]) -> None:
    main = sys.modules["__main__"]
    nowhere = getattr(main, "__file__", None) is None and getattr(main, "__spec__", None) is None
    if getattr(function, "__module__", None) == "__main__" and nowhere:
        raise ConfigurationError(
            f"The handler {getattr(function, '__qualname__', function)!r} cannot run in a process of its own: it was "
            "typed into a session or given to python -c, where no other process can import it; put it into a file."
        )
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigurationError(
            f"The handler {getattr(function, '__qualname__', function)!r} cannot run in a process of its own: it has "
            f"to be a function at the top of a module ({error})."
        ) from error

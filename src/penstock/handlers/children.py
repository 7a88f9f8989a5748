"""Handlers in processes of their own: for work that holds the GIL, leaks, or may never end.

Each child runs one call at a time and is reused. It is spawned, never forked. Interrupting a call kills its child; a
child that dies takes its call with it and nothing else. What goes to a child is the message as it came; the body is
read there, by the same codec. The function travels by its name, so it has to be one that can be imported.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, PenstockError, Reject, Retry
from penstock.handlers.context import Context
from penstock.handlers.decision import delay_asked
from penstock.messaging.delivery import PreviousAttempt
from penstock.messaging.failure import Failure, failure_of
from penstock.messaging.message import Message
from penstock.messaging.queue import Queue
from penstock.messaging.schema import Codec

END_SECONDS = 0.5  # for a child that was asked to end


class ChildFailed(PenstockError):
    """What a child's function raised, in words; ``traceback`` is the child's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure  # `failure_of` takes it as it is


class ChildDied(PenstockError):
    """The process ended in the middle of a call: killed, out of memory, a crash in C code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call, as it travels to a child."""

    message: Message
    queue: str
    handler: str
    attempt: int
    previous_attempt: PreviousAttempt | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Returned:
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raised:
    kind: str  # reject, retry, other
    failure: Failure
    delay_seconds: float | None


class Child:
    """One process, driven by the thread that took it."""

    def __init__(self, function: Callable[..., Any], queue: Queue[Any], wants_context: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, function, queue, wants_context), name="penstock-child", daemon=True
        )
        self._process.start()
        theirs.close()
        self.busy = False  # written by the thread that took it

    @property
    def alive(self) -> bool:
        """Whether it can take a call."""
        return self._process.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether somebody halted it (SIGSTOP, a debugger): it may never go on, so its lease must not."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # gone, or a system without /proc
            return False
        return state in ("T", "t")

    def call(self, job: Job) -> Any:
        """Run it there; raises what the function raised, or `ChildDied`."""
        try:
            self._connection.send(job)
            self.busy = True
            answer = self._connection.recv()
            self.busy = False
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise ChildDied(f"the handler's process ended in the middle of the message ({how})") from error
        if isinstance(answer, _Returned):
            return answer.result
        raise _exception_of(answer)

    def kill(self) -> None:
        """End it now; a call in it ends with `ChildDied`."""
        self._process.kill()

    def close(self) -> None:
        """Ask it to end, then make it."""
        with suppress(OSError):
            self._connection.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_SECONDS)


class Children:
    """The children of one handler: made when they are needed, kept for the next call. Any thread may call it."""

    def __init__(self, function: Callable[..., Any], queue: Queue[Any], *, wants_context: bool) -> None:
        _check_importable(function)
        self._function = function
        self._queue = queue
        self._wants_context = wants_context
        self._lock = threading.Lock()
        self._idle: list[Child] = []  # under the lock

    def take(self) -> Child:
        """A child for one call, to be put back or killed."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
        return Child(self._function, self._queue, self._wants_context)

    def put_back(self, child: Child) -> None:
        """The call is over."""
        with self._lock:
            if child.alive:
                self._idle.append(child)

    def close(self) -> None:
        """End those that are idle; the others are killed by whoever interrupts their calls."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()


def _serve(connection: Connection, function: Callable[..., Any], queue: Queue[Any], wants_context: bool) -> None:
    """The child's life. A terminal's Ctrl-C and a group's SIGTERM are the parent's to answer."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    codec: Codec[Any] = Codec(queue)
    while True:
        try:
            job: Job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone, or wants no more
        connection.send(_run(job, function, codec, wants_context))


def _run(job: Job, function: Callable[..., Any], codec: Codec[Any], wants_context: bool) -> "_Returned | _Raised":
    context = Context(
        message=job.message,
        queue=job.queue,
        handler=job.handler,
        attempt=job.attempt,
        previous_attempt=job.previous_attempt,
        key=job.key,
    )
    try:
        body = codec.decode(job.message)
        result = function(body, context) if wants_context else function(body)
        pickle.dumps(result)
    except BaseException as raised:
        failure = failure_of(raised)
        kind = "reject" if isinstance(raised, Reject) else "retry" if isinstance(raised, Retry) else "other"
        delay_seconds = delay_asked(raised)
        return _Raised(kind=kind, failure=failure, delay_seconds=delay_seconds)
    return _Returned(result=result)


def _exception_of(raised: _Raised) -> PenstockError:
    if raised.kind == "reject":
        return Reject(raised.failure.error)
    if raised.kind == "retry":
        return Retry(raised.failure.error, delay_seconds=raised.delay_seconds)
    return ChildFailed(raised.failure)


def _check_importable(function: Callable[..., Any]) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigurationError(
            f"The handler {getattr(function, '__qualname__', function)!r} cannot run in a process of its own: it has "
            f"to be a function at the top of a module ({error})."
        ) from error

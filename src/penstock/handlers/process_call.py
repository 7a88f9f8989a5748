"""Call a function in a child process: for work that holds the GIL, leaks memory, or may never end.

- `Pipe`: a pipe between parent and child
- `serve`: the loop of the child, which runs calls one after another
- `ChildProcess`, `ChildProcesses`: the children of one handler, as the parent uses them
- `ChildCall`: one call

Each child runs one call at a time and is reused. It is spawned, never forked. Interrupting a call kills its child and
the processes that the child started. A child that dies fails only its own call, and no child outlives this process. The
child receives the message as it arrived, and decodes the body with the same codec. The function is pickled by name, so
it must be importable. The parent handles the signals of a terminal or process group, and the child ends with its
parent.

A reader sees the end of a pipe only when every process has closed the other end, and processes forked by the child keep
it open. So the parent checks with each read and write if the child has ended.
"""

import fcntl
import multiprocessing
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from penstock.errors import ClaimLost, ConfigurationError, PenstockError, Reject, Retry
from penstock.handlers.call import HandlerRuntime, NotBegun, OpenedMessage, PlainCall
from penstock.handlers.context import Context
from penstock.handlers.decision import requested_delay
from penstock.messaging.call import RetryListener
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.failure import FailureDetails, failure_of
from penstock.messaging.forks import OwnProcess
from penstock.messaging.handler import HeldClaim
from penstock.messaging.message import Message
from penstock.messaging.schema import BodyCodec, Queue
from penstock.messaging.tracing import Carrier, Continuing

PIECE_BYTES = 1 << 20  # read at a time, at most
_LENGTH = struct.Struct("!Q")


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class Pipe:
    """One end of the pipe, used by one thread at a time. It never waits for a process that has ended."""

    def __init__(self, connection: Connection, *, end: _HasFileno | int | None = None) -> None:
        """``end`` becomes readable when the process at the other end has ended; None: do not check for that."""
        os.set_blocking(connection.fileno(), False)
        self._connection = connection
        self._end = end

    def send(self, value: Any) -> None:
        """Send a value. Raises `EOFError` if the other process ended first, `OSError` if the other end is closed."""
        pickled = pickle.dumps(value)
        for data in (_LENGTH.pack(len(pickled)), pickled):
            left = memoryview(data)
            while left:
                self._await(select.POLLOUT)
                try:
                    left = left[os.write(self._connection.fileno(), left) :]
                except BlockingIOError:  # poll reports room, but less than the write needs
                    continue

    def receive(self) -> Any:
        """Receive a value. Raises `EOFError` if the other end is closed or the other process ended."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # both ends belong to Penstock

    def close(self) -> None:
        """Close this end; the other end then raises."""
        self._connection.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            self._await(select.POLLIN)
            try:
                piece = os.read(self._connection.fileno(), min(PIECE_BYTES, length - len(data)))
            except BlockingIOError:
                continue
            if not piece:
                raise EOFError
            data += piece
        return data

    def _await(self, event: int) -> None:
        """Wait for a `select.poll` event. Data that a process wrote before it ended can still be read."""
        poll = select.poll()
        poll.register(self._connection, event)
        if self._end is not None:
            poll.register(self._end, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._connection.fileno() not in ready:
            raise EOFError


_SIGNALS_OF_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)  # signals that the parent handles


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """One call, as it is sent to a child."""

    message: Message
    queue: str
    handler: str
    attempt: int
    previous_attempt: PreviousAttempt | None
    key: str | None
    carrier: Carrier  # of the span of this call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRetrying:
    """A call inside the function failed and will be retried there; the result follows later."""

    tries: int
    delay_seconds: float
    failure: FailureDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturned:
    """The function returned a result."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRaised:
    """The function raised; only a description of the exception is sent."""

    kind: str  # reject, retry, other
    failure: FailureDetails
    delay_seconds: float | None


def serve(
    connection: Connection,
    function: Callable[..., Any],
    queue: Queue[Any],
    wants_context: bool,
    continuing: Continuing | None,
) -> None:
    """Run the child: execute calls until the pipe closes. The parent handles Ctrl-C and SIGTERM."""
    with suppress(OSError):
        os.setsid()  # a process group of its own, so that it can be killed with its children
    for number in _SIGNALS_OF_PARENT:
        # Do not ignore the signals: programs that the function starts would inherit that, and could not be terminated.
        signal.signal(number, _ignore_signal)
        signal.siginterrupt(number, False)
    _end_with_parent()
    pipe = Pipe(connection)
    codec: BodyCodec[Any] = BodyCodec(queue)
    while True:
        try:
            call: SentCall = pipe.receive()
        except (EOFError, OSError):
            if continuing is not None:
                continuing.close()
            os._exit(0)  # the parent has ended, or closed the pipe
        with nullcontext() if continuing is None else continuing(call.carrier):
            reply = _run(call, function, codec, wants_context, partial(_send_retry, pipe))
        pipe.send(reply)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the parent process handles this signal."""


def _end_with_parent() -> None:
    """Have the kernel end this process when the parent ends; a function that holds the GIL would never check.

    The parent's sentinel is a pipe. With O_ASYNC set, the kernel sends SIGIO when the other end of the pipe closes, and
    SIGIO ends a process that does not handle it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    with suppress(OSError):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if wait([parent.sentinel], 0):  # the parent had ended before
        os._exit(0)


def _send_retry(pipe: Pipe, tries: int, delay_seconds: float, raised: BaseException) -> None:
    pipe.send(CallRetrying(tries=tries, delay_seconds=delay_seconds, failure=failure_of(raised)))


def _run(
    call: SentCall, function: Callable[..., Any], codec: BodyCodec[Any], wants_context: bool, on_retry: RetryListener
) -> CallReturned | CallRaised:
    context = Context(
        message=call.message,
        queue=call.queue,
        handler=call.handler,
        attempt=call.attempt,
        previous_attempt=call.previous_attempt,
        key=call.key,
        on_retry=on_retry,
    )
    try:
        body = codec.decode(call.message)
        with OwnProcess():
            result = function(body, context) if wants_context else function(body)
        pickle.dumps(result)
    except BaseException as raised:
        failure = failure_of(raised)
        kind = "reject" if isinstance(raised, Reject) else "retry" if isinstance(raised, Retry) else "other"
        delay_seconds = requested_delay(raised)
        return CallRaised(kind=kind, failure=failure, delay_seconds=delay_seconds)
    return CallReturned(result=result)


END_SECONDS = 0.5  # for all children that were asked to end, together


class ChildFailed(PenstockError):
    """The description of an exception that the child's function raised; ``traceback`` is the child's."""

    def __init__(self, failure: FailureDetails) -> None:
        super().__init__(failure.summary)
        self.failure = failure  # `failure_of` uses it unchanged


class ChildDied(PenstockError):
    """The process ended during a call: killed, out of memory, or a crash in C code."""


class ChildProcess:
    """One child process.

    `ChildProcesses` owns it; only the thread that took it calls it, but any thread may kill it.
    """

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
        self._killed = False  # written by the thread that kills it; the process may take a moment to end
        self.busy = False  # written by the thread that took it

    @property
    def alive(self) -> bool:
        """Return True if it can take a call."""
        return not self._killed and self._process.is_alive()

    @property
    def suspended(self) -> bool:
        """Return True if the process is suspended (SIGSTOP, debugger). It may never continue, so its lease must end."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # it has ended, or the system has no /proc
            return False
        return state in ("T", "t")

    def call(self, sent: SentCall, *, on_retry: RetryListener) -> Any:
        """Run a call in the child. Raises what the function raised, or `ChildDied`."""
        try:
            self._pipe.send(sent)
            self.busy = True
            reply: CallRetrying | CallReturned | CallRaised = self._pipe.receive()
            while isinstance(reply, CallRetrying):
                on_retry(reply.tries, reply.delay_seconds, ChildFailed(reply.failure))
                reply = self._pipe.receive()
            self.busy = False
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise ChildDied(f"the handler's process ended while it processed the message ({how})") from error
        if isinstance(reply, CallReturned):
            return reply.result
        raise _exception_of(reply)

    def kill(self) -> None:
        """Kill the process and its process group; a call in progress ends with `ChildDied`."""
        self._killed = True
        if self._process.is_alive() and self._process.pid is not None:
            with suppress(OSError):  # the process group does not exist yet
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def ask_to_end(self) -> None:
        """End an idle child by closing its pipe. No thread but the caller may be using it."""
        self._killed = True
        with suppress(OSError):
            self._pipe.close()

    def ended_by(self, deadline: float) -> bool:
        """Wait for the process until ``deadline`` (`time.monotonic`); return True if it has ended."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        return self._process.exitcode is not None


class ChildProcesses:
    """The child processes of one handler: started when needed, kept for the next call. Thread-safe."""

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
        self._idle: list[ChildProcess] = []  # under the lock, as is the next
        self._closed = False

    def take(self) -> ChildProcess:
        """Return a child for one call, to be returned with `put_back` or killed."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
        return ChildProcess(self._function, self._queue, self._wants_context, self._continuing)

    def put_back(self, child: ChildProcess) -> None:
        """Keep a child for the next call, or end it if it is dead or this was closed."""
        with self._lock:
            keep = child.alive and not self._closed
            if keep:
                self._idle.append(child)
        if not keep:
            child.ask_to_end()

    def close(self) -> None:
        """End the idle children. The others end after their calls, or when those are interrupted."""
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
    """Return an object that becomes readable when the process has ended.

    The process's sentinel is a pipe, which processes forked by the child keep open, so it is the second choice.
    """
    if process.pid is not None and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            # A `Connection` closes the descriptor when it is collected.
            return Connection(os.pidfd_open(process.pid), writable=False)
    return process.sentinel


def _exception_of(raised: CallRaised) -> PenstockError:
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
            f"The handler {getattr(function, '__qualname__', function)!r} cannot run in a child process: it was typed "
            "into a session or given to python -c, so no other process can import it; put it into a file."
        )
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigurationError(
            f"The handler {getattr(function, '__qualname__', function)!r} cannot run in a child process: it has to be "
            f"a function at the top level of a module ({error})."
        ) from error


class ChildCall(PlainCall):
    """One call in a child process, for which a thread of the pool waits.

    Interrupting kills the child, since C code that hangs ignores anything else.
    """

    def __init__(self, delivery: Delivery, runtime: HandlerRuntime, children: ChildProcesses) -> None:
        super().__init__(delivery, runtime)
        self._children = children
        self._child: ChildProcess | None = None  # cleared under the lock; written by the running thread

    def claim(self) -> HeldClaim | None:
        """Return the claim to extend. Raises `ClaimLost` if the child was suspended: it must not keep its lease."""
        child = self._child
        if child is not None and child.suspended:
            raise ClaimLost("the process of the function was suspended")
        return super().claim()

    def drain(self) -> None:
        super().drain()
        if self._runtime.declaration.on_stop == "release":  # the child process sees no checkpoint
            self._kill()

    def interrupt(self) -> None:
        super().interrupt()
        self._kill()

    def call_function(self, opened: OpenedMessage) -> Any:
        context = self.context(opened)
        sent = SentCall(
            # A mapping proxy cannot be pickled.
            message=replace(context.message, attributes=dict(context.message.attributes)),
            queue=context.queue,
            handler=context.handler,
            attempt=context.attempt,
            previous_attempt=context.previous_attempt,
            key=context.key,
            carrier=self._runtime.tracing.carrier(),
        )
        try:
            child = self._child = self._children.take()
        except OSError as error:
            raise NotBegun(f"no process can be started for the handler: {error}") from error
        try:
            context.checkpoint()  # in case it was interrupted before there was a child to kill
            return child.call(sent, on_retry=context.on_retry)
        except Exception:
            context.checkpoint()  # killed by the worker: not a failure of the function
            raise
        finally:
            with self._lock:
                self._child = None
            self._children.put_back(child)

    def _kill(self) -> None:
        with self._lock:  # otherwise the child might already work on another call
            if self._child is not None:
                self._child.kill()

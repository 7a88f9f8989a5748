"""What happens in a child process: calls come through a pipe and are answered there, one after another.

Signals of a terminal or a group are the parent's to answer, and the child ends with its parent.
"""

import fcntl
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from penstock.errors import Reject, Retry
from penstock.handlers.context import Context
from penstock.handlers.decision import delay_asked
from penstock.handlers.pipe import Pipe
from penstock.messaging.call_context import TellRetry
from penstock.messaging.delivery import PreviousAttempt
from penstock.messaging.failure import Failure, failure_of
from penstock.messaging.message import Message
from penstock.messaging.own_process import OwnProcess
from penstock.messaging.queue import Queue
from penstock.messaging.schema import Codec
from penstock.messaging.tracing import Carrier, Continuing

_PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)  # signals that are the parent's to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """One call, as it travels to a child."""

    message: Message
    queue: str
    handler: str
    attempt: int
    previous_attempt: PreviousAttempt | None
    key: str | None
    carrier: Carrier  # of the span that it is made in


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """A call inside the function failed and is tried again there; the answer is yet to come."""

    tries: int
    delay_seconds: float
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The function returned this."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The function raised; of the exception itself only words travel."""

    kind: str  # reject, retry, other
    failure: Failure
    delay_seconds: float | None


def serve(
    connection: Connection,
    function: Callable[..., Any],
    queue: Queue[Any],
    wants_context: bool,
    continuing: Continuing | None,
) -> None:
    """The child's life. A terminal's Ctrl-C and a group's SIGTERM are the parent's to answer."""
    with suppress(OSError):
        os.setsid()  # a group of its own, so that it can be killed with what it starts
    for number in _PARENTS:
        # Not ignored: programs that the function starts would inherit that, and could not be ended any more.
        signal.signal(number, _left_to_the_parent)
        signal.siginterrupt(number, False)
    _end_with_parent()
    pipe = Pipe(connection)
    codec: Codec[Any] = Codec(queue)
    while True:
        try:
            call: SentCall = pipe.receive()
        except (EOFError, OSError):
            if continuing is not None:
                continuing.close()
            os._exit(0)  # the parent is gone, or wants no more
        with nullcontext() if continuing is None else continuing(call.carrier):
            answer = _run(call, function, codec, wants_context, partial(_tell_retry, pipe))
        pipe.send(answer)


def _left_to_the_parent(_number: int, _frame: FrameType | None) -> None:
    """Nothing happens here."""


def _end_with_parent() -> None:
    """Have the kernel end this process when the parent is gone; a function that holds the GIL would never look.

    The parent's sentinel is a pipe. A pipe told to is followed by SIGIO when its other end is closed, and SIGIO ends
    who does not handle it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    with suppress(OSError):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if wait([parent.sentinel], 0):  # it was gone before
        os._exit(0)


def _tell_retry(pipe: Pipe, tries: int, delay_seconds: float, raised: BaseException) -> None:
    pipe.send(Retrying(tries=tries, delay_seconds=delay_seconds, failure=failure_of(raised)))


def _run(
    call: SentCall, function: Callable[..., Any], codec: Codec[Any], wants_context: bool, tell_retry: TellRetry
) -> Returned | Raised:
    context = Context(
        message=call.message,
        queue=call.queue,
        handler=call.handler,
        attempt=call.attempt,
        previous_attempt=call.previous_attempt,
        key=call.key,
        tell_retry=tell_retry,
    )
    try:
        body = codec.decode(call.message)
        with OwnProcess():
            result = function(body, context) if wants_context else function(body)
        pickle.dumps(result)
    except BaseException as raised:
        failure = failure_of(raised)
        kind = "reject" if isinstance(raised, Reject) else "retry" if isinstance(raised, Retry) else "other"
        delay_seconds = delay_asked(raised)
        return Raised(kind=kind, failure=failure, delay_seconds=delay_seconds)
    return Returned(result=result)

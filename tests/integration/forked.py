"""A copy of this process by os.fork that works on request."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError

DEADLINE_SECONDS = 180


class Copy:
    """A copy that calls its work on each request, and responds with the result or the error."""

    def __init__(self, work: Callable[[], object], *, fork: Callable[[], int] = os.fork) -> None:
        (request, self._ask), (self._responses, response) = os.pipe(), os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(self._ask)  # closing the parent's end then ends the copy
            os.close(self._responses)
            self._serve(work, request, response)
        os.close(request)
        os.close(response)

    def ask(self) -> str:
        os.write(self._ask, b"?")
        return os.read(self._responses, 10_000).decode()

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._responses)
        os.waitpid(self._pid, 0)

    def _serve(self, work: Callable[[], object], request: int, response: int) -> None:
        signal.alarm(DEADLINE_SECONDS)  # the copy must not outlive the tests
        try:
            while os.read(request, 1):
                try:
                    response_text = f"{work()}"
                except PenstockError as error:
                    response_text = f"{type(error).__name__}: {error}"
                except BaseException as error:
                    response_text = f"unforeseen {error!r}"
                os.write(response, response_text.encode())
        finally:
            os._exit(0)


@contextmanager
def forked_copy(work: Callable[[], object], *, fork: Callable[[], int] = os.fork) -> Iterator[Copy]:
    copy = Copy(work, fork=fork)
    try:
        yield copy
    finally:
        copy.end()


def fork_unknown_to_python() -> int:
    """Fork as a server in C that embeds Python does."""
    return int(ctypes.PyDLL(None).fork())

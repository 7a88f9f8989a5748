"""A copy of this process by os.fork that works when it is asked to."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError

DEADLINE_SECONDS = 60


class Copy:
    """A copy that calls its work each time it is asked, and answers with what that returned or raised."""

    def __init__(self, work: Callable[[], object], *, fork: Callable[[], int] = os.fork) -> None:
        (asked, self._ask), (self._answers, answer) = os.pipe(), os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(self._ask)  # the parent's end is then the end of it
            os.close(self._answers)
            self._serve(work, asked, answer)
        os.close(asked)
        os.close(answer)

    def ask(self) -> str:
        os.write(self._ask, b"?")
        return os.read(self._answers, 10_000).decode()

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._answers)
        os.waitpid(self._pid, 0)

    def _serve(self, work: Callable[[], object], asked: int, answer: int) -> None:
        signal.alarm(DEADLINE_SECONDS)  # it must not stay on beside the tests
        try:
            while os.read(asked, 1):
                try:
                    said = f"{work()}"
                except PenstockError as error:
                    said = f"{type(error).__name__}: {error}"
                except BaseException as error:
                    said = f"unforeseen {error!r}"
                os.write(answer, said.encode())
        finally:
            os._exit(0)


@contextmanager
def copied(work: Callable[[], object], *, fork: Callable[[], int] = os.fork) -> Iterator[Copy]:
    copy = Copy(work, fork=fork)
    try:
        yield copy
    finally:
        copy.end()


def fork_unknown_to_python() -> int:
    """As a server in C that embeds Python does it."""
    return int(ctypes.PyDLL(None).fork())

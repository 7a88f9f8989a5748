"""Beginning threads on a machine that may have none left, for a moment or for longer."""

import threading
from collections.abc import Callable

from penstock.errors import TemporaryError


def begin_thread(work: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Do the work in a thread of its own, a daemon. Raises `TemporaryError` where none is to be had."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise TemporaryError(f"the machine has no more threads for this process ({error})") from error
    return thread


def begin_thread_or_do(work: Callable[..., object], *arguments: object, name: str) -> None:
    """Do the work in a thread of its own or, where none is to be had, in this one, which then waits for it."""
    try:
        begin_thread(work, *arguments, name=name)
    except TemporaryError:
        work(*arguments)

"""Start threads on a machine that may not be able to start another one."""

import threading
from collections.abc import Callable

from penstock.errors import TemporaryError


def begin_thread(work: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Do the work in a daemon thread of its own. Raises `TemporaryError` if no thread can be started."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise TemporaryError(f"the machine has no more threads for this process ({error})") from error
    return thread


def begin_thread_or_do(work: Callable[..., object], *arguments: object, name: str) -> None:
    """Do the work in a thread of its own or, if none can be started, in the calling thread."""
    try:
        begin_thread(work, *arguments, name=name)
    except TemporaryError:
        work(*arguments)

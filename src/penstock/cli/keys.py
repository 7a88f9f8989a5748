"""Keys that end a screen, as they are pressed; where there is no terminal to press them at, only time passes."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

QUIT = frozenset({"q", "Q", "\x03"})


class Keys:
    """What is pressed at the terminal. ``descriptor`` None: there is none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def quits_within(self, seconds: float) -> bool:
        """Wait so long; answers at once, and yes, when somebody presses a key that ends."""
        ends_at = time.monotonic() + seconds
        while (left_seconds := ends_at - time.monotonic()) > 0:
            watched = [] if self._descriptor is None else [self._descriptor]
            ready, _, _ = select.select(watched, [], [], left_seconds)
            if any(self._quits(descriptor) for descriptor in ready):
                return True
        return False

    def _quits(self, descriptor: int) -> bool:
        pressed = b""
        with suppress(OSError):
            pressed = os.read(descriptor, 64)
        if not pressed:  # the terminal has gone
            self._descriptor = None
        return bool(QUIT.intersection(pressed.decode(errors="replace")))


@contextmanager
def keys() -> Iterator[Keys]:
    """Until the block ends, keys come as they are pressed and are not shown. Ctrl-C stays an interruption."""
    descriptor = _terminal()
    if descriptor is None:
        yield Keys(None)
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    try:
        import termios  # noqa: F401 - not on every system
    except ImportError:
        return None
    try:
        return sys.stdin.fileno() if sys.stdin.isatty() else None
    except (ValueError, OSError):  # closed, or no file
        return None

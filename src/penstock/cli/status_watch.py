"""`penstock status --watch`: the live view of queues and pipelines, and the keys that end it."""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live

from penstock.app.brokers import capabilities_of
from penstock.app.scope import Scope
from penstock.cli.options import duration
from penstock.cli.output import print_json, printable
from penstock.cli.status_screen import document, lines, screen
from penstock.errors import UsageError
from penstock.operations.status.watch import StatusFrame, StatusWatch

Watches = Sequence[tuple[str, StatusWatch]]  # with the heading of each, if there are several

EVERY_SECONDS = 2.0
EVERY_SECONDS_PAID = 15.0  # if each poll is billed
EVERY_SECONDS_MIN = 0.5


def watch(scopes: Sequence[Scope], *, every: str | None, once: bool, json_: bool) -> None:
    """Show the status repeatedly: a screen on a terminal, else a block of lines or a line of JSON per sample.

    A terminal that can only append (TERM=dumb) gets blocks of lines, too.
    """
    every_seconds = max(_every(every, scope) for scope in scopes)
    watches = [(scope.title if len(scopes) > 1 else "", StatusWatch(scope)) for scope in scopes]
    if once:
        _print_once(watches, json_=json_)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the terminal is restored
    try:
        if not json_ and _has_screen():
            _refresh(watches, name=scopes[0].name, every_seconds=every_seconds)
        else:
            _append(watches, every_seconds=every_seconds, json_=json_)
    except KeyboardInterrupt:  # the ordinary way out
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_screen() -> bool:
    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _every(given: str | None, scope: Scope) -> float:
    if given is None:
        return EVERY_SECONDS_PAID if capabilities_of(scope.settings).stats_are_billed else EVERY_SECONDS
    seconds = duration("--every", given)
    if seconds < EVERY_SECONDS_MIN:
        raise UsageError(f"--every is {seconds:g} s; give at least {EVERY_SECONDS_MIN:g} s.")
    return seconds


def _print_once(watches: Watches, *, json_: bool) -> None:
    if json_:
        print_json(_document(watches))
    else:
        sys.stdout.write(_lines(watches))


def _append(watches: Watches, *, every_seconds: float, json_: bool) -> None:
    """Print a block, or a line of JSON, per sample. Ends with an OSError when the reader is gone."""
    while True:
        sys.stdout.write(f"{json.dumps(_document(watches))}\n" if json_ else f"{_lines(watches)}\n")
        sys.stdout.flush()
        time.sleep(every_seconds)


def _document(watches: Watches) -> dict[str, Any]:
    """Return one sample; those of an app and of tables in one folder under ``scopes``."""
    found = [{"scope": title, **document(watch.read())} for title, watch in watches]
    if len(found) == 1:
        return {name: value for name, value in found[0].items() if name != "scope"}
    return {
        "at": found[0]["at"],
        "summary": "; ".join(f"{status['scope']}: {status['summary']}" for status in found),
    } | {"scopes": found}


def _lines(watches: Watches) -> str:
    return "\n".join((f"{printable(title)}:\n" if title else "") + lines(watch.read()) for title, watch in watches)


def _refresh(watches: Watches, *, name: str, every_seconds: float) -> None:
    last: list[StatusFrame | None] = [None] * len(watches)
    with ExitStack() as stack:
        pressed = stack.enter_context(keys())
        live = stack.enter_context(Live(screen=True, auto_refresh=False))
        while True:
            screens: list[RenderableType] = []
            for index, (title, watch) in enumerate(watches):
                frame = watch.read()
                before = last[index] = frame if frame.status is not None else last[index]
                width = live.console.width
                screens.append(screen(frame, before, name=title or name, every_seconds=every_seconds, width=width))
            live.update(Group(*screens), refresh=True)
            if pressed.quits_within(every_seconds):
                return


QUIT = frozenset({"q", "Q", "\x03"})


class KeyReader:
    """Keys that are pressed at the terminal. ``descriptor`` None: there is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def quits_within(self, seconds: float) -> bool:
        """Wait this many seconds; return True at once when a key to quit is pressed."""
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
        if not pressed:  # the terminal is gone
            self._descriptor = None
        return bool(QUIT.intersection(pressed.decode(errors="replace")))


@contextmanager
def keys() -> Iterator[KeyReader]:
    """Read keys as they are pressed, without echo, until the block ends. Ctrl-C stays an interrupt."""
    descriptor = _terminal()
    if descriptor is None:
        yield KeyReader(None)
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield KeyReader(descriptor)
    finally:
        with suppress(termios.error):  # the terminal is gone
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

"""`penstock top`: how everything stands, again and again.

Keys that end a screen, as they are pressed; where there is no terminal to press them at, only time passes.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import duration, grouped_options
from penstock.cli.output import Json, print_json, printable
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from penstock.app.scope import Scope
    from penstock.operations.status.top import StatusWatch, TopFrame

    Watches = Sequence[tuple[str, StatusWatch]]  # with the heading of each, where there are several


EVERY_SECONDS = 2.0
EVERY_SECONDS_PAID = 15.0  # where each look is charged for
EVERY_SECONDS_MIN = 0.5


@grouped_options
def top(
    where: ScopeOptions,
    every: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help="Look so often; 2 s, on SQS 15 s, by itself.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print it, and exit.")] = False,
    json_: Json = False,
) -> None:
    """A screen that refreshes: the verdict, a row a queue with ages, numbers and rates, and the pipelines. q ends it.

    Where the output is no terminal, or one that can only go on (TERM=dumb), each look is a block of lines; with --json
    a line of JSON.
    """
    from penstock.operations.status.top import StatusWatch

    scopes = where.scopes()
    every_seconds = max(_every(every, scope) for scope in scopes)
    watches = [(scope.title if len(scopes) > 1 else "", StatusWatch(scope)) for scope in scopes]
    if once:
        _print_once(watches, json_=json_)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the terminal is left as it was
    try:
        if not json_ and _has_screen():
            _refresh(watches, name=scopes[0].name, every_seconds=every_seconds)
        else:
            _go_on(watches, every_seconds=every_seconds, json_=json_)
    except KeyboardInterrupt:  # which is how one leaves
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_screen() -> bool:
    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _every(given: str | None, scope: "Scope") -> float:
    from penstock.app.backends import is_sqs

    if given is None:
        return EVERY_SECONDS_PAID if is_sqs(scope.settings.broker) else EVERY_SECONDS
    seconds = duration("--every", given)
    if seconds < EVERY_SECONDS_MIN:
        raise UsageError(f"--every is {seconds:g} s; give at least {EVERY_SECONDS_MIN:g} s.")
    return seconds


def _print_once(watches: "Watches", *, json_: bool) -> None:
    if json_:
        print_json(_document(watches))
    else:
        sys.stdout.write(_lines(watches))


def _go_on(watches: "Watches", *, every_seconds: float, json_: bool) -> None:
    """A block, or a line of JSON, a look. Ends with an OSError when nobody reads any more."""
    while True:
        sys.stdout.write(f"{json.dumps(_document(watches))}\n" if json_ else f"{_lines(watches)}\n")
        sys.stdout.flush()
        time.sleep(every_seconds)


def _document(watches: "Watches") -> dict[str, Any]:
    """One look; of an app and tables in one folder each under ``scopes``."""
    from penstock.cli.top_screen import document

    found = [{"scope": title, **document(watch.look())} for title, watch in watches]
    if len(found) == 1:
        return {name: value for name, value in found[0].items() if name != "scope"}
    return {"at": found[0]["at"], "verdict": "; ".join(f"{one['scope']}: {one['verdict']}" for one in found)} | {
        "scopes": found
    }


def _lines(watches: "Watches") -> str:
    from penstock.cli.top_screen import lines

    return "\n".join((f"{printable(title)}:\n" if title else "") + lines(watch.look()) for title, watch in watches)


def _refresh(watches: "Watches", *, name: str, every_seconds: float) -> None:
    from rich.console import Group
    from rich.live import Live

    from penstock.cli.top_screen import screen

    last: list[TopFrame | None] = [None] * len(watches)
    with ExitStack() as stack:
        pressed = stack.enter_context(keys())
        live = stack.enter_context(Live(screen=True, auto_refresh=False))
        while True:
            screens: list[RenderableType] = []
            for place, (title, watch) in enumerate(watches):
                frame = watch.look()
                before = last[place] = frame if frame.standing is not None else last[place]
                width = live.console.width
                screens.append(screen(frame, before, name=title or name, every_seconds=every_seconds, width=width))
            live.update(Group(*screens), refresh=True)
            if pressed.quits_within(every_seconds):
                return


QUIT = frozenset({"q", "Q", "\x03"})


class KeyReader:
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
def keys() -> Iterator[KeyReader]:
    """Until the block ends, keys come as they are pressed and are not shown. Ctrl-C stays an interruption."""
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

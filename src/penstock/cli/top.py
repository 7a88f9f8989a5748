"""`penstock top`: how everything stands, again and again."""

import json
import signal
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.durations import duration
from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, print_json
from penstock.cli.where import Where
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.app.top import Frame, Watch

EVERY_SECONDS = 2.0
EVERY_SECONDS_PAID = 15.0  # where each look is charged for
EVERY_SECONDS_MIN = 0.5


@grouped_options
def top(
    where: Where,
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
    from penstock.app.top import Watch

    scope = where.scope()
    every_seconds = _every(every, scope)
    watch = Watch(scope)
    if once:
        _print_once(watch.look(), json_=json_)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the terminal is left as it was
    try:
        if not json_ and _has_screen():
            _refresh(watch, name=scope.name, every_seconds=every_seconds)
        else:
            _go_on(watch, every_seconds=every_seconds, json_=json_)
    except KeyboardInterrupt:  # which is how one leaves
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_screen() -> bool:
    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _every(given: str | None, scope: "Scope") -> float:
    from penstock.app.sqs_address import is_sqs

    if given is None:
        return EVERY_SECONDS_PAID if is_sqs(scope.settings.broker) else EVERY_SECONDS
    seconds = duration("--every", given)
    if seconds < EVERY_SECONDS_MIN:
        raise UsageError(f"--every is {seconds:g} s; give at least {EVERY_SECONDS_MIN:g} s.")
    return seconds


def _print_once(frame: "Frame", *, json_: bool) -> None:
    from penstock.cli.top_screen import document, lines

    if json_:
        print_json(document(frame))
    else:
        sys.stdout.write(lines(frame))


def _go_on(watch: "Watch", *, every_seconds: float, json_: bool) -> None:
    """A block, or a line of JSON, a look. Ends with an OSError when nobody reads any more."""
    from penstock.cli.top_screen import document, lines

    while True:
        frame = watch.look()
        sys.stdout.write(f"{json.dumps(document(frame))}\n" if json_ else f"{lines(frame)}\n")
        sys.stdout.flush()
        time.sleep(every_seconds)


def _refresh(watch: "Watch", *, name: str, every_seconds: float) -> None:
    from rich.live import Live

    from penstock.cli.keys import keys
    from penstock.cli.top_screen import screen

    last: Frame | None = None
    with ExitStack() as stack:
        pressed = stack.enter_context(keys())
        live = stack.enter_context(Live(screen=True, auto_refresh=False))
        while True:
            frame = watch.look()
            last = frame if frame.standing is not None else last
            live.update(
                screen(frame, last, name=name, every_seconds=every_seconds, width=live.console.width), refresh=True
            )
            if pressed.quits_within(every_seconds):
                return

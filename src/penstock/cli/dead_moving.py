"""`penstock dead replay --move`: SQS's own way back for whole queues."""

from contextlib import closing
from typing import TYPE_CHECKING

import typer

from penstock.cli import asking, dead_options
from penstock.cli.output import print_json

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked
    from penstock.app.scope import Scope


def move_all(scope: "Scope", asked: "Asked", *, to: str | None, rate: float | None, yes: bool, json_: bool) -> None:
    """Ask, move, and report."""
    from penstock.app.dead_letters import letter_queues, opened_ledger
    from penstock.app.dead_moving import check_movable, move
    from penstock.app.inspect import view
    from penstock.cli.leaving import stoppable, stopped_code

    with view(scope) as seen:
        check_movable(seen, asked, to=to)
        if not yes:
            asking.must_be_told("dead replay --move", options="--yes")
            queues = letter_queues(seen, asked)
            about = sum(seen.broker.stats(queue).visible for queue in queues)
            if not asking.confirmed(f"Move all letters of {', '.join(queues)}, about {about:,}?"):
                raise asking.declined("moved")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            dead_options.progress("moving", total=None) as told,
        ):
            moved = move(seen, asked, to=to, rate=rate, ledger=ledger, stopped=lambda: stop.requested, told=told)
    if json_:
        print_json({"moved": moved, "interrupted": stop.requested})
    else:
        print(f"{dead_options.letters_said(moved)} moved.")
    if stop.requested:
        raise typer.Exit(stopped_code(stop))

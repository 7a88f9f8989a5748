"""The commands that bring failed objects back, as they can be run."""

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.scope import Scope


def advice_in(scope: "Scope", *, pipeline: str, uri: str | None = None) -> str:
    """Return what to do about the failed objects of a pipeline, or about one of them."""
    is_app = scope.table is None
    options = scope.options or (f" --pipeline {shlex.quote(pipeline)}" if is_app else "")
    return advice(options, uri=uri, handler=pipeline if is_app else None, retry=not is_app or bool(scope.served))


def advice(options: str, *, uri: str | None = None, handler: str | None = None, retry: bool = True) -> str:
    """Return a sentence with the commands. ``options`` lead to the table or app, ``handler`` leaves the dead letters of
    other handlers out, ``retry`` is for where the queue of new notifications is known."""
    whose = (
        f" --object {shlex.quote(uri)}" if uri is not None else f" --handler {shlex.quote(handler)}" if handler else ""
    )
    them, letters = ("it", "letter was") if uri is not None else ("them", "letters were")
    told = f"Once the cause is repaired, `penstock dead replay{options}{whose} --yes` tries {them} again"
    if not retry:
        return f"{told}."
    named = f" {shlex.quote(uri)}" if uri is not None else ""
    return f"{told}; if the dead {letters} deleted, `penstock objects retry{options}{named} --yes` does."

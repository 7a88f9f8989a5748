"""The commands that bring failed objects back, and sentences with them. Commands and the dashboard show them."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCommands:
    """Command lines for failed objects. ``retry`` is None if the queue of new notifications is not known."""

    replay: str  # if their dead letters still exist
    retry: str | None


def retry_commands(scope: "Scope", *, pipeline: str, uri: str | None = None) -> RetryCommands:
    """Return the commands that bring back the failed objects of a pipeline, or one of them."""
    is_app = scope.table is None
    options = scope.options or (f" --pipeline {shlex.quote(pipeline)}" if is_app else "")
    return _commands(options, uri=uri, handler=pipeline if is_app else None, retry=not is_app or bool(scope.served))


def advice_in(scope: "Scope", *, pipeline: str, uri: str | None = None) -> str:
    """Return how to bring back the failed objects of a pipeline, or one of them."""
    return _sentence(retry_commands(scope, pipeline=pipeline, uri=uri), is_one=uri is not None)


def advice_for_several(scope: "Scope", pipelines: int) -> str:
    """Return how to bring back the failed objects of several pipelines, whose causes may differ."""
    return (
        f"Objects of {pipelines} pipelines failed: `penstock dead groups{scope.options}` shows why. Once a cause is "
        f"fixed, `penstock dead replay{scope.options} --error GROUP` tries them again."
    )


def advice(options: str, *, handler: str | None = None) -> str:
    """Return a sentence with the commands that bring failed objects back.

    ``options`` select the table or app; ``handler`` excludes dead letters of other handlers.
    """
    return _sentence(_commands(options, uri=None, handler=handler, retry=True), is_one=False)


def _commands(options: str, *, uri: str | None, handler: str | None, retry: bool) -> RetryCommands:
    which = (
        f" --object {shlex.quote(uri)}" if uri is not None else f" --handler {shlex.quote(handler)}" if handler else ""
    )
    named = f" {shlex.quote(uri)}" if uri is not None else ""
    return RetryCommands(
        replay=f"penstock dead replay{options}{which}",
        retry=f"penstock objects retry{options}{named}" if retry else None,
    )


def _sentence(commands: RetryCommands, *, is_one: bool) -> str:
    them, subject = ("it", "letter was") if is_one else ("them", "letters were")
    sentence = f"Once the cause is fixed, `{commands.replay}` tries {them} again"
    if commands.retry is None:
        return f"{sentence}."
    return f"{sentence}; if the dead {subject} deleted, `{commands.retry}` does."

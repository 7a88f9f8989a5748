"""Send failures to chats and mailboxes through Apprise: a title, the facts and the end of the traceback.

Every address has a hook of its own, so that the failure of one does not hide the others.
"""

from collections.abc import Mapping

import apprise

from penstock.errors import ConfigurationError
from penstock.monitoring.errors.occurrences import ErrorContext, ErrorHook
from penstock.monitoring.errors.services.service import ReportingSettings, ReportRejected, safe, safe_traceback

TITLE_CHARS_MAX = 200
ERROR_CHARS_MAX = 600
FACT_CHARS_MAX = 300
TRACEBACK_CHARS_MAX = 1_500  # most chats show about twice that of one message


class ChatHook:
    """An error hook for one address. One thread calls it."""

    def __init__(self, name: str, chat: apprise.Apprise, settings: ReportingSettings) -> None:
        self._name = name
        self._chat = chat
        self._settings = settings

    def __call__(self, exception: BaseException | None, context: ErrorContext) -> None:  # noqa: ARG002 - a hook's
        taken = self._chat.notify(
            title=title(context, self._settings),
            body=body(context),
            notify_type=apprise.NotifyType.FAILURE if context.final else apprise.NotifyType.WARNING,
            body_format=apprise.NotifyFormat.TEXT,
        )
        if not taken:
            raise ReportRejected(f"{self._name} did not take the report; does its address still hold, and is it up?")


def chat_hooks(settings: ReportingSettings) -> Mapping[str, ErrorHook]:
    """Return a hook for each address, named by its scheme. Raises `ConfigurationError` for an unknown scheme."""
    hooks: dict[str, ErrorHook] = {}
    for number, url in enumerate(settings.notify_urls, start=1):
        chat = apprise.Apprise()
        scheme = url.partition("://")[0] if "://" in url else "?"
        if not chat.add(url):
            raise ConfigurationError(
                f"Apprise does not know address {number} of the setting alerts.notify_urls ({scheme}://...): its wiki "
                "lists how each service's is written, such as slack://TOKEN_A/TOKEN_B/TOKEN_C."
            )
        name = f"notify_urls {number} ({scheme})"
        hooks[name] = ChatHook(name, chat, settings)
    return hooks


def title(context: ErrorContext, settings: ReportingSettings) -> str:
    """Return one line: the place of the failure, or its short description."""
    where = f"{context.handler or context.process}{' failed' if context.subject is None else f': {context.subject}'}"
    environment = f" [{settings.environment}]" if settings.environment else ""
    often = f", {context.occurrences} times" if context.occurrences > 1 else ""
    given_up = "" if context.final else ", to be tried again"
    return _one_line(f"{settings.service}{environment}: {where}{often}{given_up}", chars_max=TITLE_CHARS_MAX)


def body(context: ErrorContext) -> str:
    """Return the error, its facts and the end of the traceback."""
    known = {
        "process": context.process,
        "queue": context.queue,
        "message": context.message_id,
        "object": context.object_uri,
        "attempt": context.attempt or context.attempt_id,
        "worker": context.worker,
        "fingerprint": context.fingerprint,
    }
    lines = [safe(context.error, chars_max=ERROR_CHARS_MAX), ""]
    lines += [f"{name}: {_one_line(str(value), chars_max=FACT_CHARS_MAX)}" for name, value in known.items() if value]
    if context.traceback:
        lines += ["", safe_traceback(context.traceback, chars_max=TRACEBACK_CHARS_MAX)]
    return "\n".join(lines)


def _one_line(text: str, *, chars_max: int) -> str:
    return safe("".join(character if character.isprintable() else " " for character in text), chars_max=chars_max)

"""Send failures to Rollbar with its own library.

The library has one set of settings per process. If the user initialised it, those apply; otherwise it is initialised
here, without local variables, the command line or personal data, and sends in the calling thread.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rollbar
from rollbar.lib import events

from penstock.monitoring.errors.occurrences import ErrorContext
from penstock.monitoring.errors.services.service import (
    SEND_SECONDS,
    ReportingSettings,
    ReportRejected,
    facts,
    head,
    level,
    safe,
    safe_traceback,
    tags,
)

TEXT_CHARS_MAX = 300


class RollbarHook:
    """The error hook for Rollbar. One thread calls it."""

    def __init__(self, settings: ReportingSettings) -> None:
        self._settings = settings
        self._ours: bool | None = None  # True: we initialised the library; None: nothing was sent yet
        self._log = _RollbarLog()

    def __call__(self, exception: BaseException | None, context: ErrorContext) -> None:
        if self._ours is None:
            self._ours = self._initialised()
        with self._log.collect() as text:
            uuid = _reported(exception, context)
        if text or uuid is None:
            raise ReportRejected(f"Rollbar did not take the report: {text[0] if text else 'its settings leave it out'}")

    def _initialised(self) -> bool:
        """Initialise the library unless the user did. Return True if it was initialised here."""
        if rollbar.SETTINGS["access_token"]:
            return False
        rollbar.init(
            self._settings.rollbar_token or "",
            environment=self._settings.environment or "production",
            code_version=self._settings.release,
            handler="blocking",
            timeout=int(SEND_SECONDS),
            locals={"enabled": False},
            allow_logging_basic_config=False,
            log_all_rate_limited_items=True,
            log_payload_on_error=False,
            capture_email=False,
            capture_username=False,
            capture_ip=False,
        )
        events.add_payload_handler(_without_secrets)
        return True


def _reported(exception: BaseException | None, context: ErrorContext) -> str | None:
    custom = {**tags(context), **facts(context)}
    payload = {"fingerprint": context.fingerprint, "context": context.handler or context.process}
    uuid: str | None
    if exception is None:
        text = f"{safe(context.error)}\n\n{safe_traceback(context.traceback or '')}".strip()
        uuid = rollbar.report_message(text, level=level(context), extra_data=custom, payload_data=payload)
    else:
        raised = (type(exception), exception, exception.__traceback__)
        uuid = rollbar.report_exc_info(raised, extra_data=custom, payload_data=payload, level=level(context))
    return uuid


def _without_secrets(payload: dict[str, Any], **_: object) -> dict[str, Any]:
    """Remove the command line, which may hold an address with its password, and mask passwords in error messages."""
    data = payload["data"]
    data.get("server", {}).pop("argv", None)
    body = data.get("body", {})
    for trace in [*body.get("trace_chain", ()), *([body["trace"]] if "trace" in body else ())]:
        trace["exception"]["message"] = safe(str(trace["exception"]["message"]))
    return payload


class _RollbarLog(logging.Handler):
    """Log handler that detects rejected reports: the library raises and returns nothing for them, it only logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread: int | None = None  # written by the reporting thread, as is _heard
        self._heard: list[str] = []

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """Collect the library's warnings from this thread until the block ends."""
        self._thread, self._heard = threading.get_ident(), []
        logger = logging.getLogger("rollbar")
        logger.addHandler(self)
        try:
            yield self._heard
        finally:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._heard.append(head(safe(" ".join(record.getMessage().split())), TEXT_CHARS_MAX))

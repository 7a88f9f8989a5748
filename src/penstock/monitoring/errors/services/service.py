"""What the services have in common: their settings, their facts of a failure, and what is left out of texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from penstock.errors import ConfigurationError, PenstockError
from penstock.messaging.addresses import masked
from penstock.messaging.failure import TRACEBACK_CHARS_MAX
from penstock.monitoring.errors.occurrences import ErrorContext
from penstock.monitoring.logs.lines import TRIMMED, clean

SEND_SECONDS = 5.0  # what a service has for its answer
ERROR_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingSettings:
    """Where failures are told, and what is said of this service with each."""

    sentry_dsn: str | None = None
    rollbar_token: str | None = None
    notify_urls: tuple[str, ...] = ()
    service: str = "penstock"
    version: str | None = None  # of the service
    environment: str | None = None

    @property
    def release(self) -> str | None:
        """As Sentry and Rollbar call a version of a service."""
        return None if self.version is None else f"{self.service}@{self.version}"


class ReportRejected(PenstockError):
    """A service did not take a report."""


def require(package: str, extra: str, *, setting: str) -> None:
    """Raise `ConfigurationError`, naming the extra, if the package is missing. Imports nothing."""
    if find_spec(package) is None:
        raise ConfigurationError(
            f"The setting {setting} names where failures are told, and the package {package} cannot be found here: run "
            f"pip install 'penstock[{extra}]'."
        )


def tags(context: ErrorContext) -> Mapping[str, str]:
    """Short facts that failures are searched by."""
    found = {"process": context.process, "handler": context.handler, "queue": context.queue}
    return {name: clean(value) for name, value in found.items() if value}


def facts(context: ErrorContext) -> Mapping[str, object]:
    """Everything else that is known of this one failure."""
    found = {
        "worker": context.worker,
        "message_id": context.message_id,
        "attempt": context.attempt,
        "object": context.object_uri,
        "attempt_id": context.attempt_id,
        "final": context.final,
        "occurrences": context.occurrences,
        "fingerprint": context.fingerprint,
    }
    return {
        name: clean(value) if isinstance(value, str) else value for name, value in found.items() if value is not None
    }


def level(context: ErrorContext) -> Literal["error", "warning"]:
    """An error where nothing tries it again, as in the log."""
    return "error" if context.final else "warning"


def error_type(context: ErrorContext) -> str:
    """The part of the fingerprint that says so."""
    return context.fingerprint.split("|")[-2] if context.fingerprint.count("|") >= 2 else "Error"


def safe(text: str, *, chars_max: int = ERROR_CHARS_MAX) -> str:
    """A text that may leave: passwords of addresses masked, its beginning where it is long."""
    return head(masked(clean(text)), chars_max)


def safe_traceback(text: str, *, chars_max: int = TRACEBACK_CHARS_MAX) -> str:
    """As `safe`; of a traceback the end stays, where its error is."""
    return tail(masked(clean(text)), chars_max)


def head(text: str, chars_max: int) -> str:
    """The beginning of a long text."""
    return text if len(text) <= chars_max else text[: chars_max - len(TRIMMED)] + TRIMMED


def tail(text: str, chars_max: int) -> str:
    """The end of a long text."""
    return text if len(text) <= chars_max else TRIMMED + text[len(TRIMMED) - chars_max :]

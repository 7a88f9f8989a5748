"""The common part of the error services: settings, facts of a failure, and safe texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from penstock.errors import ConfigurationError, PenstockError
from penstock.messaging.addresses import masked
from penstock.messaging.failure import TRACEBACK_CHARS_MAX
from penstock.monitoring.errors.occurrences import ErrorContext
from penstock.monitoring.logs.lines import TRIMMED, clean

SEND_SECONDS = 5.0  # time limit for the response of a service
ERROR_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingSettings:
    """The services to report failures to, and the facts about this service in each report."""

    sentry_dsn: str | None = None
    rollbar_token: str | None = None
    notify_urls: tuple[str, ...] = ()
    service: str = "penstock"
    version: str | None = None  # of the service
    environment: str | None = None

    @property
    def release(self) -> str | None:
        """Return the name of the service's version, in Sentry's and Rollbar's form."""
        return None if self.version is None else f"{self.service}@{self.version}"


class ReportRejected(PenstockError):
    """A service did not accept a report."""


def require(package: str, extra: str, *, setting: str) -> None:
    """Raise `ConfigurationError`, naming the extra, if the package is missing. Imports nothing."""
    if find_spec(package) is None:
        raise ConfigurationError(
            f"The setting {setting} sends failures to a service and needs the package {package}, which is not "
            f"installed: run pip install 'penstock[{extra}]'."
        )


def tags(context: ErrorContext) -> Mapping[str, str]:
    """Return the short facts to search failures by."""
    found = {"process": context.process, "handler": context.handler, "queue": context.queue}
    return {name: clean(value) for name, value in found.items() if value}


def facts(context: ErrorContext) -> Mapping[str, object]:
    """Return all other facts of this failure."""
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
    """Return "error" for a failure that is not retried, as in the log."""
    return "error" if context.final else "warning"


def error_type(context: ErrorContext) -> str:
    """Return the error type from the fingerprint."""
    return context.fingerprint.split("|")[-2] if context.fingerprint.count("|") >= 2 else "Error"


def safe(text: str, *, chars_max: int = ERROR_CHARS_MAX) -> str:
    """Return a text that may be sent: passwords in addresses masked, cut at the end if it is too long."""
    return head(masked(clean(text)), chars_max)


def safe_traceback(text: str, *, chars_max: int = TRACEBACK_CHARS_MAX) -> str:
    """Return a traceback that may be sent; a long one keeps its end, where the error is."""
    return tail(masked(clean(text)), chars_max)


def head(text: str, chars_max: int) -> str:
    """Cut a long text at the end."""
    return text if len(text) <= chars_max else text[: chars_max - len(TRIMMED)] + TRIMMED


def tail(text: str, chars_max: int) -> str:
    """Cut a long text at the beginning."""
    return text if len(text) <= chars_max else TRIMMED + text[len(TRIMMED) - chars_max :]

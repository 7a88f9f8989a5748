"""Send failures to Sentry with its own SDK and transport.

If the user initialised Sentry, the user's client is used, with its options and integrations. Otherwise a private client
is: it patches nothing and sends no values of variables.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.transport import HttpTransport
from sentry_sdk.utils import BadDsn, Dsn, event_from_exception

from penstock.errors import ConfigurationError
from penstock.monitoring.errors.occurrences import ErrorContext
from penstock.monitoring.errors.services.service import (
    SEND_SECONDS,
    ReportingSettings,
    ReportRejected,
    error_type,
    facts,
    level,
    safe,
    safe_traceback,
    tags,
)

if TYPE_CHECKING:
    from sentry_sdk.client import BaseClient


class _Transport(HttpTransport):
    """Sentry's transport, which also records why it lost an event."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.lost: list[str] = []  # written by the transport's thread, taken by ours while that one is idle

    def on_dropped_event(self, _reason: str) -> None:
        self.lost.append(_reason)


class SentryHook:
    """The error hook for Sentry. One thread calls it."""

    def __init__(self, settings: ReportingSettings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Check the DSN. Raises `ConfigurationError` if it is invalid."""
        try:
            Dsn(settings.sentry_dsn or "")
        except BadDsn as error:
            raise ConfigurationError(
                "The setting alerts.sentry_dsn is not a DSN: copy it from the project's settings in Sentry, as in "
                "https://KEY@HOST/PROJECT."
            ) from error
        self._settings = settings
        self._monotonic = monotonic
        self._own: sentry_sdk.Client | None = None  # made on first use

    def __call__(self, exception: BaseException | None, context: ErrorContext) -> None:
        client = sentry_sdk.get_client()
        theirs = client.is_active()
        if not theirs:
            client = self._client()
        event, hint = _event(exception, context, client)
        captured = sentry_sdk.capture_event(event, hint) if theirs else client.capture_event(event, hint)
        if captured is None:
            raise ReportRejected("Sentry's client did not take the report: its own settings leave it out.")
        _deliver(client, self._monotonic)

    def _client(self) -> sentry_sdk.Client:
        if self._own is None:
            self._own = sentry_sdk.Client(
                dsn=self._settings.sentry_dsn,
                environment=self._settings.environment,
                release=self._settings.release,
                include_local_variables=False,
                default_integrations=False,
                auto_enabling_integrations=False,
                auto_session_tracking=False,
                send_client_reports=False,
                max_breadcrumbs=0,
                transport=_Transport,
            )
        return self._own


def _event(exception: BaseException | None, context: ErrorContext, client: "BaseClient") -> tuple[Any, Any]:
    if exception is None:  # an exception of which only the text is left
        described = {"type": error_type(context), "value": context.error}
        event: Any = {"exception": {"values": [described]}}
        hint: Any = None
    else:
        event, hint = event_from_exception(
            exception, client_options=client.options, mechanism={"type": "penstock", "handled": True}
        )
    for one in event["exception"]["values"]:
        one["value"] = safe(str(one.get("value") or ""))
    event["level"] = level(context)
    event["fingerprint"] = [context.fingerprint]
    event["tags"] = {**tags(context), "fingerprint": context.fingerprint}
    event["contexts"] = {"penstock": dict(facts(context))}
    if exception is None and context.traceback:
        event["extra"] = {"traceback": safe_traceback(context.traceback)}
    return event, hint


def _deliver(client: "BaseClient", monotonic: Callable[[], float]) -> None:
    """Wait until the event is sent. Raises `ReportRejected` if it was not."""
    ends_at = monotonic() + SEND_SECONDS
    client.flush(SEND_SECONDS)
    transport = client.transport
    if not isinstance(transport, _Transport):
        return  # the user's own transport, which does not report losses
    lost, transport.lost = transport.lost, []
    if lost:
        raise ReportRejected(f"Sentry did not take the report: {', '.join(lost)}.")
    if monotonic() >= ends_at:
        raise ReportRejected(f"Sentry did not answer within {SEND_SECONDS:g} s.")

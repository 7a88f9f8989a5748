"""Services that failures are told to besides the user's own hook: Sentry, Rollbar, and chats by way of Apprise.

Each is an error hook: called in a thread of its own, it sends, waits for the answer, and raises where the service did
not take the report. Texts leave with the passwords of addresses masked, and nothing leaves with values of variables.
"""

from collections.abc import Mapping

from penstock.monitoring.errors.occurrences import ErrorHook
from penstock.monitoring.errors.services.service import ReportingSettings, require

__all__ = ["ReportingSettings", "services"]


def services(settings: ReportingSettings) -> Mapping[str, ErrorHook]:
    """The hooks that the settings ask for, each by a name for people.

    Raises `ConfigurationError` for an address that is none, and for an extra that is not installed.
    """
    hooks: dict[str, ErrorHook] = {}
    if settings.sentry_dsn:
        require("sentry_sdk", "sentry", setting="sentry_dsn")
        from penstock.monitoring.errors.services.sentry import SentryHook

        hooks["sentry"] = SentryHook(settings)
    if settings.rollbar_token:
        require("rollbar", "rollbar", setting="rollbar_token")
        from penstock.monitoring.errors.services.rollbar import RollbarHook

        hooks["rollbar"] = RollbarHook(settings)
    if settings.notify_urls:
        require("apprise", "apprise", setting="notify_urls")
        from penstock.monitoring.errors.services.chat import chat_hooks

        hooks |= chat_hooks(settings)
    return hooks

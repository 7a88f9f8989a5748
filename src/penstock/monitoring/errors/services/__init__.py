"""Error services besides the user's own hook: Sentry, Rollbar, and chats through Apprise.

Each is an error hook: called in a thread of its own, it sends the report, waits for the response and raises if the
service rejected it. Passwords in addresses are masked in all texts, and no values of variables are sent.
"""

from collections.abc import Mapping

from penstock.monitoring.errors.occurrences import ErrorHook
from penstock.monitoring.errors.services.service import ReportingSettings, require

__all__ = ["ReportingSettings", "services"]


def services(settings: ReportingSettings) -> Mapping[str, ErrorHook]:
    """Return the hooks of the services in the settings, by a name for people.

    Raises `ConfigurationError` for an invalid address, and for an extra that is not installed.
    """
    hooks: dict[str, ErrorHook] = {}
    if settings.sentry_dsn:
        require("sentry_sdk", "sentry", setting="alerts.sentry_dsn")
        from penstock.monitoring.errors.services.sentry import SentryHook

        hooks["sentry"] = SentryHook(settings)
    if settings.rollbar_token:
        require("rollbar", "rollbar", setting="alerts.rollbar_token")
        from penstock.monitoring.errors.services.rollbar import RollbarHook

        hooks["rollbar"] = RollbarHook(settings)
    if settings.notify_urls:
        require("apprise", "apprise", setting="alerts.notify_urls")
        from penstock.monitoring.errors.services.chat import chat_hooks

        hooks |= chat_hooks(settings)
    return hooks

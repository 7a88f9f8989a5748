"""Selection of error services by settings, and the error if a package is missing."""

from typing import Any

import pytest

from penstock.config import Settings, shown
from penstock.errors import ConfigurationError
from penstock.monitoring.errors.services import ReportingSettings, service, services
from penstock.monitoring.errors.services.service import safe, safe_traceback


def test_without_settings_no_service_is_selected() -> None:
    assert services(ReportingSettings()) == {}


@pytest.mark.parametrize(
    ("given", "package", "extra"),
    [
        ({"sentry_dsn": "http://key@host/1"}, "sentry_sdk", "sentry"),
        ({"rollbar_token": "hunter2"}, "rollbar", "rollbar"),
        ({"notify_urls": ("json://host",)}, "apprise", "apprise"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], package: str, extra: str
) -> None:
    monkeypatch.setattr(service, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ConfigurationError, match=rf"pip install 'penstock\[{extra}\]'") as raised:
        services(ReportingSettings(**given))
    assert raised.value.exit_code == 78
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alerts_sentry_dsn", "https://hunter2@o1.ingest.sentry.io/2"),
        ("alerts_rollbar_token", "hunter2"),
        ("alerts_notify_urls", ["slack://hunter2/B/C", "mailto://me:hunter2@host"]),
    ],
)
def test_settings_are_masked_wherever_they_are_shown(name: str, value: Any) -> None:
    assert name in Settings.model_fields
    assert "hunter2" not in str(shown(name, value))


def test_reported_texts_are_bounded_and_without_passwords() -> None:
    assert safe("redis://app:hunter2@cache:6379 is down") == "redis://app:***@cache:6379 is down"
    assert len(safe("x" * 10_000)) == 2_000
    assert safe("\udc80") == r"\udc80"


def test_a_long_traceback_keeps_its_end() -> None:
    traceback = 'open("\udc80")\n' * 100 + "ConnectionError: redis://app:hunter2@cache:6379 is down"
    trimmed = safe_traceback(traceback, chars_max=200)
    assert trimmed.endswith("ConnectionError: redis://app:***@cache:6379 is down")
    assert len(trimmed) == 200
    assert safe_traceback(traceback).endswith(trimmed[-100:])

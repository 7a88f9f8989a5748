"""The stop budget, and settings that refuse invalid numbers."""

import pytest

from penstock.errors import ConfigurationError
from penstock.worker.settings import WorkerSettings, budget


def test_by_default_the_drain_gets_the_remaining_time() -> None:
    parts = budget(stop_timeout_seconds=30)
    assert (parts.intake_seconds, parts.drain_seconds, parts.release_seconds) == (1, 22, 3)
    assert (parts.flush_seconds, parts.margin_seconds) == (2, 2)


def test_a_stop_timeout_too_short_for_the_rest_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="leaves no time to drain"):
        budget(stop_timeout_seconds=7)


def test_a_drain_that_does_not_fit_is_refused_with_the_longest_possible() -> None:
    with pytest.raises(ConfigurationError, match="drain at most 22 s"):
        budget(stop_timeout_seconds=30, drain_seconds=23)


def test_a_poll_longer_than_the_drain_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="polls are never cut"):
        budget(stop_timeout_seconds=10, poll_wait_seconds=20)


def test_settings_check_the_budget_at_construction() -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(stop_timeout_seconds=5)


def test_the_heartbeat_is_a_third_of_the_lease() -> None:
    assert WorkerSettings(lease_seconds=15).heartbeat_interval_seconds == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"settle_max": 0},
        {"fetch_max": 0},
        {"lease_seconds": 0.0},
        {"lease_seconds": float("nan")},
        {"heartbeat_seconds": 40.0},
        {"heartbeat_seconds": 0.0},
        {"idle_ceiling_seconds": 0.01},
        {"start_jitter_seconds": 2.0},
        {"start_jitter_seconds": -0.1},
    ],
)
def test_invalid_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(**wrong)  # type: ignore[arg-type] # the settings check themselves

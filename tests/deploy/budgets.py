"""Compare the seconds that a file of deploy/ grants with the stop timeout that it sets."""

from penstock.operations.shutdown_budget import plan


def check(text: str, platform: str, *, granted_seconds: float, setting: str, pre_stop_seconds: float = 0.0) -> None:
    """Assert that the text has the line of `penstock admin config check-budget`, and that the setting fits."""
    found = plan(platform, platform_seconds=granted_seconds, pre_stop_seconds=pre_stop_seconds)
    assert found.platform_line in text
    assert float(setting) == found.stop_timeout_seconds
    assert found.parts[-1].ends_at_seconds <= granted_seconds

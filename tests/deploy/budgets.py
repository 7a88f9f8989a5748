"""Whether the seconds that a file of deploy/ grants are those that it tells Penstock of."""

from penstock.operations.shutdown_budget import plan


def check(text: str, platform: str, *, granted_seconds: float, setting: str, pre_stop_seconds: float = 0.0) -> None:
    """The file's text has the line that `penstock config check-budget` prints, and the setting is what that leaves."""
    found = plan(platform, platform_seconds=granted_seconds, pre_stop_seconds=pre_stop_seconds)
    assert found.platform_line in text
    assert float(setting) == found.stop_timeout_seconds
    assert found.parts[-1].ends_at_seconds <= granted_seconds

import pytest

from penstock.app.pipelines.plan import worker_settings
from penstock.config import Settings


@pytest.mark.parametrize(
    ("asked_seconds", "drain_seconds"),
    [
        pytest.param(None, 20.0, id="what stopping and Spark's end leave of 30 s"),
        pytest.param(5.0, 5.0, id="as set"),
        pytest.param(22.0, 20.0, id="as set, but for Spark's end"),
    ],
)
def test_a_pipeline_alone_drains_as_long_as_the_settings_say(asked_seconds: float | None, drain_seconds: float) -> None:
    settings = Settings.model_construct(worker_stop_timeout=30.0, worker_drain=asked_seconds)
    assert worker_settings(settings).budget.drain_seconds == drain_seconds

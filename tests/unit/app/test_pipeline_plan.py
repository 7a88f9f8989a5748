"""The settings of a worker that runs one pipeline."""

import pytest

from penstock.app.pipelines.plan import worker_settings
from penstock.config import Settings


@pytest.mark.parametrize(
    ("set_seconds", "drain_seconds"),
    [
        pytest.param(None, 20.0, id="not set: 30 s less the time to stop and to end Spark"),
        pytest.param(5.0, 5.0, id="as set"),
        pytest.param(22.0, 20.0, id="as set, less the time to end Spark"),
    ],
)
def test_a_pipeline_that_runs_alone_drains_as_long_as_the_settings_allow(
    set_seconds: float | None, drain_seconds: float
) -> None:
    settings = Settings.model_construct(worker_stop_timeout=30.0, worker_drain=set_seconds)
    assert worker_settings(settings).budget.drain_seconds == drain_seconds

"""Sorting tests into the two runs that scripts/run_tests.py makes, with Spark and without; and servers for all."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is up to the machine and to who else is on it, and says nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Some images set it. Each of the many processes that tests start would then compile every module anew (6 s of CPU).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ["tests.services.plugin"]

SPARK_TESTS = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)

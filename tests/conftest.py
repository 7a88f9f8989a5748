"""Sorting tests into the two runs that scripts/run_tests.py makes, with Spark and without; and servers for all."""

from pathlib import Path

import pytest

pytest_plugins = ["tests.services.plugin"]

SPARK_TESTS = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)

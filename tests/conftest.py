"""Sorting tests into the two runs that scripts/run_tests.py makes: those with Spark, and the rest."""

from pathlib import Path

import pytest

SPARK_TESTS = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)

"""A folder, a table and the processes on them; whatever still runs when a test ends is ended."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.runs import IN_PROCESS, ON_SPARK, Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """Ingests whose batches run in their own process: for what is not about Spark."""
    with closing(Case(tmp_path, module=IN_PROCESS)) as made:
        yield made


@pytest.fixture
def spark_case(tmp_path: Path) -> Iterator[Case]:
    """Ingests that start Spark, each a JVM of its own."""
    with closing(Case(tmp_path, module=ON_SPARK)) as made:
        yield made

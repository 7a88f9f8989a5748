"""Cases of a folder, a table and the processes on them. Processes that outlive their test are killed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.runs import DELTA, IN_PROCESS, ON_SPARK, Case


@pytest.fixture
def scheme() -> str:
    """Return the scheme of the table's format. Tests of other formats give it as a parameter."""
    return DELTA


@pytest.fixture
def case(tmp_path: Path, scheme: str) -> Iterator[Case]:
    """Return a case whose ingests run batches in their own process, without Spark."""
    with closing(Case(tmp_path, module=IN_PROCESS, scheme=scheme)) as made:
        yield made


@pytest.fixture
def spark_case(tmp_path: Path, scheme: str) -> Iterator[Case]:
    """Return a case whose ingests each start Spark in a JVM of their own."""
    with closing(Case(tmp_path, module=ON_SPARK, scheme=scheme)) as made:
        yield made

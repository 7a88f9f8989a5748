"""A folder, a table and the processes on them; whatever still runs when a test ends is ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.runs import Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.close()
